#include "dnnl_api.h"

#include <dlfcn.h>

#include <mutex>

namespace ferrule_sycl {
namespace {

std::mutex path_mutex;
std::string path;

constexpr char kHowToGet[] = " (pip install onednn)";

Dnnl Open() {
  std::lock_guard lock(path_mutex);
  if (path.empty()) {
    throw Error{kNotFound,
                std::string("oneDNN for SYCL is not installed: no products and convolutions by library") + kHowToGet};
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw Error{kNotFound, std::string("oneDNN cannot be opened: ") + dlerror() + kHowToGet};
  Dnnl dnnl;
  auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (!function) {
      throw Error{kNotFound, path + " has no function " + name + ": it is not oneDNN 3 built for SYCL" + kHowToGet};
    }
  };
#define FERRULE_FIND(name) find(dnnl.name, "dnnl_" #name)
  FERRULE_FIND(primitive_create);
  FERRULE_FIND(primitive_destroy);
  FERRULE_FIND(primitive_desc_destroy);
  FERRULE_FIND(primitive_desc_next_impl);
  FERRULE_FIND(primitive_desc_query_md);
  FERRULE_FIND(primitive_desc_query);
  FERRULE_FIND(memory_desc_create_with_strides);
  FERRULE_FIND(memory_desc_create_with_tag);
  FERRULE_FIND(memory_desc_destroy);
  FERRULE_FIND(memory_desc_clone);
  FERRULE_FIND(memory_desc_equal);
  FERRULE_FIND(memory_desc_get_size);
  FERRULE_FIND(memory_destroy);
  FERRULE_FIND(engine_destroy);
  FERRULE_FIND(stream_destroy);
  FERRULE_FIND(post_ops_create);
  FERRULE_FIND(post_ops_destroy);
  FERRULE_FIND(post_ops_append_eltwise);
  FERRULE_FIND(post_ops_append_binary);
  FERRULE_FIND(primitive_attr_create);
  FERRULE_FIND(primitive_attr_destroy);
  FERRULE_FIND(primitive_attr_set_scratchpad_mode);
  FERRULE_FIND(primitive_attr_set_post_ops);
  FERRULE_FIND(reorder_primitive_desc_create);
  FERRULE_FIND(matmul_primitive_desc_create);
  FERRULE_FIND(convolution_forward_primitive_desc_create);
  FERRULE_FIND(convolution_backward_data_primitive_desc_create);
  FERRULE_FIND(convolution_backward_weights_primitive_desc_create);
  FERRULE_FIND(sycl_interop_engine_create);
  FERRULE_FIND(sycl_interop_stream_create);
  FERRULE_FIND(sycl_interop_memory_create);
  FERRULE_FIND(sycl_interop_primitive_execute);
#undef FERRULE_FIND
  return dnnl;
}

}  // namespace

const Dnnl& Dnnl::Get() {
  static const Dnnl dnnl = Open();  // tried again after a failure: the path may still be handed over
  return dnnl;
}

void Dnnl::SetPath(std::string given) {
  std::lock_guard lock(path_mutex);
  path = std::move(given);
}

void DnnlCheck(int status, const char* what) {
  static const char* const names[] = {"success",          "out of memory",   "invalid arguments", "unimplemented",
                                      "last reached",     "a runtime error", "not required",      "invalid graph",
                                      "invalid graph op", "invalid shape",   "invalid data type"};
  if (status == 0) return;
  int code = status == 1 ? kResourceExhausted : status == 3 ? kUnimplemented : kInternal;
  bool known = status > 0 && status < static_cast<int>(sizeof names / sizeof *names);
  throw Error{code, std::string("oneDNN cannot ") + what + ": " + (known ? names[status] : std::to_string(status))};
}

DnnlOwner DnnlTensor::Desc() const {
  const Dnnl& dnnl = Dnnl::Get();
  DnnlObject desc = nullptr;
  int rank = static_cast<int>(dims.size());
  DnnlCheck(dnnl.memory_desc_create_with_strides(&desc, rank, dims.data(), type, strides.data()), "describe a tensor");
  return {desc, dnnl.memory_desc_destroy};
}

DnnlOwner DnnlTensor::AnyDesc() const {
  const Dnnl& dnnl = Dnnl::Get();
  DnnlObject desc = nullptr;
  DnnlCheck(dnnl.memory_desc_create_with_tag(&desc, static_cast<int>(dims.size()), dims.data(), type, Dnnl::kTagAny),
            "describe a tensor");
  return {desc, dnnl.memory_desc_destroy};
}

int DnnlType(int dtype) {
  switch (dtype) {  // PJRT_Buffer_Type
    case 2:
      return Dnnl::kS8;
    case 4:
      return Dnnl::kS32;
    case 6:
      return Dnnl::kU8;
    case 10:
      return Dnnl::kF16;
    case 11:
      return Dnnl::kF32;
    case 12:
      return Dnnl::kF64;
    case 13:
      return Dnnl::kBF16;
    default:
      throw Error{kUnimplemented, "oneDNN has no element type for PJRT's number " + std::to_string(dtype)};
  }
}

std::vector<int64_t> RowMajor(const std::vector<int64_t>& dims) {
  std::vector<int64_t> strides(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

}  // namespace ferrule_sycl

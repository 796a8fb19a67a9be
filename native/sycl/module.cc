#include "module.h"

#include <cstdint>
#include <vector>

namespace ferrule_sycl {
namespace {

namespace experimental = sycl::ext::oneapi::experimental;

constexpr uint32_t kSpirvMagic = 0x07230203;

void Check(const char* code, size_t size) {
  uint32_t magic = 0;
  if (size >= sizeof magic) __builtin_memcpy(&magic, code, sizeof magic);
  if (size < 20 || size % 4 || magic != kSpirvMagic) {
    throw Error{kInvalidArgument, "the code is no SPIR-V module (" + std::to_string(size) +
                                      " bytes; a module begins "
                                      "with 0x07230203)"};
  }
}

ClProgram LoadOpenCl(const FerruleDevice& device, const char* code, size_t size) {
  ClContext context(sycl::get_native<sycl::backend::opencl>(device.found->context));
  cl_device_id id = sycl::get_native<sycl::backend::opencl>(device.found->device);
  return BuildSpirv(context.get(), id, code, size);
}

sycl::kernel_bundle<sycl::bundle_state::executable> LoadBundle(const FerruleDevice& device, const char* code,
                                                               size_t size) {
  std::vector<std::byte> bytes(size);
  __builtin_memcpy(bytes.data(), code, size);
  auto source = experimental::create_kernel_bundle_from_source(device.found->context,
                                                               experimental::source_language::spirv, bytes);
  std::string log;
  try {
    return experimental::build(source, {device.found->device}, experimental::properties{experimental::save_log{&log}});
  } catch (const sycl::exception& e) {
    throw Error{kInternal, std::string("the device's compiler rejects the module (") + e.what() +
                               "); its log: " + (log.empty() ? "(empty)" : log)};
  }
}

}  // namespace

int Load(FerruleDevice* device, const char* code, size_t size, FerruleModule** module) {
  return Guard([&] { return device->In("loading a module of " + std::to_string(size) + " bytes"); },
               [&] {
                 Check(code, size);
                 auto made = std::make_unique<FerruleModule>();
                 made->device = device;
                 if (device->queue.get_backend() == sycl::backend::opencl) {
                   made->program = LoadOpenCl(*device, code, size);
                 } else {
                   made->bundle = LoadBundle(*device, code, size);
                 }
                 *module = made.release();
               });
}

void Unload(FerruleModule* module) { delete module; }

int GetKernel(FerruleModule* module, const char* name, FerruleKernel** kernel) {
  auto what = [&] { return module->device->In(std::string("looking for kernel ") + name); };
  return Guard(what, [&] {
    std::lock_guard lock(module->mutex);
    auto at = module->kernels.find(name);
    if (at == module->kernels.end()) {
      std::optional<sycl::kernel> made;
      if (module->bundle) {
        made = module->bundle->ext_oneapi_get_kernel(name);
      } else {
        cl_int status = CL_SUCCESS;
        ClKernel found(OpenCl::Get().CreateKernel(module->program.get(), name, &status));
        if (!found) {
          throw Error{status == CL_INVALID_KERNEL_NAME ? kNotFound : kInternal,
                      what() + ": the module has no such kernel (OpenCL error " + std::to_string(status) + ")"};
        }
        made = sycl::make_kernel<sycl::backend::opencl>(found.get(), module->device->found->context);
      }
      at = module->kernels.emplace(name, FerruleKernel{name, std::move(*made)}).first;
    }
    *kernel = &at->second;
  });
}

}  // namespace ferrule_sycl

// oneDNN built for SYCL (package onednn, 3.x), opened at run time: the part of its C API that the driver calls,
// declared by hand. Its primitives run on the device's own queue and memory.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"

namespace ferrule_sycl {

struct DnnlHandle;  // any of oneDNN's opaque objects
using DnnlObject = DnnlHandle*;
struct DnnlArgument {
  int id;
  DnnlObject memory;
};

struct Dnnl {
  // The library; throws Error with code kNotFound when it is not installed or cannot be opened.
  static const Dnnl& Get();
  // Where it is, as the runtime was told; called before the first Get.
  static void SetPath(std::string path);

  int (*primitive_create)(DnnlObject* primitive, DnnlObject desc);
  int (*primitive_destroy)(DnnlObject);
  int (*primitive_desc_destroy)(DnnlObject);
  int (*primitive_desc_next_impl)(DnnlObject);
  DnnlObject (*primitive_desc_query_md)(DnnlObject desc, int what, int index);
  int (*primitive_desc_query)(DnnlObject desc, int what, int index, void* result);
  int (*memory_desc_create_with_strides)(DnnlObject*, int rank, const int64_t* dims, int type, const int64_t* strides);
  int (*memory_desc_create_with_tag)(DnnlObject*, int rank, const int64_t* dims, int type, int tag);
  int (*memory_desc_destroy)(DnnlObject);
  int (*memory_desc_clone)(DnnlObject*, DnnlObject);
  int (*memory_desc_equal)(DnnlObject, DnnlObject);
  size_t (*memory_desc_get_size)(DnnlObject);
  int (*memory_destroy)(DnnlObject);
  int (*engine_destroy)(DnnlObject);
  int (*stream_destroy)(DnnlObject);
  int (*post_ops_create)(DnnlObject*);
  int (*post_ops_destroy)(DnnlObject);
  int (*post_ops_append_eltwise)(DnnlObject, int algorithm, float alpha, float beta);
  int (*post_ops_append_binary)(DnnlObject, int algorithm, DnnlObject operand);
  int (*primitive_attr_create)(DnnlObject*);
  int (*primitive_attr_destroy)(DnnlObject);
  int (*primitive_attr_set_scratchpad_mode)(DnnlObject, int mode);
  int (*primitive_attr_set_post_ops)(DnnlObject, DnnlObject post_ops);
  int (*reorder_primitive_desc_create)(DnnlObject*, DnnlObject from, DnnlObject from_engine, DnnlObject to,
                                       DnnlObject to_engine, DnnlObject attributes);
  int (*matmul_primitive_desc_create)(DnnlObject*, DnnlObject engine, DnnlObject a, DnnlObject b, DnnlObject bias,
                                      DnnlObject d, DnnlObject attributes);
  int (*convolution_forward_primitive_desc_create)(DnnlObject*, DnnlObject engine, int kind, int algorithm,
                                                   DnnlObject source, DnnlObject weights, DnnlObject bias,
                                                   DnnlObject destination, const int64_t* strides,
                                                   const int64_t* dilations, const int64_t* pad_low,
                                                   const int64_t* pad_high, DnnlObject attributes);
  int (*convolution_backward_data_primitive_desc_create)(DnnlObject*, DnnlObject engine, int algorithm,
                                                         DnnlObject source, DnnlObject weights, DnnlObject destination,
                                                         const int64_t* strides, const int64_t* dilations,
                                                         const int64_t* pad_low, const int64_t* pad_high,
                                                         DnnlObject forward, DnnlObject attributes);
  int (*convolution_backward_weights_primitive_desc_create)(DnnlObject*, DnnlObject engine, int algorithm,
                                                            DnnlObject source, DnnlObject weights, DnnlObject bias,
                                                            DnnlObject destination, const int64_t* strides,
                                                            const int64_t* dilations, const int64_t* pad_low,
                                                            const int64_t* pad_high, DnnlObject forward,
                                                            DnnlObject attributes);
  // Handles are sycl::device*, sycl::context*, sycl::queue*; `after` a std::vector<sycl::event>*, `done` a
  // sycl::event*.
  int (*sycl_interop_engine_create)(DnnlObject*, const void* device, const void* context);
  int (*sycl_interop_stream_create)(DnnlObject*, DnnlObject engine, void* queue);
  int (*sycl_interop_memory_create)(DnnlObject*, DnnlObject desc, DnnlObject engine, int kind, void* data);
  int (*sycl_interop_primitive_execute)(DnnlObject primitive, DnnlObject stream, int count,
                                        const DnnlArgument* arguments, const void* after, void* done);

  // The values of oneDNN's enumerations that are used.
  enum { kF16 = 1, kBF16, kF32, kS32, kS8, kU8, kF64 };
  enum { kTagAny = 1, kUserScratchpad = 1, kUsm = 0 };
  enum { kForwardTraining = 64, kForwardInference = 96, kDirect = 1 };
  enum { kSourceArg = 1, kSecondSourceArg = 2, kDestinationArg = 17, kWeightsArg = 33, kBiasArg = 41 };
  enum { kScratchpadArg = 80, kDiffSourceArg = 129, kDiffDestinationArg = 145, kDiffWeightsArg = 161 };
  enum { kImplementation = 8 };
  enum { kSourceMd = 129, kDiffSourceMd, kWeightsMd, kDiffWeightsMd, kDestinationMd, kDiffDestinationMd };
  enum { kScratchpadMd = 136, kArgumentMd = 255 };
  enum {
    kRelu = 0x20,
    kTanh,
    kElu,
    kSquare,
    kAbs,
    kSqrt,
    kLinear,
    kSoftRelu,
    kHardSigmoid,
    kLogistic,
    kExp,
    kGeluTanh
  };
  enum { kSwish = 0x2c, kLog, kGeluErf = 0x31 };
  enum { kAdd = 0x1fff0, kMultiply, kMaximum, kMinimum, kDivide, kSubtract };
};

// Owns an object; `destroy` is one of the functions above.
class DnnlOwner {
 public:
  DnnlOwner() = default;
  DnnlOwner(DnnlObject object, int (*destroy)(DnnlObject)) : object_(object), destroy_(destroy) {}
  DnnlOwner(DnnlOwner&& o) noexcept { *this = std::move(o); }
  DnnlOwner& operator=(DnnlOwner&& o) noexcept {
    std::swap(object_, o.object_);
    std::swap(destroy_, o.destroy_);
    return *this;
  }
  ~DnnlOwner() {
    if (object_) destroy_(object_);
  }
  DnnlObject get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  DnnlObject object_ = nullptr;
  int (*destroy_)(DnnlObject) = nullptr;
};

// Throws when oneDNN's status is not success; `what` was asked of it.
void DnnlCheck(int status, const char* what);

// A tensor as oneDNN sees it; strides in elements.
struct DnnlTensor {
  int type = 0;
  std::vector<int64_t> dims, strides;

  void Add(int64_t size, int64_t stride) {
    dims.push_back(size);
    strides.push_back(stride);
  }
  DnnlOwner Desc() const;
  DnnlOwner AnyDesc() const;  // in the layout that the primitive likes best
};

// The number of a PJRT_Buffer_Type; throws kUnimplemented for those that oneDNN does not have.
int DnnlType(int dtype);
std::vector<int64_t> RowMajor(const std::vector<int64_t>& dims);

}  // namespace ferrule_sycl

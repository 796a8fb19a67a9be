// oneDNN, opened at run time: the few parts of its C API (3.x) that Ferrule calls, declared by hand, and a Prepared
// that runs one primitive of two operands and one result, with reorders where the primitive wants another layout.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "calls.h"
#include "element.h"

namespace ferrule {

struct DnnlHandle;  // any of oneDNN's opaque objects
using DnnlObject = DnnlHandle*;
struct DnnlArgument {
  int id;
  DnnlObject memory;
};

// Function pointers of an opened libdnnl, and its engine. Status values: 0 is success.
struct OneDnn {
  // The library, or null when it is not installed or cannot be opened (said once on stderr if FERRULE_DEBUG is set).
  static const OneDnn* Get();
  // Makes the library use that many threads when the calling thread describes a primitive, or runs one.
  void UseThreads(int count) const { set_threads(count); }
  // How many threads an amount of multiply-adds is worth: to hand over a part takes as long as a small product.
  static int ThreadsFor(double work);

  int (*primitive_create)(DnnlObject* primitive, DnnlObject desc);
  int (*primitive_destroy)(DnnlObject);
  int (*primitive_desc_destroy)(DnnlObject);
  int (*primitive_execute)(DnnlObject primitive, DnnlObject stream, int count, const DnnlArgument* arguments);
  DnnlObject (*primitive_desc_query_md)(DnnlObject desc, int what, int index);
  int (*primitive_desc_query)(DnnlObject desc, int what, int index, void* result);
  int (*memory_desc_create_with_strides)(DnnlObject*, int rank, const int64_t* dims, int type, const int64_t* strides);
  int (*memory_desc_create_with_tag)(DnnlObject*, int rank, const int64_t* dims, int type, int tag);
  int (*memory_desc_destroy)(DnnlObject);
  int (*memory_desc_clone)(DnnlObject*, DnnlObject);
  int (*memory_desc_equal)(DnnlObject, DnnlObject);
  size_t (*memory_desc_get_size)(DnnlObject);
  int (*memory_create)(DnnlObject*, DnnlObject desc, DnnlObject engine, void* data);
  int (*memory_destroy)(DnnlObject);
  int (*stream_create)(DnnlObject*, DnnlObject engine, unsigned flags);
  int (*stream_destroy)(DnnlObject);
  int (*stream_wait)(DnnlObject);
  int (*engine_create)(DnnlObject*, int kind, size_t index);
  int (*primitive_attr_create)(DnnlObject*);
  int (*primitive_attr_destroy)(DnnlObject);
  int (*primitive_attr_set_scratchpad_mode)(DnnlObject, int mode);
  int (*primitive_attr_set_post_ops)(DnnlObject, DnnlObject post_ops);
  int (*post_ops_create)(DnnlObject*);
  int (*post_ops_destroy)(DnnlObject);
  int (*post_ops_append_sum)(DnnlObject, float scale, int32_t zero_point, int type);
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
  int (*get_effective_cpu_isa)();
  void (*set_threads)(int);
  DnnlObject engine = nullptr;
  DnnlObject attributes = nullptr;  // scratchpad memory comes from the caller: a primitive may run on several threads
  DnnlObject adding = nullptr;      // the same, and the result is added to what is there

  // The values of oneDNN's enumerations that are used.
  enum { kTagAny = 1, kForwardTraining = 64, kForwardInference = 96, kDirect = 1, kAuto = 3 };
  enum { kImplementation = 8 };
  enum { kSourceArg = 1, kDestinationArg = 17, kWeightsArg = 33, kScratchpadArg = 80 };
  enum { kDiffSourceArg = 129, kDiffDestinationArg = 145, kDiffWeightsArg = 161 };
  enum { kSourceMd = 129, kDiffSourceMd, kWeightsMd, kDiffWeightsMd, kDestinationMd, kDiffDestinationMd };
  enum { kScratchpadMd = 136 };
  // Whether products of 8-bit integers are exact: without VNNI's instructions oneDNN adds pairs of them in 16 bits,
  // which overflow.
  bool ExactBytes() const {
    constexpr int kAvx2Vnni = 1 << 3, kAvx512Vnni = 1 << 6;
    return (get_effective_cpu_isa() & (kAvx2Vnni | kAvx512Vnni)) != 0;
  }
  // Whether it multiplies on tile registers (AMX).
  bool HasTiles() const {
    constexpr int kAmxTile = 1 << 9;
    return (get_effective_cpu_isa() & kAmxTile) != 0;
  }
  // The number of a type; 0 when oneDNN does not have it.
  static int TypeOf(Element e);
};

// Owns an object; `destroy` is one of the functions above.
class DnnlOwner {
 public:
  DnnlOwner() = default;
  DnnlOwner(DnnlObject object, int (*destroy)(DnnlObject)) : object_(object), destroy_(destroy) {}
  DnnlOwner(DnnlOwner&& o) noexcept : object_(o.object_), destroy_(o.destroy_) { o.object_ = nullptr; }
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

// A memory descriptor with strides, and one whose layout the primitive may choose.
DnnlOwner StridedDesc(const OneDnn& dnnl, Element type, const std::vector<int64_t>& dims,
                      const std::vector<int64_t>& strides);
DnnlOwner AnyDesc(const OneDnn& dnnl, Element type, const std::vector<int64_t>& dims);

// One of the three tensors of a primitive: how it lies in Ferrule's buffer, and the primitive's names for it.
struct DnnlTensor {
  DnnlOwner layout;
  int argument;  // e.g. kSourceArg
  int query;     // e.g. kSourceMd
};

// What happens to an operand's data before anything else (turning a kernel around); null for nothing.
class DnnlPreparation {
 public:
  virtual ~DnnlPreparation() = default;
  virtual int64_t Bytes() const = 0;
  virtual void Run(const void* from, void* to) const = 0;
};

// Where the second operand is the same data in later runs, its form that the primitive takes is kept (packed.h). The
// key tells it from every other form of that data; empty when none is to be kept.
struct DnnlKept {
  OperandSource source;
  std::string key;
};

// A further primitive of a call, which adds to the result. Offsets count bytes.
struct DnnlPart {
  DnnlOwner desc;           // made with OneDnn::adding
  DnnlOwner first, second;  // layouts, as in DnnlTensor
  int64_t first_offset = 0, second_offset = 0;
};

// What oneDNN calls the implementation of a primitive.
std::string DnnlImplementation(const OneDnn& dnnl, DnnlObject desc);

// Null when a reorder is not to be had, or the primitive is only oneDNN's reference implementation; with `more`, also
// when the first operand or the result would have to be reordered.
// `threads` is the number that was in use when the primitives were described.
std::unique_ptr<Prepared> DnnlCall(const OneDnn& dnnl, int threads, DnnlOwner desc, DnnlTensor first, DnnlTensor second,
                                   DnnlTensor result, DnnlKept kept_second = {},
                                   std::unique_ptr<DnnlPreparation> prepare_second = nullptr,
                                   std::vector<DnnlPart> more = {});

}  // namespace ferrule

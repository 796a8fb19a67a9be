// A library call that is one of oneDNN's primitives, with reorders where the primitive wants another layout.
#pragma once

#include <mutex>

#include "dnnl_api.h"
#include "library_call.h"

namespace ferrule_sycl {

// oneDNN on a device's queue.
struct DnnlQueue {
  explicit DnnlQueue(FerruleDevice* device);
  static DnnlQueue& Of(FerruleDevice* device);

  DnnlOwner engine, stream;
};

// What is done to a result before it is rounded and stored, see library_call.h.
class Epilogue {
 public:
  // `result` is the result as oneDNN sees it, `columns` its dimension of the columns.
  Epilogue(const FerruleCallDesc& desc, const DnnlTensor& result, size_t columns);
  bool empty() const { return text_.empty(); }

  // Attributes of a primitive that does it.
  DnnlOwner Attributes() const;

  struct Operand {
    size_t index;  // among the call's operands
    int place;     // in the chain
    DnnlTensor tensor;
  };
  const std::vector<Operand>& operands() const { return operands_; }

 private:
  struct Item {
    int algorithm;
    bool binary;
    float alpha, beta;
  };
  std::string text_;
  std::vector<Item> items_;
  std::vector<Operand> operands_;
};

class DnnlCall : public FerruleCall {
 public:
  explicit DnnlCall(FerruleDevice* device) : queue_(DnnlQueue::Of(device)) {}

  // One tensor of the primitive: how it lies in the buffer, and the primitive's names for it.
  struct Side {
    DnnlTensor tensor;
    int argument;  // e.g. kSourceArg
    int query;     // e.g. kSourceMd
    bool result;
    size_t index;  // among the call's operands or results
  };

  // `desc` describes the primitive: adds it, with a reorder before or after it for each side that it wants elsewhere.
  void Add(DnnlOwner desc, const std::vector<Side>& sides, const Epilogue& epilogue);

  sycl::event Run(void* const* operands, void* const* results, void* scratch,
                  const std::vector<sycl::event>& after) override;

 private:
  struct Place {
    enum { kOperand, kResult, kScratch } kind;
    size_t at;  // index, or bytes from the begin of the scratch memory
  };
  struct Binding {
    int argument;
    DnnlOwner desc;
    Place place;
    // The memory object of the last run; a program mostly finds its buffers where they were. A running primitive holds
    // its objects, too.
    void* data = nullptr;
    DnnlOwner memory;
  };
  struct Step {
    DnnlOwner primitive;
    std::vector<Binding> bindings;
    std::vector<size_t> after;  // steps before it; none: the call's own events
  };

  Place Reserve(size_t bytes);
  DnnlOwner Clone(DnnlObject desc) const;
  // Makes the primitive of a description and adds its scratchpad.
  size_t AddStep(DnnlObject desc, std::vector<Binding> bindings, std::vector<size_t> after);
  size_t AddReorder(DnnlObject from, Place from_place, DnnlObject to, Place to_place, std::vector<size_t> after);

  DnnlQueue& queue_;
  std::vector<Step> steps_;
};

// The name of the implementation that oneDNN chose.
std::string Implementation(DnnlObject desc);

// Of several descriptions that all would do, the first that is more than oneDNN's reference implementation, which is a
// thousand times slower than the others.
class Choice {
 public:
  // `describe` gives a primitive's description or throws kUnimplemented; it is asked only if none before was good.
  template <class Describe>
  void Try(Describe describe) {
    if (good_) return;
    try {
      DnnlOwner made = describe();
      good_ = Implementation(made.get()).rfind("ref", 0) != 0;
      if (good_ || !chosen_) chosen_ = std::move(made);
    } catch (const Error& e) {
      if (e.code != kUnimplemented) throw;
      refusal_ = e;
    }
  }
  DnnlOwner Take() {
    if (!chosen_) throw refusal_;
    return std::move(chosen_);
  }

 private:
  DnnlOwner chosen_;
  Error refusal_;
  bool good_ = false;
};

inline bool IsShortFloat(int type) { return type == Dnnl::kF16 || type == Dnnl::kBF16; }

}  // namespace ferrule_sycl

// Library call "topk": the k largest elements of each row and their positions; NaNs count as largest, equal elements
// keep the order of their positions.
#include <algorithm>

#include "aligned_scratch.h"
#include "attributes.h"
#include "calls.h"
#include "element.h"
#include "program.h"
#include "sort_keys.h"
#include "thread_pool.h"

namespace ferrule {
namespace {

template <class U>
class TopK : public Prepared {
 public:
  TopK(Element type, int64_t rows, int64_t length, int64_t k) : type_(type), rows_(rows), length_(length), k_(k) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    context.pool->For(rows_, std::max<int64_t>(1, 8192 / (length_ + 1)), [&](int64_t begin, int64_t end) {
      static thread_local AlignedScratch keys_scratch, items_scratch;
      U* keys = keys_scratch.Get<U>(length_);
      Candidate* items = items_scratch.Get<Candidate>(length_);
      int64_t size = SizeOf(type_);
      for (int64_t row = begin; row < end; ++row) {
        const char* from = static_cast<const char*>(operands[0]) + row * length_ * size;
        SortKeys(type_, from, 1, length_, FloatOrder::kTotal, true, keys);
        Select(keys, items);
        char* values = static_cast<char*>(results[0]) + row * k_ * size;
        int32_t* positions = static_cast<int32_t*>(results[1]) + row * k_;
        for (int64_t i = 0; i < k_; ++i) {
          positions[i] = items[i].position;
          std::memcpy(values + i * size, from + items[i].position * size, static_cast<size_t>(size));
        }
      }
    });
    return Status();
  }

 private:
  struct Candidate {
    U key;
    int32_t position;
    bool operator<(const Candidate& other) const {
      return key != other.key ? key < other.key : position < other.position;
    }
  };

  // The k smallest keys, in order, at the front of `items`.
  void Select(const U* keys, Candidate* items) const {
    if (k_ * 16 > length_) {
      for (int64_t i = 0; i < length_; ++i) items[i] = {keys[i], static_cast<int32_t>(i)};
      if (k_ < length_) std::nth_element(items, items + k_, items + length_);
      std::sort(items, items + k_);
      return;
    }
    // Few of many: a heap of the best so far; most elements fail one comparison.
    for (int64_t i = 0; i < k_; ++i) items[i] = {keys[i], static_cast<int32_t>(i)};
    std::make_heap(items, items + k_);
    for (int64_t i = k_; i < length_; ++i) {
      if (keys[i] >= items[0].key) continue;  // equal keys: the earlier position stays
      std::pop_heap(items, items + k_);
      items[k_ - 1] = {keys[i], static_cast<int32_t>(i)};
      std::push_heap(items, items + k_);
    }
    std::sort_heap(items, items + k_);
  }

  Element type_;
  int64_t rows_, length_, k_;
};

// No element is asked for, or there is none.
class Nothing : public Prepared {
 public:
  Status Run(void* const*, void* const*, ExecContext&) const override { return Status(); }
};

Result<std::unique_ptr<Prepared>> PrepareTopK(const CallDesc& call) {
  Attributes attributes(call);
  attributes.Expect(1, 2);
  int64_t k = attributes.Int("k");
  FERRULE_RETURN_IF_ERROR(attributes.status());
  const auto& dims = call.operands[0].dims;
  Element type = ElementOf(call.operands[0]);
  if (dims.empty() || k < 0 || k > dims.back()) attributes.Fail("k is larger than the last dimension");
  if (IsComplex(type) || SizeOf(type) == 0) attributes.Fail("elements of type " + NameOf(type) + " have no order");
  if (ElementOf(call.results[1]) != Element::kS32) attributes.Fail("the positions are not of type i32");
  if (!dims.empty() && dims.back() > INT32_MAX) attributes.Fail("rows longer than 2147483647 elements");
  FERRULE_RETURN_IF_ERROR(attributes.status());
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < dims.size(); ++i) rows *= dims[i];
  if (k == 0 || rows == 0) return std::unique_ptr<Prepared>(new Nothing);
  if (SortKeyBytes(type) == 8) return std::unique_ptr<Prepared>(new TopK<uint64_t>(type, rows, dims.back(), k));
  return std::unique_ptr<Prepared>(new TopK<uint32_t>(type, rows, dims.back(), k));
}

[[maybe_unused]] const bool registered = RegisterCall("topk", &PrepareTopK);

}  // namespace
}  // namespace ferrule

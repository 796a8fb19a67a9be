// Library call "topk": the k largest elements of each row and their positions; NaNs count as largest, equal elements
// keep the order of their positions.
#pragma GCC optimize("O3")  // makes vectors of the loops over keys

#include <algorithm>

#include "aligned_scratch.h"
#include "attributes.h"
#include "calls.h"
#include "element.h"
#include "program.h"
#include "sort_keys.h"
#include "sort_shape.h"
#include "thread_pool.h"

namespace ferrule {
namespace {

constexpr int64_t kBlock = 256;         // elements that are compared with the bound before any is looked at
constexpr int64_t kSpreadFrom = 16384;  // the shortest part of a row that is worth a thread
constexpr int64_t kInserted = 16;       // so many are kept in order from the first element on
constexpr int64_t kLook = 32;           // elements of a block that are then looked at together

template <class U>
class TopK : public Prepared {
 public:
  TopK(Element type, int64_t rows, int64_t length, int64_t k) : type_(type), rows_(rows), length_(length), k_(k) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    ThreadPool& pool = *context.pool;
    const int64_t size = SizeOf(type_);
    const auto write = [&](int64_t row, const Candidate* items) {
      const char* from = static_cast<const char*>(operands[0]) + row * length_ * size;
      char* values = static_cast<char*>(results[0]) + row * k_ * size;
      int32_t* positions = static_cast<int32_t*>(results[1]) + row * k_;
      for (int64_t i = 0; i < k_; ++i) {
        positions[i] = items[i].position;
        std::memcpy(values + i * size, from + items[i].position * size, static_cast<size_t>(size));
      }
    };
    // Few rows: the best of each part of a row, then the best of these.
    const int64_t parts = rows_ < 2 * pool.threads() ? std::min(length_ / kSpreadFrom, 4 * int64_t{pool.threads()}) : 1;
    if (parts > 1 && Few(length_ / parts)) {
      static thread_local AlignedScratch scratch;
      Candidate* best = scratch.Get<Candidate>(parts * k_);
      for (int64_t row = 0; row < rows_; ++row) {
        const char* from = static_cast<const char*>(operands[0]) + row * length_ * size;
        pool.For(parts, 1, [&](int64_t begin, int64_t end) {
          for (int64_t part = begin; part < end; ++part) {
            const Candidate* items = Best(from, length_ * part / parts, length_ * (part + 1) / parts);
            std::copy(items, items + k_, best + part * k_);
          }
        });
        std::nth_element(best, best + k_, best + parts * k_);
        std::sort(best, best + k_);
        write(row, best);
      }
      return Status();
    }
    pool.For(rows_, std::max<int64_t>(1, 8192 / (length_ + 1)), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        Candidate* items = Best(static_cast<const char*>(operands[0]) + row * length_ * size, 0, length_);
        if (k_ > kInserted) std::sort(items, items + k_);
        write(row, items);
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

  bool Few(int64_t length) const { return k_ * 16 <= length; }

  // The k smallest keys of a part of the row `from` and their positions, in order if they are at most kInserted; valid
  // until the next call.
  Candidate* Best(const char* from, int64_t begin, int64_t end) const {
    return k_ <= kInserted ? Insert(from, begin, end) : Select(from, begin, end);
  }

  Candidate* Insert(const char* from, int64_t begin, int64_t end) const {
    static thread_local AlignedScratch scratch;
    const int64_t size = SizeOf(type_);
    U keys[kBlock];
    Candidate* best = scratch.Get<Candidate>(k_);
    int64_t found = 0;
    const auto insert = [&](U key, int64_t position) {  // equal keys: the earlier position stays before
      int64_t at = std::min(found, k_ - 1);
      for (; at > 0 && key < best[at - 1].key; --at) best[at] = best[at - 1];
      best[at] = {key, static_cast<int32_t>(position)};
    };
    const auto better = [&](int64_t first, int64_t last) {
      const U bound = best[k_ - 1].key;
      U any = 0;
      for (int64_t j = first; j < last; ++j) any |= U(keys[j] < bound);
      return any != 0;
    };
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t count = std::min(kBlock, end - i);
      SortKeys(type_, from + i * size, 1, count, FloatOrder::kTotal, true, keys);
      int64_t j = 0;
      for (; j < count && found < k_; ++j, ++found) insert(keys[j], i + j);
      if (!better(j, count)) continue;
      for (; j < count; j += kLook) {
        const int64_t last = std::min(j + kLook, count);
        if (!better(j, last)) continue;
        for (int64_t x = j; x < last; ++x) {
          if (keys[x] < best[k_ - 1].key) insert(keys[x], i + x);
        }
      }
    }
    return best;
  }

  // As above, in any order.
  Candidate* Select(const char* from, int64_t begin, int64_t end) const {
    static thread_local AlignedScratch scratch;
    const int64_t size = SizeOf(type_);
    U keys[kBlock];
    const auto read = [&](int64_t i) {
      const int64_t count = std::min(kBlock, end - i);
      SortKeys(type_, from + i * size, 1, count, FloatOrder::kTotal, true, keys);
      return count;
    };
    // Few of many: what is not beyond the bound, the worst of the best so far, is dropped, mostly whole blocks at once.
    // What is left is collected, and reduced to the best when there is much of it.
    const bool few = Few(end - begin);
    const int64_t room = few ? k_ + std::max(k_, kBlock) : end - begin;
    Candidate* items = scratch.Get<Candidate>(room + kBlock);
    int64_t found = 0;
    U bound = ~U(0);
    bool bounded = false;
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t count = read(i);
      if (bounded) {
        U any = 0;
        for (int64_t j = 0; j < count; ++j) any |= U(keys[j] < bound);
        if (any == 0) continue;
        for (int64_t j = 0; j < count; ++j) {  // equal keys: the earlier position stays
          items[found] = {keys[j], static_cast<int32_t>(i + j)};
          found += keys[j] < bound;
        }
      } else {
        for (int64_t j = 0; j < count; ++j) items[found + j] = {keys[j], static_cast<int32_t>(i + j)};
        found += count;
      }
      if (few && found >= room) {
        std::nth_element(items, items + k_ - 1, items + found);
        found = k_;
        bound = items[k_ - 1].key;
        bounded = true;
      }
    }
    if (k_ < found) std::nth_element(items, items + k_ - 1, items + found);
    return items;
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
  if (auto network = NetworkTopK(type, rows, dims.back(), k)) return network;
  if (SortKeyBytes(type) == 8) return std::unique_ptr<Prepared>(new TopK<uint64_t>(type, rows, dims.back(), k));
  return std::unique_ptr<Prepared>(new TopK<uint32_t>(type, rows, dims.back(), k));
}

[[maybe_unused]] const bool registered = RegisterCall("topk", &PrepareTopK);

}  // namespace
}  // namespace ferrule

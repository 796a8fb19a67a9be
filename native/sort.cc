// Library call "sort": sorts rows along one dimension, all operands alike, always stably.
//
// When the compiler recognised the comparator (attribute `key`), keys become unsigned integers, and are sorted in
// vectors or by radix: alone, with the one other operand's elements, or with their positions. Else a merge sort of
// positions calls the compiled comparator. Which operands' results are wanted says the attribute `kept`, if not all of
// them are.
#pragma GCC optimize("O3")  // makes vectors of the loops over keys

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "aligned_scratch.h"
#include "attributes.h"
#include "calls.h"
#include "element.h"
#include "program.h"
#include "quick_sort.h"
#include "radix_sort.h"
#include "range_sort.h"
#include "sort_keys.h"
#include "sort_loops.h"
#include "sort_shape.h"
#include "thread_pool.h"

namespace ferrule {
namespace {

constexpr int64_t kParallelFrom = 65536;  // rows longer than this are cut into a piece for each thread
constexpr int64_t kRangesFrom = 1 << 14;
constexpr int64_t kFewBucketsFrom = 1 << 18;  // rows from which on the places of 2048 buckets leave the nearest caches

// What vectors hold, and whether they sort it here.
template <class T>
constexpr bool kFitsVectors = std::is_integral_v<T> || std::is_same_v<T, Item<uint32_t>>;
template <class T>
bool InVectors() {
  return kFitsVectors<T> && SortsInVectors();
}

// Sorts the row in `items`; the result is in the buffer that is returned. Without kRadixFrom items what goes with the
// keys is their positions: these break ties, so that an unstable sort is stable here and needs no buffer. Where vectors
// sort, keys are alone, or what goes with them is positions or ascends with these.
template <class T>
T* SortRow(T* items, T* spare, int64_t n) {
  if constexpr (kFitsVectors<T>) {
    if (InVectors<T>()) {
      QuickSort(items, n);
      return items;
    }
  }
  if (n >= kLongRadixFrom) return RadixSort<11>(items, spare, n);
  if (n >= kRadixFrom) return RadixSort<8>(items, spare, n);
  std::sort(items, items + n, [](const T& a, const T& b) {
    if constexpr (std::is_integral_v<T>) {
      return a < b;
    } else {
      return a.key() != b.key() ? a.key() < b.key() : a.with() < b.with();
    }
  });
  return items;
}

// How many of the first `k` items of the merge of a and b come from a (ties: a first).
template <class T, class Less>
int64_t MergeSplit(const T* a, int64_t na, const T* b, int64_t nb, int64_t k, Less less) {
  int64_t low = std::max<int64_t>(0, k - nb), high = std::min(k, na);
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (less(b[k - middle - 1], a[middle])) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// Sorts with every thread of the pool: pieces in parallel, then rounds of merges, each merge cut into parts. `piece`
// sorts [begin, end) of a in place (b is spare). Returns the buffer that holds the result.
template <class T, class Piece, class Less>
T* ParallelSort(ThreadPool& pool, T* a, T* b, int64_t n, Piece piece, Less less) {
  int64_t pieces = 1;
  while (pieces < pool.threads()) pieces *= 2;
  auto border = [&](int64_t i) { return n * i / pieces; };
  pool.For(pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* sorted = piece(a + border(i), b + border(i), border(i + 1) - border(i));
      if (sorted != a + border(i)) std::copy(sorted, sorted + border(i + 1) - border(i), a + border(i));
    }
  });
  for (int64_t width = 1; width < pieces; width *= 2) {
    int64_t merges = pieces / (2 * width), parts = pieces / merges;
    pool.For(merges * parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t first = i / parts * 2 * width, part = i % parts;
        const T *left = a + border(first), *right = a + border(first + width);
        int64_t nl = right - left, nr = border(first + 2 * width) - border(first + width), total = nl + nr;
        // All splits up to this part's, none before the last: what is no order (see MergeSort) may put a later one
        // before it, and the parts would not be one another's rest.
        int64_t k0 = 0, l0 = 0, k1 = 0, l1 = 0;
        for (int64_t p = 1; p <= part + 1; ++p) {
          k0 = k1, l0 = l1;
          k1 = total * p / parts;
          l1 = std::clamp(MergeSplit(left, nl, right, nr, k1, less), l0, l0 + (k1 - k0));
        }
        std::merge(left + l0, left + l1, right + (k0 - l0), right + (k1 - l1), b + border(first) + k0, less);
      }
    });
    std::swap(a, b);
  }
  return a;
}

// Moves one row of each operand into place, except operand `but`: result[i] = operand[positions(i)].
template <class PositionOf>
void Gather(const SortShape& s, void* const* operands, void* const* results, int64_t row, int64_t begin, int64_t end,
            int64_t but, PositionOf position) {
  const int64_t base = s.Base(row);
  for (size_t k = 0; k < s.sizes.size(); ++k) {
    if (static_cast<int64_t>(k) == but || results[k] == nullptr) continue;
    auto move = [&]<class T>(T*) {
      const T* from = static_cast<const T*>(operands[k]) + base;
      T* to = static_cast<T*>(results[k]) + base;
      for (int64_t i = begin; i < end; ++i) to[i * s.inner] = from[position(i) * s.inner];
    };
    BySize(s.sizes[k], move);
  }
}

// Runs `row(index)` for every row, rows in parallel unless there are few and each is large enough to be cut itself; a
// single one is from `cut_from` on.
template <class Row>
void ForRows(const SortShape& s, ThreadPool& pool, int64_t cut_from, Row row) {
  const int64_t rows = s.rows();
  if (s.length >= (rows == 1 ? cut_from : kParallelFrom) && rows < 2 * pool.threads()) {
    for (int64_t r = 0; r < rows; ++r) row(r, true);
    return;
  }
  pool.For(rows, std::max<int64_t>(1, 2048 / (s.length + 1)), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) row(r, false);
  });
}

template <class U>
class KeySort : public Prepared {
 public:
  KeySort(SortShape shape, Element type, int64_t key, FloatOrder order, bool descending)
      : s_(std::move(shape)),
        type_(type),
        key_(key),
        order_(order),
        descending_(descending),
        is_float_(type == Element::kF32 || type == Element::kF64) {
    tells_ = KeyTellsValue(type);
    if (!tells_) return;
    const bool by_radix = s_.length >= kRadixFrom;
    if (s_.sizes.size() == 1 && (by_radix || InVectors<U>())) goes_ = With::kNothing;
    if (s_.sizes.size() == 2 && s_.sizes[1 - key_] == 4 && (by_radix || InVectors<Item<U>>())) goes_ = With::kElements;
  }

  Status Run(void* const* operands, void* const* given, ExecContext& context) const override {
    const ResultOfEach each(s_, given);
    void* const* results = each.get();
    const int64_t cut_from = InRanges(*context.pool) ? kRangesFrom : kParallelFrom;
    ForRows(s_, *context.pool, cut_from, [&](int64_t row, bool spread) {
      ThreadPool* pool = spread ? context.pool : nullptr;
      if (goes_ == With::kNothing) return Row<U>(pool, operands, results, row, nullptr, [](int64_t) { return 0u; });
      if (goes_ == With::kElements) {
        const uint32_t* other = static_cast<const uint32_t*>(operands[1 - key_]) + s_.Base(row);
        // In vectors items with equal keys are in the order of what goes with them.
        if (spread || !InVectors<Item<U>>() || Ascend(other, s_.length, s_.inner)) {
          return Row<Item<U>>(pool, operands, results, row, other,
                              [=, this](int64_t i) { return other[i * s_.inner]; });
        }
      }
      Row<Item<U>>(pool, operands, results, row, nullptr, [](int64_t i) { return static_cast<uint32_t>(i); });
    });
    return Status();
  }

 private:
  static constexpr U kInfinity = static_cast<U>(sizeof(U) == 4 ? 0x7f800000ull : 0x7ff0000000000000ull);

  enum class With { kNothing, kElements, kPositions };

  U Flip() const { return descending_ ? ~U(0) : U(0); }

  // Whether threads may sort a range of the keys each.
  bool InRanges(const ThreadPool& pool) const {
    if (sizeof(U) != 4 || s_.inner != 1 || !PicksKeys() || pool.threads() == 1) return false;
    return SortsInVectors() || RangesByRadix(pool, s_.length);
  }

  // Sorts one row, by all threads when there is a pool. `other` is the row's elements that go with keys, if any do,
  // with(i) what goes with key i.
  template <class T, class WithOf>
  void Row(ThreadPool* pool, void* const* operands, void* const* results, int64_t row, const uint32_t* other,
           WithOf with) const {
    static thread_local AlignedScratch a_scratch, b_scratch;
    T* a = a_scratch.Get<T>(s_.length);
    T* b = b_scratch.Get<T>(s_.length);
    const int64_t base = s_.Base(row), size = SizeOf(type_);
    const char* source = static_cast<const char*>(operands[key_]) + base * size;
    std::atomic<bool> untold = !is_float_ || s_.inner > 1;  // whether there may be elements that keys do not tell
    const auto keys = [&](int64_t begin, int64_t count, U* to) {
      const char* from = source + begin * s_.inner * size;
      if (!is_float_ || s_.inner > 1) {
        SortKeys(type_, from, s_.inner, count, order_, descending_, to);
      } else if (loops_.of_floats(reinterpret_cast<const U*>(from), count, kInfinity, order_ == FloatOrder::kTotal,
                                  Flip(), to)) {
        untold = true;
      }
    };
    const T* sorted = nullptr;
    if (pool != nullptr) {
      if constexpr (sizeof(U) == 4) {
        if (InRanges(*pool)) {
          const bool ready = type_ == Element::kU32 && !descending_;
          sorted = RangeSort(*pool, a, b, s_.length, ready ? reinterpret_cast<const uint32_t*>(source) : nullptr, keys,
                             other);
        }
      }
      if constexpr (std::is_same_v<T, uint64_t>) {
        if (InVectors<T>()) {
          pool->For(s_.length, kParallelFrom / 4,
                    [&](int64_t begin, int64_t end) { keys(begin, end - begin, a + begin); });
          QuickSort(*pool, a, s_.length);
          sorted = a;
        }
      }
      if (sorted == nullptr && s_.length >= kParallelFrom) {
        sorted = s_.length >= kFewBucketsFrom ? SpreadRadixSort<8, U>(*pool, a, b, s_.length, keys, with)
                                              : SpreadRadixSort<11, U>(*pool, a, b, s_.length, keys, with);
      }
    }
    if (sorted == nullptr) {
      if constexpr (std::is_integral_v<T>) {
        keys(0, s_.length, a);
      } else {
        constexpr int64_t kBlock = 256;
        U block[kBlock];
        for (int64_t i = 0; i < s_.length; i += kBlock) {
          const int64_t count = std::min(kBlock, s_.length - i);
          keys(i, count, block);
          for (int64_t j = 0; j < count; ++j) a[i + j] = MakeItem(block[j], with(i + j), static_cast<T*>(nullptr));
        }
      }
      // A row that was to be cut may have anything with its keys.
      sorted = pool != nullptr ? RadixSort<11>(a, b, s_.length) : SortRow(a, b, s_.length);
    }
    auto write = [&](int64_t begin, int64_t end) {
      Write(operands, results, row, begin, end, sorted, other != nullptr);
    };
    if (pool != nullptr) {
      pool->For(s_.length, kParallelFrom / 4, write);
    } else {
      write(0, s_.length);
    }
    if (untold) Tell(operands, results, base, sorted);
  }

  template <class T>
  void Write(void* const* operands, void* const* results, int64_t row, int64_t begin, int64_t end, const T* sorted,
             bool with_elements) const {
    const int64_t base = s_.Base(row) + begin * s_.inner;
    if (tells_ && results[key_] != nullptr) {
      char* to = static_cast<char*>(results[key_]) + base * SizeOf(type_);
      if (is_float_ && s_.inner == 1) {
        WriteFloats(sorted + begin, end - begin, reinterpret_cast<U*>(to));
      } else {
        ValuesOfKeys<U>(type_, end - begin, descending_, s_.inner, to,
                        [=](int64_t i) { return KeyOf(sorted[begin + i]); });
      }
    }
    if constexpr (!std::is_integral_v<T>) {
      if (with_elements) {
        if (results[1 - key_] == nullptr) return;
        uint32_t* to = static_cast<uint32_t*>(results[1 - key_]) + base;
        for (int64_t i = begin; i < end; ++i, to += s_.inner) *to = sorted[i].with();
        return;
      }
      Gather(s_, operands, results, row, begin, end, tells_ ? key_ : -1,
             [&](int64_t i) { return int64_t{sorted[i].with()}; });
    }
  }

  template <class T>
  void WriteFloats(const T* sorted, int64_t count, U* to) const {
    if constexpr (std::is_integral_v<T>) {
      loops_.to_floats(sorted, count, Flip(), to);
    } else {
      constexpr int64_t kBlock = 256;
      U keys[kBlock];
      for (int64_t i = 0; i < count; i += kBlock) {
        const int64_t some = std::min(kBlock, count - i);
        for (int64_t j = 0; j < some; ++j) keys[j] = KeyOf(sorted[i + j]);
        loops_.to_floats(keys, some, Flip(), to + i);
      }
    }
  }

  // Zeros of either sign, and NaNs of all bits, have one key: they are taken from the operand again, in its order.
  template <class T>
  void Tell(void* const* operands, void* const* results, int64_t base, const T* sorted) const {
    if (!tells_ || order_ == FloatOrder::kTotal || results[key_] == nullptr) return;
    switch (type_) {
      case Element::kF16:
        return Equals<uint16_t>(operands, results, base, sorted, 0x7c00);
      case Element::kBF16:
        return Equals<uint16_t>(operands, results, base, sorted, 0x7f80);
      case Element::kF32:
        return Equals<uint32_t>(operands, results, base, sorted, 0x7f800000u);
      case Element::kF64:
        return Equals<uint64_t>(operands, results, base, sorted, 0x7ff0000000000000ull);
      default:
        return;
    }
  }

  template <class Bits, class T>
  void Equals(void* const* operands, void* const* results, int64_t base, const T* sorted, Bits infinity) const {
    constexpr Bits kSign = Bits(1) << (8 * sizeof(Bits) - 1);
    const auto first = [&](U key) {
      return std::lower_bound(sorted, sorted + s_.length, key, [](const T& x, U k) { return KeyOf(x) < k; }) - sorted;
    };
    const U zero_key = static_cast<U>(FloatBitsKey<Bits>(0, infinity, order_)) ^ Flip();
    const U nan_key = static_cast<U>(static_cast<Bits>(~Bits(0))) ^ Flip();
    int64_t zero = first(zero_key), nan = first(nan_key);
    const bool zeros = zero < s_.length && KeyOf(sorted[zero]) == zero_key;
    const bool nans = nan < s_.length && KeyOf(sorted[nan]) == nan_key;
    if (!zeros && !nans) return;
    const Bits* from = static_cast<const Bits*>(operands[key_]) + base;
    Bits* to = static_cast<Bits*>(results[key_]) + base;
    for (int64_t i = 0; i < s_.length; ++i) {
      const Bits bits = from[i * s_.inner], magnitude = bits & static_cast<Bits>(~kSign);
      if (magnitude == 0) to[zero++ * s_.inner] = bits;
      if (magnitude > infinity) to[nan++ * s_.inner] = bits;
    }
  }

  SortShape s_;
  Element type_;
  int64_t key_;
  FloatOrder order_;
  bool descending_, tells_ = false;
  const bool is_float_;  // as wide as its key
  const SortLoops<U>& loops_ = ChosenSortLoops<U>();
  With goes_ = With::kPositions;
};

class ComparatorSort : public Prepared {
 public:
  ComparatorSort(SortShape shape, CompiledFn comparator) : s_(std::move(shape)), comparator_(comparator) {}

  Status Run(void* const* operands, void* const* given, ExecContext& context) const override {
    const ResultOfEach each(s_, given);
    void* const* results = each.get();
    ForRows(s_, *context.pool, kParallelFrom, [&](int64_t row, bool spread) {
      static thread_local AlignedScratch a_scratch, b_scratch;
      uint32_t* a = a_scratch.Get<uint32_t>(s_.length);
      uint32_t* b = b_scratch.Get<uint32_t>(s_.length);
      for (int64_t i = 0; i < s_.length; ++i) a[i] = static_cast<uint32_t>(i);
      const int64_t base = s_.Base(row);
      auto less = [&](uint32_t x, uint32_t y) {
        // Each call has its own pointers: comparisons run on several threads.
        void* pointers[2 * kMaxOperands + 1];
        size_t count = s_.sizes.size();
        for (size_t k = 0; k < count; ++k) {
          char* at = static_cast<char*>(operands[k]) + base * s_.sizes[k];
          pointers[2 * k] = at + x * s_.inner * s_.sizes[k];
          pointers[2 * k + 1] = at + y * s_.inner * s_.sizes[k];
        }
        uint8_t result = 0;
        pointers[2 * count] = &result;
        comparator_(pointers, 0, 1);
        return result != 0;
      };
      auto piece = [&](uint32_t* from, uint32_t* spare, int64_t n) { return MergeSort(from, spare, n, less); };
      uint32_t* sorted = spread ? ParallelSort(*context.pool, a, b, s_.length, piece, less) : piece(a, b, s_.length);
      Gather(s_, operands, results, row, 0, s_.length, -1, [&](int64_t i) { return int64_t{sorted[i]}; });
    });
    return Status();
  }

  static constexpr size_t kMaxOperands = 64;

 private:
  // Bottom-up, from runs of eight sorted by insertion. Unlike the standard library's it needs nothing of the
  // comparator: one that is no order (a plain `<` with NaNs) gives some permutation, never a fault.
  template <class Less>
  static uint32_t* MergeSort(uint32_t* from, uint32_t* spare, int64_t n, Less less) {
    constexpr int64_t kRun = 8;
    for (int64_t run = 0; run < n; run += kRun) {
      for (int64_t i = run + 1; i < std::min(n, run + kRun); ++i) {
        uint32_t x = from[i];
        int64_t j = i;
        for (; j > run && less(x, from[j - 1]); --j) from[j] = from[j - 1];
        from[j] = x;
      }
    }
    for (int64_t width = kRun; width < n; width *= 2) {
      for (int64_t begin = 0; begin < n; begin += 2 * width) {
        int64_t middle = std::min(n, begin + width), end = std::min(n, begin + 2 * width);
        int64_t l = begin, r = middle, to = begin;
        while (l < middle && r < end) spare[to++] = less(from[r], from[l]) ? from[r++] : from[l++];
        while (l < middle) spare[to++] = from[l++];
        while (r < end) spare[to++] = from[r++];
      }
      std::swap(from, spare);
    }
    return from;
  }

  SortShape s_;
  CompiledFn comparator_;
};

// Rows of at most one element: nothing to sort.
class CopyRows : public Prepared {
 public:
  CopyRows(SortShape shape, std::vector<int64_t> bytes) : s_(std::move(shape)), bytes_(std::move(bytes)) {}
  Status Run(void* const* operands, void* const* given, ExecContext&) const override {
    const ResultOfEach results(s_, given);
    for (size_t k = 0; k < bytes_.size(); ++k) {
      if (void* to = results.get()[k]) std::memmove(to, operands[k], static_cast<size_t>(bytes_[k]));
    }
    return Status();
  }

 private:
  SortShape s_;
  std::vector<int64_t> bytes_;
};

Result<std::unique_ptr<Prepared>> PrepareSort(const CallDesc& call) {
  Attributes attributes(call);
  std::vector<int64_t> kept;
  if (call.results.size() < call.operands.size()) kept = attributes.Ints("kept", call.results.size());
  attributes.Expect(std::max<size_t>(1, call.operands.size()), kept.empty() ? call.operands.size() : kept.size());
  FERRULE_RETURN_IF_ERROR(attributes.status());
  for (size_t i = 0; i < call.results.size(); ++i) {
    const int64_t operand = kept.empty() ? static_cast<int64_t>(i) : kept[i];
    const int64_t least = i == 0 ? 0 : kept.empty() ? operand : kept[i - 1] + 1;
    const bool fits = operand >= least && operand < static_cast<int64_t>(call.operands.size()) &&
                      call.results[i].dtype == call.operands[operand].dtype &&
                      call.results[i].dims == call.operands[operand].dims;
    if (!fits) attributes.Fail("result " + std::to_string(i) + " is not of its operand's type");
  }
  FERRULE_RETURN_IF_ERROR(attributes.status());
  const auto& dims = call.operands[0].dims;
  int64_t rank = static_cast<int64_t>(dims.size());
  int64_t dimension = attributes.Int("dimension", rank - 1);
  if (dimension < 0) dimension += rank;
  SortShape shape{1, 1, 1, {}, kept};
  if (rank > 0) {
    if (dimension < 0 || dimension >= rank) attributes.Fail("there is no such dimension to sort");
    FERRULE_RETURN_IF_ERROR(attributes.status());
    for (int64_t d = 0; d < dimension; ++d) shape.outer *= dims[d];
    shape.length = dims[dimension];
    for (int64_t d = dimension + 1; d < rank; ++d) shape.inner *= dims[d];
  }
  std::vector<int64_t> bytes;
  for (size_t k = 0; k < call.operands.size(); ++k) {
    Element type = ElementOf(call.operands[k]);
    if (call.operands[k].dims != dims || SizeOf(type) == 0) {
      attributes.Fail("operand " + std::to_string(k) + " differs in shape or has no order");
    }
    shape.sizes.push_back(SizeOf(type));
    bytes.push_back(SizeOf(type) * call.operands[k].elements());
  }
  if (shape.length > UINT32_MAX) attributes.Fail("rows longer than 4294967295 elements are not supported");
  int64_t key = attributes.Int("key", -1);
  CompiledFn comparator = attributes.Function("comparator");
  std::string order = attributes.String("order", "lt");
  bool canonical = attributes.Bool("total_canonical", false), total = attributes.Bool("total", false);
  if (key >= static_cast<int64_t>(call.operands.size())) attributes.Fail("the key is not one of the operands");
  if (key < 0 && !comparator) attributes.Fail("it has neither a key nor a comparator");
  if (order != "lt" && order != "gt") attributes.Fail("the order is neither lt nor gt");
  if (shape.sizes.size() > ComparatorSort::kMaxOperands && key < 0) attributes.Fail("more than 64 operands");
  FERRULE_RETURN_IF_ERROR(attributes.status());
  if (shape.length <= 1) return std::unique_ptr<Prepared>(new CopyRows(std::move(shape), std::move(bytes)));
  if (key >= 0) {
    Element type = ElementOf(call.operands[key]);
    if (IsComplex(type)) attributes.Fail("complex keys have no order");
    FERRULE_RETURN_IF_ERROR(attributes.status());
    FloatOrder floats = canonical ? FloatOrder::kCanonical : total ? FloatOrder::kTotal : FloatOrder::kPlain;
    bool descending = order == "gt";
    if (auto network = NetworkSort(shape, type, key, floats, descending)) return network;
    if (SortKeyBytes(type) == 8) {
      return std::unique_ptr<Prepared>(new KeySort<uint64_t>(std::move(shape), type, key, floats, descending));
    }
    return std::unique_ptr<Prepared>(new KeySort<uint32_t>(std::move(shape), type, key, floats, descending));
  }
  return std::unique_ptr<Prepared>(new ComparatorSort(std::move(shape), comparator));
}

[[maybe_unused]] const bool registered = RegisterCall("sort", &PrepareSort);

}  // namespace
}  // namespace ferrule

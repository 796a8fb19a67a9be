// Quicksort, a vector of items at a time; what fits into sixteen registers is sorted there, by exchanges without
// branches (Batcher's bitonic sort).
#if defined(__x86_64__)
#pragma GCC optimize("O3")
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
// GCC 12's own header is what is warned of: what its instructions leave alone is nothing in particular.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "quick_sort_tables.h"

#define FERRULE_ALWAYS inline __attribute__((always_inline))

namespace ferrule {
namespace {

using V = __m512i;

// Numbers that say which lane comes from where.
template <class U, class Of>
V LanesOf(Of of) {
  alignas(64) U lanes[64 / sizeof(U)];
  for (int i = 0; i < static_cast<int>(64 / sizeof(U)); ++i) lanes[i] = static_cast<U>(of(i));
  return _mm512_load_si512(lanes);
}

// Row m: the lanes of mask m, then the others.
constexpr auto kFirstLanes = [] {
  std::array<std::array<uint8_t, 8>, 256> rows{};
  for (int mask = 0; mask < 256; ++mask) {
    int at = 0;
    for (int wanted = 1; wanted >= 0; --wanted) {
      for (int lane = 0; lane < 8; ++lane) {
        if ((mask >> lane & 1) == wanted) rows[mask][at++] = static_cast<uint8_t>(lane);
      }
    }
  }
  return rows;
}();

template <class U>
struct Lanes;

template <>
struct Lanes<uint32_t> {
  static constexpr int kLanes = 16;
  using Mask = __mmask16;
  static V Load(const uint32_t* p, int64_t count) {
    return _mm512_mask_loadu_epi32(_mm512_set1_epi32(-1), First(count), p);
  }
  static void Store(uint32_t* p, int64_t count, V v) { _mm512_mask_storeu_epi32(p, First(count), v); }
  static V All(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static V Permute(V by, V v) { return _mm512_permutexvar_epi32(by, v); }
  static V Permute(V a, V by, V b) { return _mm512_permutex2var_epi32(a, by, b); }
  static V Blend(Mask mask, V a, V b) { return _mm512_mask_blend_epi32(mask, a, b); }
  static Mask Xor(Mask a, unsigned b) { return _kxor_mask16(a, static_cast<Mask>(b)); }
  static Mask Less(V a, V b) { return _mm512_cmplt_epu32_mask(a, b); }
  // The lanes of `less`, which are `count`, to the front, the others to the back, between which there is room for all.
  static void Split(V v, unsigned less, int64_t count, uint32_t* front, uint32_t* back) {
    _mm512_storeu_si512(front, Compress(less, v));
    Store(back - kLanes + count, kLanes - count, Compress(~less, v));
  }
  static V Compress(unsigned mask, V v) { return _mm512_maskz_compress_epi32(static_cast<Mask>(mask), v); }
  static constexpr Mask First(int64_t count) { return static_cast<Mask>((1u << count) - 1); }
};

template <>
struct Lanes<uint64_t> {
  static constexpr int kLanes = 8;
  using Mask = __mmask8;
  static V Load(const uint64_t* p, int64_t count) {
    return _mm512_mask_loadu_epi64(_mm512_set1_epi64(-1), First(count), p);
  }
  static void Store(uint64_t* p, int64_t count, V v) { _mm512_mask_storeu_epi64(p, First(count), v); }
  static V All(uint64_t x) { return _mm512_set1_epi64(static_cast<int64_t>(x)); }
  static V Permute(V by, V v) { return _mm512_permutexvar_epi64(by, v); }
  static V Permute(V a, V by, V b) { return _mm512_permutex2var_epi64(a, by, b); }
  static V Blend(Mask mask, V a, V b) { return _mm512_mask_blend_epi64(mask, a, b); }
  static Mask Xor(Mask a, unsigned b) { return _kxor_mask8(a, static_cast<Mask>(b)); }
  static Mask Less(V a, V b) { return _mm512_cmplt_epu64_mask(a, b); }
  static void Split(V v, unsigned less, int64_t, uint64_t* front, uint64_t* back) {
    int64_t row;
    std::memcpy(&row, kFirstLanes[less].data(), 8);
    v = Permute(_mm512_cvtepu8_epi64(_mm_cvtsi64_si128(row)), v);
    _mm512_storeu_si512(front, v);
    _mm512_storeu_si512(back - kLanes, v);
  }
  static V Compress(unsigned mask, V v) { return _mm512_maskz_compress_epi64(static_cast<Mask>(mask), v); }
  static constexpr Mask First(int64_t count) { return static_cast<Mask>((1u << count) - 1); }
};

// Items in kRows registers, of which column after column are in order: item i is in lane i / kRows of row i % kRows.
template <class U, int kRows>
struct Block {
  using L = Lanes<U>;
  static constexpr int kLanes = L::kLanes;
  V v[kRows];

  template <int kA, int kB>
  FERRULE_ALWAYS void Exchange() {
    const V a = v[kA], b = v[kB];
    const auto wrong = L::Less(b, a);
    v[kA] = L::Blend(wrong, a, b);
    v[kB] = L::Blend(wrong, b, a);
  }

  // Calls f with each of 0, 1, … kCount - 1 as a constant.
  template <int kCount, class F>
  FERRULE_ALWAYS static void Each(F f) {
    [&]<int... kI>(std::integer_sequence<int, kI...>) __attribute__((always_inline)) {
      (f(std::integral_constant<int, kI>()), ...);
    }(std::make_integer_sequence<int, kCount>());
  }

  // Rows whose numbers differ in the bits kBy.
  template <int kBy>
  FERRULE_ALWAYS void ExchangeRows() {
    Each<kRows>([&](auto i) __attribute__((always_inline)) {
      if constexpr ((i ^ kBy) > i) Exchange<i, (i ^ kBy)>();
    });
  }

  // What is ascending, then descending, in order: rows that are kDistance, kDistance / 2, … 1 apart.
  template <int kDistance>
  FERRULE_ALWAYS void MergeRows() {
    if constexpr (kDistance > 0) {
      ExchangeRows<kDistance>();
      MergeRows<kDistance / 2>();
    }
  }

  // Each column by itself, of which groups of kWidth are in order.
  template <int kWidth>
  FERRULE_ALWAYS void SortColumns() {
    if constexpr (kWidth < kRows) {
      ExchangeRows<2 * kWidth - 1>();
      MergeRows<kWidth / 2>();
      SortColumns<2 * kWidth>();
    }
  }

  // The lanes with bit kBit.
  template <int kBit>
  static constexpr unsigned LanesWith() {
    unsigned mask = 0;
    for (int i = 0; i < kLanes; ++i) mask |= i & kBit ? 1u << i : 0u;
    return mask;
  }

  // Columns that are kDistance, kDistance / 2, … 1 apart.
  template <int kDistance>
  FERRULE_ALWAYS void MergeColumns() {
    if constexpr (kDistance > 0) {
      const V by = LanesOf<U>([](int i) { return i ^ kDistance; });
      Each<kRows>([&](auto i) __attribute__((always_inline)) {
        const V other = L::Permute(by, v[i]);
        v[i] = L::Blend(L::Xor(L::Less(other, v[i]), LanesWith<kDistance>()), v[i], other);
      });
      MergeColumns<kDistance / 2>();
    }
  }

  // All, of which groups of kWidth columns are in order: one group from its front against the next from its back.
  template <int kWidth>
  FERRULE_ALWAYS void SortGroups() {
    if constexpr (kWidth < kLanes) {
      const V by = LanesOf<U>([](int i) { return i ^ (2 * kWidth - 1); });
      constexpr unsigned kSecond = LanesWith<kWidth>();
      if constexpr (kRows == 1) {
        const V other = L::Permute(by, v[0]);
        v[0] = L::Blend(L::Xor(L::Less(other, v[0]), kSecond), v[0], other);
      }
      Each<kRows / 2>([&](auto i) __attribute__((always_inline)) {
        V &a = v[i], &b = v[kRows - 1 - i];
        const V mine = a, other = L::Permute(by, b);
        const auto taken = L::Xor(L::Less(other, mine), kSecond);
        a = L::Blend(taken, mine, other);
        b = L::Permute(by, L::Blend(taken, other, mine));
      });
      MergeColumns<kWidth / 2>();
      MergeRows<kRows / 2>();
      SortGroups<2 * kWidth>();
    }
  }

  // Item i to lane i % kLanes of row i / kLanes: each time the first bit of a row's number becomes the last of a
  // lane's.
  template <int kLeft>
  FERRULE_ALWAYS void ToRows() {
    if constexpr (kLeft > 1) {
      const V front = LanesOf<U>([](int i) { return i / 2 + i % 2 * kLanes; });
      const V back = LanesOf<U>([](int i) { return kLanes / 2 + i / 2 + i % 2 * kLanes; });
      V to[kRows];
      Each<kRows / 2>([&](auto i) __attribute__((always_inline)) {
        to[2 * i] = L::Permute(v[i], front, v[i + kRows / 2]);
        to[2 * i + 1] = L::Permute(v[i], back, v[i + kRows / 2]);
      });
      Each<kRows>([&](auto i) __attribute__((always_inline)) { v[i] = to[i]; });
      ToRows<kLeft / 2>();
    }
  }
};

// Sorts up to kRows vectors of items.
template <class U, int kRows>
void SortBlock(U* items, int64_t n) {
  using L = Lanes<U>;
  constexpr int kLanes = L::kLanes;
  Block<U, kRows> block;
  Block<U, kRows>::template Each<kRows>([&](auto i) __attribute__((always_inline)) {
    block.v[i] = L::Load(items + i * kLanes, std::clamp<int64_t>(n - i * kLanes, 0, kLanes));
  });
  block.template SortColumns<1>();
  block.template SortGroups<1>();
  block.template ToRows<kRows>();
  Block<U, kRows>::template Each<kRows>([&](auto i) __attribute__((always_inline)) {
    L::Store(items + i * kLanes, std::clamp<int64_t>(n - i * kLanes, 0, kLanes), block.v[i]);
  });
}

template <class U>
void SortFew(U* items, int64_t n) {
  constexpr int kLanes = Lanes<U>::kLanes;
  if (n <= kLanes) return SortBlock<U, 1>(items, n);
  if (n <= 2 * kLanes) return SortBlock<U, 2>(items, n);
  if (n <= 4 * kLanes) return SortBlock<U, 4>(items, n);
  if (n <= 8 * kLanes) return SortBlock<U, 8>(items, n);
  SortBlock<U, 16>(items, n);
}

// Puts the items less than the pivot before the others and returns how many they are.
//
// Vectors are read from both ends, a group of them from where there is less room between what was read and what was
// written, which is always so much that a group can go to either side. So what is written is in the nearest cache.
template <class U>
int64_t Partition(U* items, int64_t n, U pivot) {
  using L = Lanes<U>;
  constexpr int kLanes = L::kLanes, kGroup = 4;
  constexpr int64_t kItems = kGroup * kLanes;
  const V border = L::All(pivot);
  U *front = items, *back = items + n;                    // written up to here, and from here on
  U *first = items + kItems, *last = items + n - kItems;  // what is not read yet
  V begin[kGroup], end[kGroup], rest[kGroup];
  for (int k = 0; k < kGroup; ++k) {
    begin[k] = _mm512_loadu_si512(items + k * kLanes);
    end[k] = _mm512_loadu_si512(last + k * kLanes);
  }
  while (last - first >= kItems) {
    const bool from_front = first - front <= back - last;
    const U* from = from_front ? first : last - kItems;
    first += from_front ? kItems : 0;
    last -= from_front ? 0 : kItems;
    V group[kGroup];
    for (int k = 0; k < kGroup; ++k) group[k] = _mm512_loadu_si512(from + k * kLanes);
    for (int k = 0; k < kGroup; ++k) {
      const unsigned less = L::Less(group[k], border);
      const int64_t count = __builtin_popcount(less);
      L::Split(group[k], less, count, front, back);
      front += count;
      back -= kLanes - count;
    }
  }
  const int64_t left = last - first;
  for (int k = 0; k < kGroup; ++k) {
    rest[k] = L::Load(first + k * kLanes, std::clamp<int64_t>(left - k * kLanes, 0, kLanes));
  }
  const auto one = [&](V item, int64_t valid) {
    const unsigned less = L::Less(item, border) & L::First(valid), others = ~less & L::First(valid);
    const int64_t count = __builtin_popcount(less);
    L::Store(front, count, L::Compress(less, item));
    L::Store(back - (valid - count), valid - count, L::Compress(others, item));
    front += count;
    back -= valid - count;
  };
  for (int k = 0; k < kGroup; ++k) one(begin[k], kLanes);
  for (int k = 0; k < kGroup; ++k) one(end[k], kLanes);
  for (int k = 0; k * kLanes < left; ++k) one(rest[k], std::min<int64_t>(left - k * kLanes, kLanes));
  return front - items;
}

template <class U>
U Median(U a, U b, U c) {
  return std::max(std::min(a, b), std::min(std::max(a, b), c));
}

// The median of three medians of three items, `step` apart from one another.
template <class U>
U MedianOfNine(const U* p, int64_t step) {
  return Median(Median(p[0], p[step], p[2 * step]), Median(p[3 * step], p[4 * step], p[5 * step]),
                Median(p[6 * step], p[7 * step], p[8 * step]));
}

template <class U>
U Pivot(const U* from, int64_t n) {
  constexpr int64_t kMany = 4096;
  const int64_t step = n / 9;
  if (n < kMany) return MedianOfNine(from, step);
  return Median(MedianOfNine(from, step), MedianOfNine(from + step / 3, step), MedianOfNine(from + step * 2 / 3, step));
}

// `depth` partitions may follow one another, which chance alone does not come to. (The comparison is this file's own,
// so that no other file's std::sort is the one that is compiled here, with these instructions.)
template <class U>
void Sort(U* items, int64_t n, int depth) {
  constexpr int64_t kFew = 16 * Lanes<U>::kLanes;
  while (n > kFew) {
    if (depth-- == 0) return std::sort(items, items + n, [](U a, U b) { return a < b; });
    const U pivot = Pivot(items, n);
    int64_t less = Partition(items, n, pivot);
    if (less > 0) {
      Sort(items, less, depth);
    } else {  // the pivot is the least: all that equal it are in their places then
      less = pivot == static_cast<U>(~U(0)) ? n : Partition(items, n, static_cast<U>(pivot + 1));
    }
    items += less;
    n -= less;
  }
  SortFew(items, n);
}

template <class U>
void QuickSort(U* items, int64_t n) {
  Sort(items, n, 2 * std::bit_width(static_cast<uint64_t>(n)));
}

// Pairs whose halves differ in so few bits that both fit into one number of 32 bits, as small integers and positions
// do, are sorted as such.
void SortPairs(uint64_t* pairs, uint32_t* spare, int64_t n) {
  constexpr int64_t kBlock = 256;
  if (n == 0) return;
  const uint64_t one = pairs[0];
  uint64_t differ = 0;
  int key_bits = 0, with_bits = 0;
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t end = std::min(n, i + kBlock);
    for (int64_t j = i; j < end; ++j) differ |= pairs[j] ^ one;
    key_bits = std::bit_width(differ >> 32), with_bits = std::bit_width(differ & UINT32_MAX);
    if (key_bits + with_bits > 32) return QuickSort(pairs, n);
  }
  const uint64_t keys = (uint64_t{1} << key_bits) - 1, with = (uint64_t{1} << with_bits) - 1;
  const int down = 32 - with_bits;
  for (int64_t i = 0; i < n; ++i) {
    spare[i] = static_cast<uint32_t>((pairs[i] >> down & keys << with_bits) | (pairs[i] & with));
  }
  QuickSort(spare, n);
  const uint64_t same = one & ~(keys << 32 | with);
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t packed = spare[i];
    pairs[i] = same | (packed & keys << with_bits) << down | (packed & with);
  }
}

int64_t PartitionKeys(uint64_t* keys, int64_t n, uint64_t border) {
  constexpr int64_t kLeast = 64;  // both ends' first vectors
  if (n >= kLeast) return Partition(keys, n, border);
  return std::partition(keys, keys + n, [=](uint64_t key) { return key < border; }) - keys;
}

}  // namespace

constinit const QuickSorts kAvx512QuickSorts{QuickSort<uint32_t>, QuickSort<uint64_t>, SortPairs, PartitionKeys};

}  // namespace ferrule
#endif

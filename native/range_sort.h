// A stable sort of a row by a few threads, each of which sorts a range of the keys on its own, by radix in its nearest
// cache or in vectors: it looks at all keys and takes those of its range. Threads meet once before that and once after.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "aligned_scratch.h"
#include "key_ranges.h"
#include "quick_sort.h"
#include "radix_sort.h"
#include "thread_pool.h"

namespace ferrule {

// One range: its items lie in [begin, begin + count), and their keys are equal but for the last `bits`.
struct KeyRange {
  uint32_t first, last;
  int64_t begin, count;
  int bits;
};

// Sorts the items in a + begin by `passes` digits of the bits above the last `rest`, then looks at neighbours. The
// result is in a if passes are even, else in b.
template <class T>
void SortRange(T* a, T* b, const KeyRange& range, int passes, int rest) {
  constexpr int kMostPasses = 3, kBuckets = 2048;
  static thread_local AlignedScratch scratch;
  uint32_t* counts = scratch.Get<uint32_t>(kMostPasses * kBuckets);
  std::memset(counts, 0, sizeof(uint32_t) * static_cast<size_t>(passes) * kBuckets);
  const int bits = std::max(1, (range.bits - rest + passes - 1) / passes);
  const uint32_t mask = (1u << bits) - 1;
  // A digit past the first bit of a key is that bit, which is sorted by twice then.
  const auto shift = [&](int pass) { return std::min(rest + pass * bits, 31); };
  T *from = a + range.begin, *to = b + range.begin;
  // All digits are counted at once; two are as many as most need.
  for (int pass = 0; pass < passes; pass += 2) {
    uint32_t *one = counts + pass * kBuckets, *two = one + kBuckets;
    const int by = shift(pass), then = shift(pass + 1);
    if (pass + 1 < passes) {
      for (int64_t i = 0; i < range.count; ++i) {
        const uint32_t key = KeyOf(from[i]);
        ++one[(key >> by) & mask];
        ++two[(key >> then) & mask];
      }
    } else {
      for (int64_t i = 0; i < range.count; ++i) ++one[(KeyOf(from[i]) >> by) & mask];
    }
  }
  for (int pass = 0; pass < passes; ++pass) {
    uint32_t* place = counts + pass * kBuckets;
    uint32_t sum = 0;
    for (uint32_t bucket = 0; bucket <= mask; ++bucket) {
      const uint32_t here = place[bucket];
      place[bucket] = sum;
      sum += here;
    }
    const int by = shift(pass);
    for (int64_t i = 0; i < range.count; ++i) {
      const T item = from[i];
      to[place[(KeyOf(item) >> by) & mask]++] = item;
    }
    std::swap(from, to);
  }
  if (rest == 0) return;
  const auto wrong = [&](int64_t i) {
    if constexpr (std::is_integral_v<T>) {
      return FirstOutOfOrder(from, i, range.count);
    } else {
      return FirstOutOfOrder(&from->both, i, range.count);
    }
  };
  for (int64_t i = wrong(1); i < range.count;) i = wrong(MoveBack(from, to, i, 0, range.count, rest));
}

// Whether there are few enough threads for each to look at all keys, and few enough items to sort by radix in the
// nearest caches.
inline bool RangesByRadix(const ThreadPool& pool, int64_t n) { return pool.threads() <= 4 && n < 1 << 18; }

// Whether no element is less than the one before it, as positions are.
inline bool Ascend(const uint32_t* row, int64_t n, int64_t stride) {
  constexpr int64_t kBlock = 1024;
  for (int64_t i = 1; i < n; i += kBlock) {
    const int64_t end = std::min(n, i + kBlock);
    uint32_t less = 0;
    for (int64_t j = i; j < end; ++j) less |= row[j * stride] < row[(j - 1) * stride];
    if (less != 0) return false;
  }
  return true;
}

// The buffer that holds the result, or null where a sample of the keys does not lead to ranges of about equal counts:
// many are alike, or they are as good as sorted by chance; or where other ways are faster. keys(begin, count, to)
// writes keys; where `ready` is not null they lie there already. others[i] goes with key i, where `others` is null, or
// changed to that, i does. Needs PicksKeys().
template <class T, class Keys>
T* RangeSort(ThreadPool& pool, T* a, T* b, int64_t n, const uint32_t* ready, Keys keys, const uint32_t*& others) {
  constexpr int64_t kBlock = 4096;
  constexpr int kDigit = 11;
  // Many threads that all look at all keys take longer than few digits.
  constexpr int64_t kManyThreads = 5, kManyItems = 1 << 18;
  constexpr int kFewBits = 24;
  const int64_t parts = std::min<int64_t>(pool.threads(), kMostRanges);
  const KeySample<uint32_t> sample(n, keys);
  if (!std::is_integral_v<T> && parts >= kManyThreads && n >= kManyItems &&
      std::bit_width(sample.sorted[0] ^ sample.sorted[sample.count - 1]) <= kFewBits) {
    return nullptr;
  }
  uint32_t borders[kMostRanges - 1];
  for (int64_t i = 1; i < parts; ++i) borders[i - 1] = sample.sorted[sample.count * i / parts];

  static thread_local AlignedScratch scratch;
  uint32_t* made = ready == nullptr ? scratch.Get<uint32_t>(n) : nullptr;
  KeyExtent extents[kMostRanges];
  bool ascend[kMostRanges];  // what goes with the keys of each part, which then keeps those that are equal in order
  pool.For(parts, 1, [&](int64_t one, int64_t end) {
    for (int64_t part = one; part < end; ++part) {
      const int64_t stop = n * (part + 1) / parts;
      KeyExtent extent;
      for (int64_t i = n * part / parts; i < stop; i += kBlock) {
        const int64_t count = std::min(kBlock, stop - i);
        if (made != nullptr) keys(i, count, made + i);
        MeasureKeys((made != nullptr ? made : ready) + i, count, borders, parts - 1, &extent);
      }
      extents[part] = extent;
      const int64_t begin = std::max<int64_t>(1, n * part / parts);
      ascend[part] = others != nullptr && Ascend(others + begin - 1, stop - begin + 1, 1);
    }
  });
  for (int64_t part = 1; part < parts; ++part) extents[0].Add(extents[part]);
  KeyRange ranges[kMostRanges];
  int widest = 0;
  for (int64_t part = 0; part < parts; ++part) {
    const uint32_t first = part == 0 ? extents[0].least : borders[part - 1];
    const uint32_t last = part == parts - 1 ? extents[0].greatest : borders[part] - 1;
    const int64_t begin = part == 0 ? 0 : extents[0].below[part - 1];
    const int64_t count = (part == parts - 1 ? n : extents[0].below[part]) - begin;
    if (count <= 0 || count > n / parts + n / 8) return nullptr;
    ranges[part] = {first, last, begin, count, static_cast<int>(std::bit_width(first ^ last))};
    widest = std::max(widest, ranges[part].bits);
  }

  const bool first_tell = sample.FirstBitsTell(32 - 2 * kDigit);
  const int sorted_by = first_tell ? std::min(widest, 2 * kDigit) : widest;
  int passes = std::max(1, (sorted_by + kDigit - 1) / kDigit);
  // Where there are vectors, by two digits of keys and what goes with them.
  const bool by_radix = RangesByRadix(pool, n);
  const bool in_vectors = SortsInVectors() && (std::is_integral_v<T> || passes > 2 || !by_radix);
  if (in_vectors) {
    passes = 0;
    if (!std::all_of(ascend, ascend + parts, [](bool does) { return does; })) others = nullptr;
  }
  const uint32_t* all = made != nullptr ? made : ready;
  pool.For(parts, 1, [&](int64_t one, int64_t end) {
    for (int64_t part = one; part < end; ++part) {
      const KeyRange& range = ranges[part];
      T* to = a + range.begin;
      if constexpr (std::is_integral_v<T>) {
        PickKeys(all, n, range.first, range.last, to, range.count);
      } else {
        PickKeys(all, others, n, range.first, range.last, &to->both, range.count);
      }
      if (in_vectors) {
        QuickSort(to, range.count);
      } else {
        SortRange(a, b, range, passes, first_tell ? std::max(0, range.bits - passes * kDigit) : 0);
      }
    }
  });
  return passes % 2 == 0 ? a : b;
}

}  // namespace ferrule

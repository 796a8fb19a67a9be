#include "quick_sort.h"

#include <algorithm>
#include <bit>

#include "aligned_scratch.h"
#include "cpu_features.h"
#include "quick_sort_tables.h"

namespace ferrule {

#if defined(__x86_64__)

bool SortsInVectors() { return IsIntelWithAvx512(); }

void QuickSort(uint32_t* keys, int64_t n) { kAvx512QuickSorts.narrow(keys, n); }
void QuickSort(uint64_t* keys, int64_t n) { kAvx512QuickSorts.wide(keys, n); }

void QuickSort(Item<uint32_t>* items, int64_t n) {
  static thread_local AlignedScratch scratch;
  kAvx512QuickSorts.pairs(&items->both, scratch.Get<uint32_t>(n), n);
}

void QuickSort(ThreadPool& pool, uint64_t* keys, int64_t n) {
  constexpr int64_t kMostParts = 32;
  const int64_t parts = std::min<int64_t>(std::bit_ceil(static_cast<uint64_t>(pool.threads())), kMostParts);
  const KeySample<uint64_t> sample(n,
                                   [=](int64_t i, int64_t count, uint64_t* to) { std::copy_n(keys + i, count, to); });
  int64_t begins[kMostParts + 1] = {};
  begins[parts] = n;
  for (int64_t width = parts; width > 1; width /= 2) {
    pool.For(parts / width, 1, [&](int64_t first, int64_t end) {
      for (int64_t part = first * width; part < end * width; part += width) {
        const int64_t begin = begins[part], middle = part + width / 2;
        const uint64_t border = sample.sorted[sample.count * middle / parts];
        begins[middle] = begin + kAvx512QuickSorts.partition(keys + begin, begins[part + width] - begin, border);
      }
    });
  }
  pool.For(parts, 1, [&](int64_t first, int64_t end) {
    for (int64_t part = first; part < end; ++part) QuickSort(keys + begins[part], begins[part + 1] - begins[part]);
  });
}

#else

bool SortsInVectors() { return false; }

void QuickSort(uint32_t*, int64_t) {}
void QuickSort(uint64_t*, int64_t) {}
void QuickSort(Item<uint32_t>*, int64_t) {}
void QuickSort(ThreadPool&, uint64_t*, int64_t) {}

#endif

}  // namespace ferrule

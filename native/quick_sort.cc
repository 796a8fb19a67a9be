#include "quick_sort.h"

#include "cpu_features.h"
#include "quick_sort_tables.h"

namespace ferrule {

#if defined(__x86_64__)

bool SortsInVectors() { return IsIntelWithAvx512(); }

void QuickSort(uint32_t* keys, int64_t n) { kAvx512QuickSorts.narrow(keys, n); }
void QuickSort(uint64_t* keys, int64_t n) { kAvx512QuickSorts.wide(keys, n); }

#else

bool SortsInVectors() { return false; }

void QuickSort(uint32_t*, int64_t) {}
void QuickSort(uint64_t*, int64_t) {}

#endif

void QuickSort(Item<uint32_t>* items, int64_t n) {
  if (n > 0) QuickSort(&items->both, n);
}

}  // namespace ferrule

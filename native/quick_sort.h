// Quicksort in vectors (quick_sort_avx512.cc), for keys alone and for keys with 32 bits that go with them.
#pragma once

#include <cstdint>

#include "radix_sort.h"
#include "thread_pool.h"

namespace ferrule {

// Whether this processor has what the functions below need, and they are the fastest there; else they must not be
// called.
bool SortsInVectors();

// Sort in place. Items whose keys are equal are in the order of what goes with them.
void QuickSort(uint32_t* keys, int64_t n);
void QuickSort(uint64_t* keys, int64_t n);
void QuickSort(Item<uint32_t>* items, int64_t n);
// By all threads: halves, quarters and so on are cut by fewer threads first, then each has a part.
void QuickSort(ThreadPool& pool, uint64_t* keys, int64_t n);

}  // namespace ferrule

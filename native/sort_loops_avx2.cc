// The loops of sorts for x86-64 with AVX2.
#if defined(__x86_64__)
#pragma GCC optimize("O3")
#pragma GCC target("arch=x86-64-v3")
#define FERRULE_ISA avx2
#include "sort_loops_kernel.h"

namespace ferrule {
constinit const AllSortLoops kAvx2SortLoops = avx2::LoopsOfSorts();
}  // namespace ferrule
#endif

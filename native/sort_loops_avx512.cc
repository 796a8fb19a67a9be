// The loops of sorts for x86-64 with AVX-512.
#if defined(__x86_64__)
#pragma GCC optimize("O3")
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
#define FERRULE_ISA avx512
#include "sort_loops_kernel.h"

namespace ferrule {
constinit const AllSortLoops kAvx512SortLoops = avx512::LoopsOfSorts();
}  // namespace ferrule
#endif

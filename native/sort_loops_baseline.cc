// The loops of sorts for what every CPU of the architecture has: SSE2, or NEON.
#pragma GCC optimize("O3")
#define FERRULE_ISA baseline
#include "sort_loops_kernel.h"

namespace ferrule {
constinit const AllSortLoops kBaselineSortLoops = baseline::LoopsOfSorts();
}  // namespace ferrule

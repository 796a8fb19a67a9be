// The loops of sums with few outputs for what every CPU of the architecture has: SSE2, or NEON.
#pragma GCC optimize("O3")
#define FERRULE_ISA baseline
#define FERRULE_VECTOR_BYTES 16
#include "few_sums_kernel.h"

namespace ferrule {
constinit const FewKernels kBaselineFew = baseline::Few();
}  // namespace ferrule

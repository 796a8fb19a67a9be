// The loops of sums with few outputs for x86-64 with AVX2 and FMA.
#if defined(__x86_64__)
#pragma GCC optimize("O3")
#pragma GCC target("arch=x86-64-v3")
#define FERRULE_ISA avx2
#define FERRULE_VECTOR_BYTES 32
#include "few_sums_kernel.h"

namespace ferrule {
constinit const FewKernels kAvx2Few = avx2::Few();
}  // namespace ferrule
#endif

// Attention's innermost loops for x86-64 with AVX2 and FMA.
#if defined(__x86_64__)
#pragma GCC optimize("O3")
#pragma GCC target("arch=x86-64-v3")
#define FERRULE_ISA avx2
#define FERRULE_VECTOR_BYTES 32
#include "attention_kernel.h"

namespace ferrule {
constinit const AttentionKernels kAvx2Attention = avx2::Attention();
}  // namespace ferrule
#endif

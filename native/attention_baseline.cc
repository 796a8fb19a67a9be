// Attention's innermost loops for what every CPU of the architecture has: SSE2, or NEON with its 32 registers.
#pragma GCC optimize("O3")
#define FERRULE_ISA baseline
#define FERRULE_VECTOR_BYTES 16
#include "attention_kernel.h"

namespace ferrule {
constinit const AttentionKernels kBaselineAttention = baseline::Attention();
}  // namespace ferrule

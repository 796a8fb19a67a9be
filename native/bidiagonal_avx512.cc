// The loops of making a matrix bidiagonal for x86-64 with AVX-512.
#if defined(__x86_64__)
#pragma GCC optimize("O3")
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
#define FERRULE_ISA avx512
#define FERRULE_VECTOR_BYTES 64
#include "bidiagonal_kernel.h"

namespace ferrule {
constinit const BidiagonalKernels kAvx512Bidiagonal = avx512::Bidiagonal();
}  // namespace ferrule
#endif

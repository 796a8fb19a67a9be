// Products of bytes for x86-64 with AVX-VNNI: 32-byte vectors.
#if defined(__x86_64__)
#include <immintrin.h>
#pragma GCC optimize("O3")
#pragma GCC target("arch=x86-64-v3,avxvnni")
#define FERRULE_ISA avx2
#define FERRULE_VECTOR_BYTES 32
#include "gemm_kernel.h"
#include "gemm_quads.h"

namespace ferrule {
constinit const GroupKernels kAvx2Quads = avx2::AllQuads<6, 2>();
}  // namespace ferrule
#endif

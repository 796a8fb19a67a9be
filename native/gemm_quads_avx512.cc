// Products of bytes for x86-64 with AVX-512 and its VNNI.
#if defined(__x86_64__)
#include <immintrin.h>
#pragma GCC optimize("O3")
#pragma GCC target("arch=x86-64-v4,avx512vnni,prefer-vector-width=512")
#define FERRULE_ISA avx512
#define FERRULE_VECTOR_BYTES 64
#include "gemm_kernel.h"
#include "gemm_quads.h"

namespace ferrule {
constinit const GroupKernels kAvx512Quads = avx512::AllQuads<12, 2>();
}  // namespace ferrule
#endif

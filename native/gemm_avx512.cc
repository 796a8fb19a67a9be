// The matrix product's innermost loops for x86-64 with AVX-512.
#if defined(__x86_64__)
#include <immintrin.h>
#pragma GCC optimize("O3")
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
#define FERRULE_ISA avx512
#define FERRULE_VECTOR_BYTES 64
#include "conv_windows_kernel.h"
#include "gemm_kernel.h"
#include "gemm_narrow.h"
#include "gemm_narrow_vectors.h"

namespace ferrule {
constinit const GemmKernels kAvx512Gemm = {
    "avx512",
    avx512::Real<float, 12, 2>(),  // oneDNN's convolutions of f32 are up to twice as fast
    avx512::RealAndWindows<double, 12, 2>(),
    avx512::Real<uint32_t, 12, 2>(),
    avx512::Real<uint64_t, 12, 2>(),
    avx512::Complex<float, 6, 2>(),
    avx512::Complex<double, 6, 2>(),
    avx512::PacksOfStored<12, 2>(),
    avx512::Pairs<12, 2>(),
    avx512::Vectors<avx512::Bf16Terms>(),
    avx512::Vectors<avx512::IntegerTerms<int8_t>>(),
    avx512::Vectors<avx512::IntegerTerms<uint8_t>>(),
    {avx512::Vectors<avx512::PairTerms<int8_t>>(), avx512::Vectors<avx512::PairTerms<uint8_t>>(),
     avx512::Vectors<avx512::PairTerms<int16_t>>()},
};
}  // namespace ferrule
#endif

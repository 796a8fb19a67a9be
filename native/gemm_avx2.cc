// The matrix product's innermost loops for x86-64 with AVX2 and FMA.
#if defined(__x86_64__)
#pragma GCC optimize("O3")
#pragma GCC target("arch=x86-64-v3")
#define FERRULE_ISA avx2
#define FERRULE_VECTOR_BYTES 32
#include "conv_windows_kernel.h"
#include "gemm_kernel.h"
#include "gemm_narrow.h"
#include "gemm_narrow_vectors.h"

namespace ferrule {
constinit const GemmKernels kAvx2Gemm = {
    "avx2",
    avx2::RealAndWindows<float, 6, 2>(),
    avx2::RealAndWindows<double, 6, 2>(),
    avx2::Real<uint32_t, 6, 2>(),
    avx2::Real<uint64_t, 4, 2>(),
    avx2::Complex<float, 3, 2>(),
    avx2::Complex<double, 3, 2>(),
    avx2::PacksOfStored<6, 2>(),
    avx2::Pairs<6, 2>(),
    avx2::Vectors<avx2::Bf16Terms>(),
    avx2::Vectors<avx2::IntegerTerms<int8_t>>(),
    avx2::Vectors<avx2::IntegerTerms<uint8_t>>(),
    {avx2::Vectors<avx2::PairTerms<int8_t>>(), avx2::Vectors<avx2::PairTerms<uint8_t>>(),
     avx2::Vectors<avx2::PairTerms<int16_t>>()},
};
}  // namespace ferrule
#endif

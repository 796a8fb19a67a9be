// The matrix product's innermost loops for what every CPU of the architecture has: SSE2, or NEON with its 32 registers.
#pragma GCC optimize("O3")
#define FERRULE_ISA baseline
#define FERRULE_VECTOR_BYTES 16
#include "gemm_kernel.h"
#include "gemm_narrow.h"
#include "gemm_narrow_vectors.h"

namespace ferrule {
#if defined(__aarch64__)
constexpr int kTileRows = 8;
#else
constexpr int kTileRows = 4;
#endif
constinit const GemmKernels kBaselineGemm = {
    "baseline",
    baseline::Real<float, kTileRows, 2>(),
    baseline::Real<double, kTileRows, 2>(),
    baseline::Real<uint32_t, kTileRows, 2>(),
    baseline::Real<uint64_t, kTileRows, 2>(),
    baseline::Complex<float, kTileRows / 2, 2>(),
    baseline::Complex<double, kTileRows / 2, 2>(),
    baseline::PacksOfStored<kTileRows, 2>(),
    {},
    baseline::Vectors<baseline::Bf16Terms>(),
    baseline::Vectors<baseline::IntegerTerms<int8_t>>(),
    baseline::Vectors<baseline::IntegerTerms<uint8_t>>(),
    {baseline::Vectors<baseline::PairTerms<int8_t>>(), baseline::Vectors<baseline::PairTerms<uint8_t>>(),
     baseline::Vectors<baseline::PairTerms<int16_t>>()},
};
}  // namespace ferrule

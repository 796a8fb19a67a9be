// The innermost loops of Fourier transforms for x86-64 with AVX2 and FMA.
#if defined(__x86_64__)
#pragma GCC optimize("O3")
#pragma GCC target("arch=x86-64-v3")
#define FERRULE_ISA avx2
#define FERRULE_VECTOR_BYTES 32
#include "fft_stages.h"

namespace ferrule {
constinit const FftKernels kAvx2Fft = {avx2::Stages<float>(), avx2::Stages<double>()};
}  // namespace ferrule
#endif

// The innermost loops of Fourier transforms for x86-64 with AVX-512.
#if defined(__x86_64__)
#pragma GCC optimize("O3")
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
#define FERRULE_ISA avx512
#define FERRULE_VECTOR_BYTES 64
#include "fft_stages.h"

namespace ferrule {
constinit const FftKernels kAvx512Fft = {avx512::Stages<float>(), avx512::Stages<double>()};
}  // namespace ferrule
#endif

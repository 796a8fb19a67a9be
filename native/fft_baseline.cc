// The innermost loops of Fourier transforms for what every CPU of the architecture has.
#pragma GCC optimize("O3")
#define FERRULE_ISA baseline
#define FERRULE_VECTOR_BYTES 16
#include "fft_stages.h"

namespace ferrule {
constinit const FftKernels kBaselineFft = {baseline::Stages<float>(), baseline::Stages<double>()};
}  // namespace ferrule

// The loops of making a matrix bidiagonal for what every CPU of the architecture has.
#pragma GCC optimize("O3")
#define FERRULE_ISA baseline
#define FERRULE_VECTOR_BYTES 16
#include "bidiagonal_kernel.h"

namespace ferrule {
constinit const BidiagonalKernels kBaselineBidiagonal = baseline::Bidiagonal();
}  // namespace ferrule

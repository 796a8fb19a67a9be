// The loops of small matrices for what every CPU of the architecture has.
#pragma GCC optimize("O3")
#define FERRULE_ISA baseline
#define FERRULE_VECTOR_BYTES 16
#include "small_matrix_kernel.h"

namespace ferrule {
constinit const SmallMatrixKernels kBaselineSmallMatrix = baseline::SmallMatrix();
}  // namespace ferrule

// The loops of convolutions along lines for what every CPU of the architecture has.
#pragma GCC optimize("O3")
#define FERRULE_ISA baseline
#define FERRULE_VECTOR_BYTES 16
#include "conv_lines_kernel.h"

namespace ferrule {
constinit const LineKernels kBaselineLines = baseline::Lines();
}  // namespace ferrule

// The loops of sorting networks for what every CPU of the architecture has: SSE2, or NEON.
#pragma GCC optimize("O3")
#define FERRULE_ISA baseline
#include "sort_network_kernel.h"

namespace ferrule {
constinit const NetworkKernels kBaselineNetworks = baseline::Networks();
}  // namespace ferrule

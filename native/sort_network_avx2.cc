// The loops of sorting networks for x86-64 with AVX2.
#if defined(__x86_64__)
#pragma GCC optimize("O3")
#pragma GCC target("arch=x86-64-v3")
#define FERRULE_ISA avx2
#include "sort_network_kernel.h"

namespace ferrule {
constinit const NetworkKernels kAvx2Networks = avx2::Networks();
}  // namespace ferrule
#endif

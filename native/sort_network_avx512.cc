// The loops of sorting networks for x86-64 with AVX-512.
#if defined(__x86_64__)
#pragma GCC optimize("O3")
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
#define FERRULE_ISA avx512
#include "sort_network_kernel.h"

namespace ferrule {
constinit const NetworkKernels kAvx512Networks = avx512::Networks();
}  // namespace ferrule
#endif

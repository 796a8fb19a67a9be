// The loops of QR factorizations for x86-64 with AVX2 and FMA.
#if defined(__x86_64__)
#pragma GCC optimize("O3")
#pragma GCC target("arch=x86-64-v3")
#define FERRULE_ISA avx2
#define FERRULE_VECTOR_BYTES 32
#include "qr_kernel.h"

namespace ferrule {
constinit const QrKernels kAvx2Qr = avx2::Qr();
}  // namespace ferrule
#endif

// The loops of QR factorizations for x86-64 with AVX-512.
#if defined(__x86_64__)
#pragma GCC optimize("O3")
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
#define FERRULE_ISA avx512
#define FERRULE_VECTOR_BYTES 64
#include "qr_kernel.h"

namespace ferrule {
constinit const QrKernels kAvx512Qr = avx512::Qr();
}  // namespace ferrule
#endif

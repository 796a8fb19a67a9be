// The loops of QR factorizations for what every CPU of the architecture has.
#pragma GCC optimize("O3")
#define FERRULE_ISA baseline
#define FERRULE_VECTOR_BYTES 16
#include "qr_kernel.h"

namespace ferrule {
constinit const QrKernels kBaselineQr = baseline::Qr();
}  // namespace ferrule

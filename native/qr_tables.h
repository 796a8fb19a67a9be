// The loops of QR factorizations along vectors, one table of functions per instruction set.
#pragma once

#include <cstdint>

namespace ferrule {

// A row of a panel is at most so many vectors.
constexpr int64_t kQrVectors = 4;

// All matrices are row-major; a panel's rows are whole vectors, of which the last one ends in zeros where there are no
// more columns.
template <class T>
struct QrFunctions {
  int64_t lanes;  // elements of a vector
  // A copy of from[rows][columns]; largest[c] becomes the largest of itself and the magnitudes in column c. NaN is
  // none.
  void (*copy)(const T* from, int64_t from_row, int64_t rows, int64_t columns, T* to, int64_t to_row, T* largest);
  // In place in a panel: Householder reflections for the first columns, as LAPACK's geqr2 leaves them.
  void (*factor)(T* a, int64_t vectors, int64_t rows, int64_t steps, T* tau);
  // The panel q becomes the first columns of the product of the reflections that factor left in a[rows][a_row].
  void (*generate)(const T* a, int64_t a_row, int64_t rows, int64_t steps, const T* tau, T* q, int64_t vectors);
};

struct QrKernels {
  QrFunctions<float> f32;
  QrFunctions<double> f64;
};

extern const QrKernels kBaselineQr;
#if defined(__x86_64__)
extern const QrKernels kAvx2Qr, kAvx512Qr;
#endif

}  // namespace ferrule

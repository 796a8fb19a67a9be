// The loops that make a matrix bidiagonal, along vectors, one table of functions per instruction set.
#pragma once

#include <cstdint>

namespace ferrule {

// Reflections whose changes to the rest of the matrix are kept beside it at a time: from the right and from the left.
constexpr int64_t kBeside = 64;

// What one step does to rows A[r] of `length` columns that have become A[r] + beside[r] C for a matrix C. x[r] is
// -scale times its product with w and is put into beside[r][place]; column[r] is the first element of the row, with
// that.
template <class T>
struct BidiagonalStep {
  const T* a;
  int64_t a_row, length;
  const T* w;
  T scale;
  T* beside;          // kBeside elements a row
  int64_t place;      // those from here on are zero, as are these vectors':
  const T* products;  // C w
  const T* first;     // C's first column
  T* column;
};

// Lengths are rounded up to whole vectors: what follows is read, and zero.
template <class T>
struct BidiagonalFunctions {
  int64_t lanes;
  // out[i] = rows[i] x
  void (*dots)(int64_t count, int64_t length, const T* rows, int64_t row, const T* x, T* out);
  // y += factors[i] rows[i] for all i
  void (*add)(int64_t count, int64_t length, const T* rows, int64_t row, const T* factors, int64_t factor_row, T* y);
  // For rows [begin, end): y += column[r] A[r], sums += column[r] beside[r].
  void (*step)(const BidiagonalStep<T>& s, int64_t begin, int64_t end, T* y, T* sums);
};

struct BidiagonalKernels {
  BidiagonalFunctions<float> f32;
  BidiagonalFunctions<double> f64;
};

extern const BidiagonalKernels kBaselineBidiagonal;
#if defined(__x86_64__)
extern const BidiagonalKernels kAvx2Bidiagonal, kAvx512Bidiagonal;
#endif

}  // namespace ferrule

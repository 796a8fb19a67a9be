// Factorizations and triangular solves of small matrices, one table of functions per instruction set.
#pragma once

#include <cstdint>

namespace ferrule {

// Matrices of at most so many rows and columns: all that a function needs lies in the nearest cache.
constexpr int64_t kSmallMatrix = 64;
// A panel of a larger one has at most so many columns.
constexpr int64_t kPanelColumns = 128;
// So many right-hand sides are solved for at once, at most.
constexpr int64_t kSolvedVectors = 8;

// All matrices are row-major.
template <class T>
struct SmallMatrixFunctions {
  // P A = L U with partial pivoting, of rows x columns from `from` to `to` (which may be the same): the first of the
  // largest magnitudes of each column. pivots[k] is the row, counted from 1, that was exchanged with row k. Returns the
  // first zero on the diagonal of U, counted from 1, or 0.
  int32_t (*factor)(const T* from, int64_t rows, int64_t columns, T* to, int32_t* pivots);
  // The same in place for a panel whose columns, at most kPanelColumns and no more than the rows, are `stride` apart,
  // each followed by room for a vector.
  int32_t (*panel)(T* a, int64_t stride, int64_t rows, int64_t columns, int32_t* pivots);
  // In place on the lower triangle: A = L L^T; what is above the diagonal is overwritten. False when A is not positive
  // definite.
  bool (*cholesky)(T* a, int64_t a_row, int64_t n);
  // to[columns][to_row] = the transpose of from[rows][from_row].
  void (*turn)(const T* from, int64_t from_row, int64_t rows, int64_t columns, T* to, int64_t to_row);
  // In place in `count` vectors x, which are x_row apart: A X = B, with a triangular A of any size of which only the
  // named triangle is read. `turned`: what is stored is A's transpose; `lower` is A itself, and `sums` has room for up
  // to kSolvedVectors times x_row numbers.
  void (*solve_vectors)(bool lower, bool unit, bool turned, int64_t n, const T* a, int64_t a_row, int64_t count, T* x,
                        int64_t x_row, T* sums);
  // In place in b: A X = B with several columns, a multiple of kSmallLanes.
  void (*solve_many)(bool lower, bool unit, int64_t n, const T* a, int64_t a_row, T* b, int64_t b_row, int64_t columns);
};

template <class T>
constexpr int64_t kSmallLanes = 64 / static_cast<int64_t>(sizeof(T));

// The functions for this processor.
template <class T>
const SmallMatrixFunctions<T>& SmallMatrix();
template <>
const SmallMatrixFunctions<float>& SmallMatrix();
template <>
const SmallMatrixFunctions<double>& SmallMatrix();

struct SmallMatrixKernels {
  SmallMatrixFunctions<float> f32;
  SmallMatrixFunctions<double> f64;
};

extern const SmallMatrixKernels kBaselineSmallMatrix;
#if defined(__x86_64__)
extern const SmallMatrixKernels kAvx2SmallMatrix, kAvx512SmallMatrix;
#endif

}  // namespace ferrule

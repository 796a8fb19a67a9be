// The loops that make a matrix bidiagonal, written once with vector types and compiled for several instruction sets as
// gemm_kernel.h is: nothing of the standard library may be instantiated here.
#include "bidiagonal_tables.h"
#include "lanes.h"

namespace ferrule {
namespace FERRULE_ISA {

constexpr int kStepRows = 4;  // that are in the nearest cache together, and share what is read of other vectors

template <class T>
inline T SumOf(typename Lanes<T>::Vector v) {
  constexpr int kCount = Lanes<T>::kCount;
#pragma GCC unroll 4
  for (int half = kCount / 2; half > 0; half /= 2) {
    v += __builtin_shuffle(v, Counted<T>() ^ static_cast<typename Lanes<T>::Integer>(half));
  }
  return v[0];
}

template <int ROWS, class T>
inline void DotsSome(int64_t length, const T* rows, int64_t row, const T* x, T* out) {
  using V = typename Lanes<T>::Vector;
  constexpr int kCount = Lanes<T>::kCount;
  V sums[ROWS] = {}, more[ROWS] = {};
  int64_t j = 0;
  for (; j + kCount < length; j += 2 * kCount) {
    const V first = Load(x + j), second = Load(x + j + kCount);
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r) {
      sums[r] += Load(rows + r * row + j) * first;
      more[r] += Load(rows + r * row + j + kCount) * second;
    }
  }
  if (j < length) {
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r) sums[r] += Load(rows + r * row + j) * Load(x + j);
  }
#pragma GCC unroll 4
  for (int r = 0; r < ROWS; ++r) out[r] = SumOf<T>(sums[r] + more[r]);
}

template <class T>
void Dots(int64_t count, int64_t length, const T* rows, int64_t row, const T* x, T* out) {
  int64_t i = 0;
  for (; i + kStepRows <= count; i += kStepRows) DotsSome<kStepRows>(length, rows + i * row, row, x, out + i);
  for (; i < count; ++i) DotsSome<1>(length, rows + i * row, row, x, out + i);
}

template <int ROWS, class T>
inline void AddSome(int64_t length, const T* rows, int64_t row, const T* factors, int64_t factor_row, T* y) {
  constexpr int kCount = Lanes<T>::kCount;
  T factor[ROWS];
  for (int r = 0; r < ROWS; ++r) factor[r] = factors[r * factor_row];
  for (int64_t j = 0; j < length; j += kCount) {
    auto sum = Load(y + j);
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r) sum += Load(rows + r * row + j) * factor[r];
    Store(y + j, sum);
  }
}

template <class T>
void Add(int64_t count, int64_t length, const T* rows, int64_t row, const T* factors, int64_t factor_row, T* y) {
  int64_t i = 0;
  for (; i + kStepRows <= count; i += kStepRows) {
    AddSome<kStepRows>(length, rows + i * row, row, factors + i * factor_row, factor_row, y);
  }
  for (; i < count; ++i) AddSome<1>(length, rows + i * row, row, factors + i * factor_row, factor_row, y);
}

template <int ROWS, class T>
inline void StepSome(const BidiagonalStep<T>& s, int64_t at, T* y, T* sums) {
  T product[ROWS], changed[ROWS], own[ROWS];
  const T* a = s.a + at * s.a_row;
  T* beside = s.beside + at * kBeside;
  DotsSome<ROWS>(s.length, a, s.a_row, s.w, product);
  DotsSome<ROWS>(kBeside, beside, kBeside, s.products, changed);
  DotsSome<ROWS>(kBeside, beside, kBeside, s.first, own);
  for (int r = 0; r < ROWS; ++r) {
    const T x = -s.scale * (product[r] + changed[r]);
    beside[r * kBeside + s.place] = x;
    s.column[at + r] = a[r * s.a_row] + own[r] + x;
  }
  AddSome<ROWS>(s.length, a, s.a_row, s.column + at, 1, y);
  AddSome<ROWS>(kBeside, beside, kBeside, s.column + at, 1, sums);
}

template <class T>
void Step(const BidiagonalStep<T>& s, int64_t begin, int64_t end, T* y, T* sums) {
  int64_t r = begin;
  for (; r + kStepRows <= end; r += kStepRows) StepSome<kStepRows>(s, r, y, sums);
  for (; r < end; ++r) StepSome<1>(s, r, y, sums);
}

template <class T>
constexpr BidiagonalFunctions<T> BidiagonalOf() {
  return {Lanes<T>::kCount, Dots<T>, Add<T>, Step<T>};
}

constexpr BidiagonalKernels Bidiagonal() { return {BidiagonalOf<float>(), BidiagonalOf<double>()}; }

}  // namespace FERRULE_ISA
}  // namespace ferrule

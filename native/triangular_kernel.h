// Triangular systems with a few right-hand sides, of any size, as a part of small_matrix_kernel.h: the matrix is read
// once, where it lies, for all of them.
#pragma once

namespace ferrule {
namespace FERRULE_ISA {

template <class T>
inline T AddedLanes(typename Lanes<T>::Vector sums) {
  const auto index = Counted<T>();
#pragma GCC unroll 4
  for (int apart = Lanes<T>::kCount / 2; apart > 0; apart /= 2) sums += __builtin_shuffle(sums, index ^ apart);
  return sums[0];
}

// A X = B in place in COUNT vectors x. Each unknown is a dot product of a row with those before it.
template <class T, int COUNT>
void SolveByRows(bool lower, bool unit, int64_t n, const T* a, int64_t a_row, T* x, int64_t x_row) {
  using V = typename Lanes<T>::Vector;
  constexpr int64_t kCount = Lanes<T>::kCount;
  constexpr int kChains = COUNT >= 4 ? 1 : 2;  // of sums: an addition takes some cycles
  for (int64_t step = 0; step < n; ++step) {
    const int64_t i = lower ? step : n - 1 - step, end = lower ? i : n;
    int64_t k = lower ? 0 : i + 1;
    const T* row = a + i * a_row;
    V sums[COUNT][kChains] = {};
    for (; k + kChains * kCount <= end; k += kChains * kCount) {
#pragma GCC unroll 2
      for (int h = 0; h < kChains; ++h) {
        const V factors = Load(row + k + h * kCount);
#pragma GCC unroll 8
        for (int c = 0; c < COUNT; ++c) sums[c][h] += factors * Load(x + c * x_row + k + h * kCount);
      }
    }
    for (; k + kCount <= end; k += kCount) {
      const V factors = Load(row + k);
#pragma GCC unroll 8
      for (int c = 0; c < COUNT; ++c) sums[c][0] += factors * Load(x + c * x_row + k);
    }
#pragma GCC unroll 8
    for (int c = 0; c < COUNT; ++c) {
      T* const vector = x + c * x_row;
      T rest = vector[i] - AddedLanes<T>(kChains == 2 ? sums[c][0] + sums[c][kChains - 1] : sums[c][0]);
      for (int64_t l = k; l < end; ++l) rest -= row[l] * vector[l];
      vector[i] = unit ? rest : rest / row[i];
    }
  }
}

// The same for a matrix that is stored turned: A's columns are its rows, and what an unknown takes from those after it
// is added up in `sums`, COUNT rows of x_row numbers. `lower` is A itself.
template <class T, int COUNT>
void SolveByColumns(bool lower, bool unit, int64_t n, const T* a, int64_t a_row, T* x, int64_t x_row, T* sums) {
  using V = typename Lanes<T>::Vector;
  constexpr int64_t kCount = Lanes<T>::kCount;
  constexpr int kAtOnce = 4;  // columns of A, which share what is loaded and stored of the sums
  for (int64_t i = 0; i < COUNT * x_row; ++i) sums[i] = 0;
  for (int64_t done = 0; done < n; done += kAtOnce) {
    const int64_t count = n - done < kAtOnce ? n - done : kAtOnce;
    T found[kAtOnce][COUNT] = {};
    const T* columns[kAtOnce];
    for (int64_t s = 0; s < count; ++s) {
      const int64_t i = lower ? done + s : n - 1 - done - s;
      columns[s] = a + i * a_row;
      for (int c = 0; c < COUNT; ++c) {
        T rest = x[c * x_row + i] - sums[c * x_row + i];
        for (int64_t before = 0; before < s; ++before) rest -= columns[before][i] * found[before][c];
        x[c * x_row + i] = found[s][c] = unit ? rest : rest / columns[s][i];
      }
    }
    // What comes after these.
    int64_t k = lower ? done + count : 0;
    const int64_t end = lower ? n : n - done - count;
    if (count < kAtOnce) return;  // nothing does
    for (; k + kCount <= end; k += kCount) {
      V factors[kAtOnce];
#pragma GCC unroll 4
      for (int s = 0; s < kAtOnce; ++s) factors[s] = Load(columns[s] + k);
#pragma GCC unroll 8
      for (int c = 0; c < COUNT; ++c) {
        V sum = factors[0] * found[0][c] + factors[1] * found[1][c];
        sum += factors[2] * found[2][c] + factors[3] * found[3][c];
        Store(sums + c * x_row + k, Load(sums + c * x_row + k) + sum);
      }
    }
    for (; k < end; ++k) {
      for (int c = 0; c < COUNT; ++c) {
        for (int s = 0; s < kAtOnce; ++s) sums[c * x_row + k] += columns[s][k] * found[s][c];
      }
    }
  }
}

template <class T, int COUNT>
void SolveSome(bool lower, bool unit, bool turned, int64_t n, const T* a, int64_t a_row, T* x, int64_t x_row, T* sums) {
  if (turned) return SolveByColumns<T, COUNT>(lower, unit, n, a, a_row, x, x_row, sums);
  SolveByRows<T, COUNT>(lower, unit, n, a, a_row, x, x_row);
}

template <class T>
void SolveVectors(bool lower, bool unit, bool turned, int64_t n, const T* a, int64_t a_row, int64_t count, T* x,
                  int64_t x_row, T* sums) {
  for (; count >= 8; count -= 8, x += 8 * x_row) SolveSome<T, 8>(lower, unit, turned, n, a, a_row, x, x_row, sums);
  if (count & 4) SolveSome<T, 4>(lower, unit, turned, n, a, a_row, x, x_row, sums), x += 4 * x_row;
  if (count & 2) SolveSome<T, 2>(lower, unit, turned, n, a, a_row, x, x_row, sums), x += 2 * x_row;
  if (count & 1) SolveSome<T, 1>(lower, unit, turned, n, a, a_row, x, x_row, sums);
}

}  // namespace FERRULE_ISA
}  // namespace ferrule

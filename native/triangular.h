// Triangular solves on row-major matrices by halves: plain loops on small diagonal blocks, the own matrix product for
// the rest.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <type_traits>

#include "aligned_scratch.h"
#include "element.h"
#include "gemm_blocked.h"
#include "gemm_spread.h"
#include "small_matrix_tables.h"
#include "thread_pool.h"

namespace ferrule {

template <class T>
T Conjugate(T x) {
  if constexpr (std::is_floating_point_v<T>) {
    return x;
  } else {
    return std::conj(x);
  }
}

template <class T>
auto RealOf(T x) {
  if constexpr (std::is_floating_point_v<T>) {
    return x;
  } else {
    return x.real();
  }
}

template <class T>
constexpr Element kElementOf = std::is_same_v<T, float>                 ? Element::kF32
                               : std::is_same_v<T, double>              ? Element::kF64
                               : std::is_same_v<T, std::complex<float>> ? Element::kC64
                                                                        : Element::kC128;
template <class T>
constexpr Accumulator kAccumulatorOf = std::is_same_v<T, float>                 ? Accumulator::kF32
                                       : std::is_same_v<T, double>              ? Accumulator::kF64
                                       : std::is_same_v<T, std::complex<float>> ? Accumulator::kC64
                                                                                : Accumulator::kC128;

constexpr int64_t kLeaf = 16;  // rows that are solved or factored by plain loops

// Where to cut a matrix of n rows, more than kLeaf, in two.
inline int64_t Half(int64_t n) { return (n / 2 + kLeaf - 1) / kLeaf * kLeaf; }

// A product that is added to what is there, C[m][n] += A[m][k] * B[k][n]; its rows' strides are still to be set.
template <class T>
GemmShape ProductShape(int64_t m, int64_t n, int64_t k) {
  GemmShape s;
  s.a_type = s.b_type = s.d_type = kElementOf<T>;
  s.m = m, s.n = n, s.k = k;
  s.add = true;
  return s;
}

template <class T>
void AddProduct(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_row, const T* b, int64_t b_row, T* c,
                int64_t c_row) {
  GemmShape s = ProductShape<T>(m, n, k);
  s.a_row = a_row, s.b_row = b_row, s.d_row = c_row;
  BlockedGemm(s, kAccumulatorOf<T>, a, b, c, nullptr);
}

// to[m][n] = -from[m][n].
template <class T>
void Negate(int64_t m, int64_t n, const T* from, int64_t from_row, T* to) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) to[i * n + j] = -from[i * from_row + j];
  }
}

// In place in b[n][columns]: A X = B with a small triangular A, for some of the columns.
template <class T>
void SolveSmall(bool lower, bool unit, int64_t n, const T* a, int64_t a_row, T* b, int64_t b_row, int64_t columns) {
  for (int64_t step = 0; step < n; ++step) {
    int64_t i = lower ? step : n - 1 - step;
    T* __restrict to = b + i * b_row;
    for (int64_t k = lower ? 0 : i + 1; k < (lower ? i : n); ++k) {
      T factor = a[i * a_row + k];
      const T* __restrict from = b + k * b_row;
      for (int64_t c = 0; c < columns; ++c) to[c] -= factor * from[c];
    }
    if (unit) continue;
    T pivot = a[i * a_row + i];
    for (int64_t c = 0; c < columns; ++c) to[c] /= pivot;
  }
}

// In place in one vector x: A X = B. Each unknown is a dot product with those before it.
template <class T>
void SolveVector(bool lower, bool unit, int64_t n, const T* a, int64_t a_row, T* x) {
  if constexpr (std::is_floating_point_v<T>) {
    return SmallMatrix<T>().solve_vectors(lower, unit, false, n, a, a_row, 1, x, n, nullptr);
  }
  constexpr int64_t kLanes = 8;
  for (int64_t step = 0; step < n; ++step) {
    int64_t i = lower ? step : n - 1 - step, k = lower ? 0 : i + 1, end = lower ? i : n;
    const T* row = a + i * a_row;
    T sums[kLanes] = {};
    for (; k + kLanes <= end; k += kLanes) {
      for (int64_t l = 0; l < kLanes; ++l) sums[l] += row[k + l] * x[k + l];
    }
    for (int64_t l = 0; k + l < end; ++l) sums[l] += row[k + l] * x[k + l];
    for (int64_t half = kLanes / 2; half > 0; half /= 2) {
      for (int64_t l = 0; l < half; ++l) sums[l] += sums[l + half];
    }
    T rest = x[i] - sums[0];
    x[i] = unit ? rest : rest / row[i];
  }
}

// The rows that SolveLeaf solves: what vectors do, in the nearest cache.
template <class T>
constexpr int64_t kSolveLeaf = std::is_floating_point_v<T> ? kSmallMatrix : kLeaf;

// The same, along vectors as far as there are whole ones.
template <class T>
void SolveLeaf(bool lower, bool unit, int64_t n, const T* a, int64_t a_row, T* b, int64_t b_row, int64_t columns) {
  if constexpr (std::is_floating_point_v<T>) {
    int64_t whole = columns / kSmallLanes<T> * kSmallLanes<T>;
    if (whole) SmallMatrix<T>().solve_many(lower, unit, n, a, a_row, b, b_row, whole);
    b += whole, columns -= whole;
  }
  if (columns) SolveSmall(lower, unit, n, a, a_row, b, b_row, columns);
}

// In place in b[n][columns]: A X = B with a triangular A of which only the named triangle is read; `negated` is -A.
template <class T>
void SolveHalves(bool lower, bool unit, int64_t n, const T* a, const T* negated, int64_t a_row, T* b, int64_t b_row,
                 int64_t columns) {
  if (n <= kSolveLeaf<T>) return SolveLeaf(lower, unit, n, a, a_row, b, b_row, columns);
  int64_t half = Half(n), rest = n - half, corner = half * a_row + half;
  T* below = b + half * b_row;
  if (lower) {
    SolveHalves(lower, unit, half, a, negated, a_row, b, b_row, columns);
    AddProduct(rest, columns, half, negated + half * a_row, a_row, b, b_row, below, b_row);
    SolveHalves(lower, unit, rest, a + corner, negated + corner, a_row, below, b_row, columns);
  } else {
    SolveHalves(lower, unit, rest, a + corner, negated + corner, a_row, below, b_row, columns);
    AddProduct(half, columns, rest, negated + half, a_row, below, b_row, b, b_row);
    SolveHalves(lower, unit, half, a, negated, a_row, b, b_row, columns);
  }
}

// The same for any size: columns are independent, so they are what threads share.
template <class T>
void SolveTriangular(bool lower, bool unit, int64_t n, const T* a, int64_t a_row, T* b, int64_t columns,
                     ThreadPool* pool) {
  if (columns == 1) return SolveVector(lower, unit, n, a, a_row, b);
  constexpr int64_t kFewColumns = 64 / sizeof(T) * 2, kSmall = 1 << 16;  // what is worth a thread
  int64_t threads = pool && n * n * columns > kSmall ? pool->threads() : 1;
  int64_t parts = std::min(threads, (columns + kFewColumns - 1) / kFewColumns);
  int64_t width = parts ? ((columns + parts - 1) / parts + kFewColumns - 1) / kFewColumns * kFewColumns : 0;
  static thread_local AlignedScratch scratch;
  T* negated = nullptr;
  if (n > kSolveLeaf<T>) {
    constexpr int64_t kRows = 128;  // that are worth a thread
    negated = scratch.Get<T>(n * a_row);
    gemm::Spread(parts > 1 ? pool : nullptr, n, kRows, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        int64_t begin = lower ? 0 : i + 1, end = lower ? i : n;
        Negate(1, end - begin, a + i * a_row + begin, a_row, negated + i * a_row + begin);
      }
    });
  }
  auto some = [&](int64_t first, int64_t last) {
    for (int64_t c = first * width; c < std::min(columns, last * width); c += width) {
      SolveHalves(lower, unit, n, a, negated, a_row, b + c, columns, std::min(width, columns - c));
    }
  };
  if (parts > 1) {
    pool->For(parts, 1, some);
  } else {
    some(0, parts);
  }
}

// to[n][m] = from[m][n], or its conjugate.
template <class T>
void Transpose(const T* from, int64_t from_row, int64_t m, int64_t n, bool conjugate, T* to, int64_t to_row,
               ThreadPool* pool = nullptr) {
  constexpr int64_t kTile = std::is_floating_point_v<T> ? kSmallMatrix : 16;
  const int64_t across = (n + kTile - 1) / kTile, grain = std::max<int64_t>(1, 8 / std::max<int64_t>(1, across));
  gemm::Spread(pool, (m + kTile - 1) / kTile, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i0 = begin * kTile; i0 < std::min(m, end * kTile); i0 += kTile) {
      const int64_t rows = std::min(kTile, m - i0);
      for (int64_t j0 = 0; j0 < n; j0 += kTile) {
        const int64_t columns = std::min(kTile, n - j0);
        const T* tile = from + i0 * from_row + j0;
        T* turned = to + j0 * to_row + i0;
        if constexpr (std::is_floating_point_v<T>) {
          SmallMatrix<T>().turn(tile, from_row, rows, columns, turned, to_row);
        } else {
          for (int64_t j = 0; j < columns; ++j) {
            for (int64_t i = 0; i < rows; ++i) {
              const T x = tile[i * from_row + j];
              turned[j * to_row + i] = conjugate ? Conjugate(x) : x;
            }
          }
        }
      }
    }
  });
}

}  // namespace ferrule

// Blocked triangular solves and Cholesky factorizations on row-major matrices: plain loops on small diagonal blocks,
// the own matrix product for the rest.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "element.h"
#include "gemm_blocked.h"
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

constexpr int64_t kBlock = 48;  // rows of a diagonal block

// C[m][n] += A[m][k] * B[k][n].
template <class T>
void AddProduct(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_row, const T* b, int64_t b_row, T* c,
                int64_t c_row, ThreadPool* pool) {
  GemmShape s;
  s.a_type = s.b_type = s.d_type = kElementOf<T>;
  s.batch = 1, s.m = m, s.n = n, s.k = k;
  s.a_row = a_row, s.b_row = b_row, s.d_row = c_row;
  s.add = true;
  BlockedGemm(s, kAccumulatorOf<T>, a, b, c, pool);
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

// In place in b[n][columns]: A X = B with a triangular A, n x n, of which only the named triangle is read.
template <class T>
void SolveTriangular(bool lower, bool unit, int64_t n, const T* a, int64_t a_row, T* b, int64_t columns,
                     ThreadPool* pool) {
  constexpr int64_t kChunk = 4096 / sizeof(T);  // columns whose part of a block stays in the cache
  std::vector<T> negated;
  for (int64_t done = 0; done < n; done += kBlock) {
    int64_t size = std::min(kBlock, n - done), rest = n - done - size;
    int64_t begin = lower ? done : rest;
    auto some = [&](int64_t first, int64_t last) {
      for (int64_t c = first; c < last; ++c) {
        int64_t at = c * kChunk, count = std::min(kChunk, columns - at);
        SolveSmall(lower, unit, size, a + begin * a_row + begin, a_row, b + begin * columns + at, columns, count);
      }
    };
    int64_t chunks = (columns + kChunk - 1) / kChunk;
    if (pool) {
      pool->For(chunks, 1, some);
    } else {
      some(0, chunks);
    }
    if (rest == 0) break;
    int64_t other = lower ? begin + size : 0;
    negated.resize(static_cast<size_t>(rest * size));
    Negate(rest, size, a + other * a_row + begin, a_row, negated.data());
    AddProduct(rest, columns, size, negated.data(), size, b + begin * columns, columns, b + other * columns, columns,
               pool);
  }
}

// In place on the lower triangle of a small matrix: A = L * L^H. False when A is not positive definite.
template <class T>
bool CholeskySmall(T* a, int64_t a_row, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    T* row = a + j * a_row;
    for (int64_t i = 0; i < j; ++i) {
      const T* other = a + i * a_row;
      T sum = row[i];
      for (int64_t k = 0; k < i; ++k) sum -= row[k] * Conjugate(other[k]);
      row[i] = sum / RealOf(other[i]);
    }
    auto diagonal = RealOf(row[j]);
    for (int64_t k = 0; k < j; ++k) diagonal -= RealOf(row[k] * Conjugate(row[k]));
    if (!(diagonal > 0) || std::isinf(diagonal)) return false;
    row[j] = T(std::sqrt(diagonal));
  }
  return true;
}

// The same for any size; what is above the diagonal is overwritten.
template <class T>
bool CholeskyLower(T* a, int64_t n, ThreadPool* pool) {
  constexpr int64_t kStrip = 192;  // columns of the trailing matrix that are updated at once
  std::vector<T> diagonal, below, negated;
  for (int64_t j = 0; j < n; j += kBlock) {
    int64_t size = std::min(kBlock, n - j), first = j + size, rest = n - first;
    if (!CholeskySmall(a + j * n + j, n, size)) return false;
    if (rest == 0) break;
    // The panel below is X with X L^H = B, that is conj(L) X^T = B^T; X^T is also what the update needs.
    diagonal.resize(static_cast<size_t>(size * size));
    below.resize(static_cast<size_t>(size * rest));
    negated.resize(static_cast<size_t>(size * rest));
    for (int64_t r = 0; r < size; ++r) {
      for (int64_t c = 0; c < size; ++c) diagonal[r * size + c] = Conjugate(a[(j + r) * n + j + c]);
      for (int64_t i = 0; i < rest; ++i) below[r * rest + i] = a[(first + i) * n + j + r];
    }
    SolveTriangular(true, false, size, diagonal.data(), size, below.data(), rest, pool);
    for (int64_t i = 0; i < rest; ++i) {
      for (int64_t r = 0; r < size; ++r) {
        T x = below[r * rest + i];
        a[(first + i) * n + j + r] = x;
        negated[i * size + r] = -x;
      }
    }
    for (T& x : below) x = Conjugate(x);
    for (int64_t c = 0; c < rest; c += kStrip) {
      int64_t columns = std::min(kStrip, rest - c);
      AddProduct(rest - c, columns, size, negated.data() + c * size, size, below.data() + c, rest,
                 a + (first + c) * n + first + c, n, pool);
    }
  }
  return true;
}

}  // namespace ferrule

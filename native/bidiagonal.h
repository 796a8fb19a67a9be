// Making a square matrix bidiagonal by reflections from both sides, in blocks. The reflections of a block are applied
// to the rest of the matrix after it, as one product; within it each one needs a product of the rest with a vector, and
// of its transpose with another. Both are formed in one pass over the rows, which threads share: a row's product with
// the right vector gives its element of the next left one, which the row then is multiplied by.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "aligned_scratch.h"
#include "bidiagonal_tables.h"
#include "cpu_features.h"
#include "qr_reflections.h"
#include "thread_pool.h"

namespace ferrule {
namespace bidiagonal {

constexpr int64_t kStepWork = 1 << 15;  // elements of a pass that are worth a thread

inline const BidiagonalKernels& Kernels() {
#if defined(__x86_64__)
  if (ChosenIsa() == Isa::kAvx512) return kAvx512Bidiagonal;
  if (ChosenIsa() == Isa::kAvx2) return kAvx2Bidiagonal;
#endif
  return kBaselineBidiagonal;
}

template <class T>
const BidiagonalFunctions<T>& Functions() {
  if constexpr (std::is_same_v<T, float>) {
    return Kernels().f32;
  } else {
    return Kernels().f64;
  }
}

// From one row of n to the next: so that whole vectors can be read from anywhere in it.
template <class T>
int64_t RowOf(int64_t n) {
  const int64_t lanes = Functions<T>().lanes;
  return (n + lanes - 1) / lanes * lanes + lanes;
}

// A reflection 1 - tau v v^T that takes x to (beta, 0, …), with v[0] = 1.
template <class T>
struct Reflection {
  T beta = 0, tau = 0;
  T scale = 0;         // x times this is v, but for v[0]
  bool plain = false;  // whether that is so in the range of T
};

// x[1 …] becomes v[1 …], x[0] stays.
template <class T>
Reflection<T> Reflect(T* x, int64_t length) {
  constexpr T kLeastSquare = sizeof(T) == 4 ? T(0x1p-100) : T(0x1p-900);
  constexpr T kMostSquare = 1 / kLeastSquare;
  Reflection<T> h;
  T square(0);
  Functions<T>().dots(1, length, x, 0, x, &square);
  int exponent = 0;
  T rest(0);
  if (length > 1) Functions<T>().dots(1, length - 1, x + 1, 0, x + 1, &rest);
  h.plain = rest >= kLeastSquare && square <= kMostSquare;
  double alpha = x[0], squares = rest;
  if (!h.plain) {
    T largest(0);
    for (int64_t i = 1; i < length; ++i) largest = std::max(largest, std::abs(x[i]));
    if (!(largest > 0)) {
      h.beta = x[0];
      return h;
    }
    std::frexp(std::max(largest, std::abs(x[0])), &exponent);
    squares = 0;
    for (int64_t i = 1; i < length; ++i) {
      x[i] = std::ldexp(x[i], -exponent);
      squares += static_cast<double>(x[i]) * x[i];
    }
    alpha = std::ldexp(alpha, -exponent);
  }
  const double beta = -std::copysign(std::sqrt(alpha * alpha + squares), alpha);
  h.tau = static_cast<T>((beta - alpha) / beta);
  h.scale = static_cast<T>(1 / (alpha - beta));
  h.beta = static_cast<T>(std::ldexp(beta, exponent));
  for (int64_t i = 1; i < length; ++i) x[i] *= h.scale;
  return h;
}

// The rows of a[n][RowOf(n)], which end in zeros, become what LAPACK's gebrd leaves in the columns of the transposed
// matrix: above the diagonal the vectors of reflections from the right, below the subdiagonal those from the left.
// What they make of it has d on its diagonal and e below.
template <class T>
void Bidiagonalize(T* a, int64_t n, T* d, T* e, T* right_tau, T* left_tau, ThreadPool* pool) {
  static thread_local AlignedScratch scratch;
  const BidiagonalFunctions<T>& loops = Functions<T>();
  const int64_t a_row = RowOf<T>(n), threads = pool ? pool->threads() : 1;
  // The matrix has become a + beside C, from the current block on: C has the vectors w of the block's reflections from
  // the right and the products y of the matrix with those from the left, in turns.
  T* beside = scratch.Get<T>(n * kBeside + kBeside * a_row + (threads + 1) * a_row + (threads + 2) * kBeside);
  T *c = beside + n * kBeside, *column = c + kBeside * a_row, *ys = column + a_row, *sums = ys + threads * a_row;
  T *products = sums + threads * kBeside, *first = products + kBeside;
  std::fill_n(c, kBeside * a_row, T(0));
  for (int64_t block = 0; block < n; block += kBeside / 2) {
    const int64_t end = std::min(n, block + kBeside / 2);
    std::fill(beside + block * kBeside, beside + n * kBeside, T(0));
    std::fill_n(products, 2 * kBeside, T(0));
    for (int64_t i = block; i < end; ++i) {
      const int64_t place = 2 * (i - block), length = n - i, below = length - 1;
      T *row = a + i * a_row + i, *under = row + a_row, *w = c + place * a_row + i, *y = w + a_row + 1;
      loops.add(place, length, c + i, a_row, beside + i * kBeside, 1, row);
      const Reflection<T> right = Reflect(row, length);
      d[i] = right.beta, right_tau[i] = right.tau;
      if (below == 0) break;
      w[0] = T(1);
      std::copy(row + 1, row + length, w + 1);
      loops.dots(place, length, c + i, a_row, w, products);
      for (int64_t q = 0; q < place; ++q) first[q] = c[q * a_row + i];
      T* own = beside + (i + 1) * kBeside;
      const BidiagonalStep<T> step{under, a_row, length, w, right.tau, own, place, products, first, column};
      const int64_t parts = std::clamp<int64_t>(below * length / kStepWork, 1, threads);
      gemm::Spread(parts > 1 ? pool : nullptr, parts, 1, [&](int64_t from, int64_t to) {
        for (int64_t p = from; p < to; ++p) {
          std::fill_n(ys + p * a_row, a_row, T(0));
          std::fill_n(sums + p * kBeside, kBeside, T(0));
          loops.step(step, gemm::Border(below, parts, 4, p), gemm::Border(below, parts, 4, p + 1), ys + p * a_row,
                     sums + p * kBeside);
        }
      });
      std::fill_n(column + below, loops.lanes, T(0));
      const T alpha = column[0];
      const Reflection<T> left = Reflect(column, below);
      column[0] = T(1);
      e[i] = left.beta, left_tau[i] = left.tau;
      if (left.tau == 0) {
        std::fill_n(y, below, T(0));
      } else if (left.plain) {
        // The sums are of the column before it became a vector v of which the first element is one.
        const T more = 1 - alpha * left.scale;
        for (int64_t p = 1; p < parts; ++p) {
          for (int64_t j = 0; j < length; ++j) ys[j] += ys[p * a_row + j];
          for (int64_t q = 0; q < kBeside; ++q) sums[q] += sums[p * kBeside + q];
        }
        for (int64_t j = 0; j < below; ++j) y[j] = ys[j + 1] * left.scale + under[j + 1] * more;
        for (int64_t q = 0; q <= place; ++q) sums[q] = sums[q] * left.scale + own[q] * more;
      } else {
        std::fill_n(y, below, T(0));
        std::fill_n(sums, kBeside, T(0));
        loops.add(below, below, under + 1, a_row, column, 1, y);
        loops.add(below, kBeside, own, kBeside, column, 1, sums);
      }
      if (left.tau != 0) {
        loops.add(place + 1, below, c + i + 1, a_row, sums, 1, y);
        for (int64_t j = 0; j < below; ++j) y[j] *= left.tau;
      }
      for (int64_t r = 0; r < below; ++r) {
        own[r * kBeside + place + 1] = -column[r];
        under[r * a_row] = column[r];
      }
    }
    if (end < n) {
      Multiply(n - end, n - end, 2 * (end - block), beside + end * kBeside, kBeside, 1, c + end, a_row, true,
               a + end * a_row + end, a_row, pool);
    }
  }
}

}  // namespace bidiagonal
}  // namespace ferrule

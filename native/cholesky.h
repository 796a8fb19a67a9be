// Cholesky factorizations of row-major matrices: blocks of columns, each of which first loses what those before it
// contribute (the own matrix product), then has its diagonal block factored, then its rows below solved (triangular.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <type_traits>

#include "aligned_scratch.h"
#include "gemm_spread.h"
#include "small_matrix_tables.h"
#include "triangular.h"

namespace ferrule {

// In place on the lower triangle of a small matrix, at most kLeaf rows: A = L * L^H. False when A is not positive
// definite.
template <class T>
bool CholeskySmall(T* a, int64_t a_row, int64_t n) {
  // Rows of L^T here are its columns, which lie apart in memory. What is below the diagonal here is never looked at.
  T turned[kLeaf][kLeaf];
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) turned[j][i] = j <= i ? a[i * a_row + j] : T(0);
  }
  for (int64_t i = n; i < kLeaf; ++i) {
    for (int64_t j = 0; j < n; ++j) turned[j][i] = T(0);
  }
  for (int64_t j = 0; j < n; ++j) {
    auto diagonal = RealOf(turned[j][j]);
    if (!(diagonal > 0) || std::isinf(diagonal)) return false;
    diagonal = std::sqrt(diagonal);
    T column[kLeaf];  // a copy, which no store to `turned` can change
    for (int64_t i = 0; i < kLeaf; ++i) column[i] = turned[j][i] / diagonal;
    column[j] = T(diagonal);
    std::copy_n(column, kLeaf, turned[j]);
    for (int64_t k = j + 1; k < n; ++k) {
      T factor = Conjugate(column[k]);
      for (int64_t i = 0; i < kLeaf; ++i) turned[k][i] -= factor * column[i];
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j <= i; ++j) a[i * a_row + j] = turned[j][i];
  }
  return true;
}

// to[columns][rows] = from[rows][columns].
template <class T>
void Turned(const T* from, int64_t from_row, int64_t rows, int64_t columns, T* to, int64_t to_row) {
  if constexpr (std::is_floating_point_v<T>) {
    SmallMatrix<T>().turn(from, from_row, rows, columns, to, to_row);
  } else {
    Transpose(from, from_row, rows, columns, false, to, to_row);
  }
}

// In place in b[rows][n]: X L^H = B, with conj(L) and its negative.
template <class T>
void SolveRows(int64_t n, const T* factor, const T* negated, int64_t factor_row, int64_t rows, T* b, int64_t b_row) {
  constexpr int64_t kColumns = kSolveLeaf<T>;
  // Rows that are turned at once, so that vectors solve, and back.
  constexpr int64_t kRows = 64, kFew = std::is_floating_point_v<T> ? kSmallLanes<T> : 8;
  static thread_local AlignedScratch scratch;
  T* turned = scratch.Get<T>(kRows * kColumns);
  for (int64_t c = 0; c < n; c += kColumns) {
    const int64_t columns = std::min(kColumns, n - c);
    if (c > 0) {
      GemmShape s = ProductShape<T>(rows, columns, c);
      s.a_row = s.d_row = b_row;
      s.b_row = 1, s.b_col = factor_row;
      BlockedGemm(s, kAccumulatorOf<T>, b, negated + c * factor_row, b + c, nullptr);
    }
    for (int64_t r = 0; r < rows; r += kRows) {
      const int64_t count = std::min(kRows, rows - r), padded = (count + 15) / 16 * 16;
      T* block = b + r * b_row + c;
      Turned(block, b_row, count, columns, turned, padded);
      for (int64_t i = 0; count < padded && i < columns; ++i) {
        std::fill(turned + i * padded + count, turned + (i + 1) * padded, T(0));
      }
      SolveLeaf(true, false, columns, factor + c * factor_row + c, factor_row, turned, padded, padded);
      for (int64_t i = 0; i < count; i += kFew) {
        Turned(turned + i, padded, columns, std::min(kFew, count - i), block + i * b_row, b_row);
      }
    }
  }
}

// Rows of what CholeskyLower keeps aside do not share sets of the cache.
constexpr int64_t AsideRow(int64_t columns) { return columns + 16; }

// Columns in a block of a matrix of more than `leaf` rows, fewer than those. Wide blocks read the rows seldom; narrow
// ones leave less to their diagonal.
inline int64_t CholeskyBlock(int64_t n, int64_t leaf) {
  return std::max(leaf, int64_t{n > 1024 ? 256 : n > 256 ? 128 : n > 64 ? 64 : 0});
}

// The elements that CholeskyLower keeps aside.
inline int64_t CholeskyAside(int64_t n, int64_t leaf) {
  const int64_t width = CholeskyBlock(n, leaf);
  return n <= leaf ? 0 : width * std::max(AsideRow(n), 2 * AsideRow(width));
}

// In place on the lower triangle: A = L L^H; what is above the diagonal is overwritten. False when A is not positive
// definite. `small(a, a_row, n)` factors up to `leaf` rows.
template <class T, class F>
bool CholeskyLower(T* a, int64_t a_row, int64_t n, int64_t leaf, const F& small, T* aside, ThreadPool* pool) {
  if (n <= leaf) return small(a, a_row, n);
  const int64_t width = CholeskyBlock(n, leaf);
  constexpr int64_t kThreadWork = 1 << 17, kThreadCopy = 1 << 14;  // multiply-adds and elements that are worth a thread
  for (int64_t j = 0; j < n; j += width) {
    const int64_t columns = std::min(width, n - j), below = n - j - columns;
    T* block = a + j * a_row + j;
    if (j > 0) {
      // The rows beside the diagonal block are the right side: -conj(L)^T.
      const int64_t right_row = AsideRow(j);
      gemm::Spread(pool, columns, kThreadCopy / j + 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const T* row = a + (j + i) * a_row;
          std::transform(row, row + j, aside + i * right_row, [](T x) { return -Conjugate(x); });
        }
      });
      gemm::Spread(pool, n - j, kThreadWork / (columns * j) + 1, [&](int64_t begin, int64_t end) {
        // Of rows of the diagonal block, what is left of the diagonal.
        const int64_t first = (j + begin) * a_row;
        GemmShape s = ProductShape<T>(end - begin, std::min(columns, end), j);
        s.a_row = s.d_row = a_row;
        s.b_row = 1, s.b_col = right_row;
        BlockedGemm(s, kAccumulatorOf<T>, a + first, aside, a + first + j, nullptr);
      });
    }
    if (!CholeskyLower(block, a_row, columns, leaf, small, aside, pool)) return false;
    if (below == 0) break;
    const int64_t factor_row = AsideRow(columns);
    T *factor = aside, *negated = aside + columns * factor_row;
    for (int64_t i = 0; i < columns; ++i) {
      const T* row = block + i * a_row;
      std::transform(row, row + i + 1, factor + i * factor_row, [](T x) { return Conjugate(x); });
      std::transform(row, row + i + 1, negated + i * factor_row, [](T x) { return -Conjugate(x); });
    }
    gemm::Spread(pool, below, kThreadWork / (columns * columns) + 1, [&](int64_t begin, int64_t end) {
      SolveRows(columns, factor, negated, factor_row, end - begin, block + (columns + begin) * a_row, a_row);
    });
  }
  return true;
}

}  // namespace ferrule

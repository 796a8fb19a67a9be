// Blocks of Householder reflections of row-major matrices: 1 - V T V^T with the vectors in V's columns and a triangular
// T, so that nearly all that they are applied by is the own matrix product.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aligned_scratch.h"
#include "gemm_blocked.h"
#include "gemm_spread.h"
#include "qr_tables.h"
#include "triangular.h"

namespace ferrule {

constexpr int64_t kAddedRows = 64;  // of a product, before they meet the others: fewer digits are lost

// D = A B, or D += A B. A's columns may lie apart, B's and D's do not.
template <class T>
void Multiply(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_row, int64_t a_col, const T* b, int64_t b_row,
              bool add, T* d, int64_t d_row, ThreadPool* pool = nullptr) {
  GemmShape s = ProductShape<T>(m, n, k);
  s.a_row = a_row, s.a_col = a_col, s.b_row = b_row, s.d_row = d_row;
  for (int64_t from = 0; from < k; from += kAddedRows) {
    s.add = add || from > 0;
    s.k = std::min(kAddedRows, k - from);
    BlockedGemm(s, kAccumulatorOf<T>, a + from * a_col, b + from * b_row, d, pool);
  }
}

// Reflections `rows` long, the first of which has its one in the first row. All pointers are to memory of the caller's.
template <class T>
class Reflections {
 public:
  // The room for `most` reflections.
  static int64_t Elements(int64_t rows, int64_t most) { return rows * most + 4 * most * most + kPadding; }

  Reflections(int64_t rows, int64_t most, T* memory)
      : rows_(rows),
        most_(most),
        v_(memory),
        t_(v_ + rows * most),
        adjoint_(t_ + most * most),
        aside_(adjoint_ + most * most) {}

  int64_t count() const { return count_; }
  int64_t rows() const { return rows_; }

  // The vectors of `count` more, below the diagonal of `a`, which starts at the first one's diagonal.
  void Add(const T* a, int64_t a_row, int64_t count, const T* tau, ThreadPool* pool) {
    const int64_t before = count_;
    for (int64_t i = 0; i < rows_; ++i) {
      T* row = v_ + i * most_ + before;
      const int64_t r = i - before;  // in `a`
      const int64_t there = std::clamp<int64_t>(r, 0, count);
      if (there) std::copy_n(a + r * a_row, there, row);
      if (there < count) {
        std::fill(row + there, row + count, T(0));
        if (r >= 0) row[there] = T(1);
      }
    }
    count_ += count;
    AddToT(before, tau, pool);
  }

  // C[rows][n] becomes Q C, or Q^T C.
  void ApplyLeft(bool adjoint, T* c, int64_t c_row, int64_t n, ThreadPool* pool) const {
    static thread_local AlignedScratch scratch;
    T* w = scratch.Get<T>(2 * count_ * n);
    T* turned = w + count_ * n;
    Multiply(count_, n, rows_, v_, 1, most_, c, c_row, false, w, n, pool);
    Multiply(count_, n, count_, adjoint ? adjoint_ : t_, most_, 1, w, n, false, turned, n, pool);
    Multiply(rows_, n, count_, v_, most_, 1, turned, n, true, c, c_row, pool);
  }

  // C[m][rows] becomes C Q, or C Q^T.
  void ApplyRight(bool adjoint, T* c, int64_t c_row, int64_t m, ThreadPool* pool) const {
    static thread_local AlignedScratch scratch;
    T* w = scratch.Get<T>(2 * count_ * m);
    T* turned = w + count_ * m;
    Multiply(m, count_, rows_, c, c_row, 1, v_, most_, false, w, count_, pool);
    Multiply(m, count_, count_, w, count_, 1, adjoint ? adjoint_ : t_, most_, false, turned, count_, pool);
    GemmShape s = ProductShape<T>(m, rows_, count_);
    s.a_row = count_, s.b_row = 1, s.b_col = most_, s.d_row = c_row;
    BlockedGemm(s, kAccumulatorOf<T>, turned, v_, c, pool);
  }

  // Q C where the first rows of C, as many as there are reflections, are zero; they need not be there yet.
  void ApplyBelow(T* c, int64_t c_row, int64_t n) const {
    static thread_local AlignedScratch scratch;
    T* w = scratch.Get<T>(2 * count_ * n);
    T* turned = w + count_ * n;
    const int64_t below = rows_ - count_;
    if (below == 0) {
      for (int64_t i = 0; i < count_; ++i) std::fill_n(c + i * c_row, n, T(0));
      return;
    }
    Multiply(count_, n, below, v_ + count_ * most_, 1, most_, c + count_ * c_row, c_row, false, w, n);
    Multiply(count_, n, count_, t_, most_, 1, w, n, false, turned, n);
    Multiply(count_, n, count_, v_, most_, 1, turned, n, false, c, c_row);
    Multiply(below, n, count_, v_ + count_ * most_, most_, 1, turned, n, true, c + count_ * c_row, c_row);
  }

  // The first columns of Q, as many as there are reflections.
  void Columns(T* q, int64_t q_row, ThreadPool* pool) const {
    static thread_local AlignedScratch scratch;
    T* w = scratch.Get<T>(count_ * count_);
    GemmShape s = ProductShape<T>(count_, count_, count_);
    s.a_row = most_, s.b_row = 1, s.b_col = most_, s.d_row = count_;
    s.add = false;
    BlockedGemm(s, kAccumulatorOf<T>, t_, v_, w, pool);
    Multiply(rows_, count_, count_, v_, most_, 1, w, count_, false, q, q_row, pool);
    for (int64_t i = 0; i < count_; ++i) q[i * q_row + i] += T(1);
  }

 private:
  static constexpr int64_t kPadding = 64;

  // T's columns of those from `before` on: T[:, i] = -tau_i T V^T v_i above the diagonal. It is -T that is kept.
  void AddToT(int64_t before, const T* tau, ThreadPool* pool) {
    const int64_t count = count_ - before;
    T *products = aside_, *part = aside_ + count_ * count;
    // The rows above are zero in the new vectors.
    Multiply(count_, count, rows_ - before, v_ + before * most_, 1, most_, v_ + before * most_ + before, most_, false,
             products, count, pool);
    T* corner = t_ + before * most_ + before;
    const T* own = products + before * count;
    // Row r of what T's columns are multiplied by so far is kept where its elements come to lie.
    for (int64_t r = 0; r < count; ++r) std::fill_n(corner + r * most_, count, T(0));
    for (int64_t i = 0; i < count; ++i) {
      const T* with = own + i * count;
      corner[i * most_ + i] = T(1);
      for (int64_t r = 0; r <= i; ++r) {
        T* sums = corner + r * most_;
        const T x = sums[i] *= -tau[i];
        for (int64_t c = i + 1; c < count; ++c) sums[c] += x * with[c];
      }
    }
    if (before) {
      Multiply(before, count, before, t_, most_, 1, products, count, false, part, count);
      Multiply(before, count, count, part, count, 1, corner, most_, false, t_ + before, most_);
      for (int64_t r = before; r < count_; ++r) std::fill_n(t_ + r * most_, before, T(0));
    }
    for (int64_t r = 0; r < count_; ++r) {
      for (int64_t c = r < before ? before : 0; c < count_; ++c) {
        adjoint_[c * most_ + r] = t_[r * most_ + c];
      }
    }
  }

  int64_t rows_, most_, count_ = 0;
  T *v_, *t_, *adjoint_, *aside_;
};

}  // namespace ferrule

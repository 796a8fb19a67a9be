// Singular values and vectors of an upper bidiagonal matrix by halves (Gu and Eisenstat), as LAPACK's bdsdc finds them
// and with its routines for small parts, for what can be left out, and for each new value. Parts are found by several
// threads at once; where there are fewer parts than threads all share one: its values, and the products of its vectors.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "aligned_scratch.h"
#include "blas.h"
#include "gemm_blocked.h"
#include "gemm_spread.h"
#include "thread_pool.h"
#include "triangular.h"

namespace ferrule {
namespace bidiagonal {

constexpr int64_t kKept = 2048;  // rows from which memory beside a matrix is given back after use

template <class T>
class Vectors {
 public:
  // Whether LAPACK's routines are there.
  explicit operator bool() const { return lasd0_ && lasd2_ && lasd4_; }

  // B with `d` on its diagonal and `e` above becomes X diag(d) Y^T: the rows of xt are X's columns. Returns what LAPACK
  // calls info: zero where all went well.
  int Find(int64_t n, T* d, T* e, T* xt, T* y, int64_t y_row, ThreadPool* pool) const {
    static thread_local AlignedScratch kept;
    AlignedScratch freed, &scratch = n > kKept ? freed : kept;
    std::vector<int> sorted(static_cast<size_t>(n));
    T *u = scratch.Get<T>(2 * n * n), *v = u + n * n;
    std::fill_n(u, 2 * n * n, T(0));
    for (int64_t i = 0; i < n; ++i) u[i * n + i] = v[i * n + i] = T(1);
    T largest(0);
    for (int64_t i = 0; i < n; ++i) largest = std::max({largest, std::abs(d[i]), i + 1 < n ? std::abs(e[i]) : T(0)});
    Whole whole{n, d, e, u, v, sorted.data()};
    int info = 0;
    if (largest > 0) {
      const T least = T(0.9) * std::numeric_limits<T>::epsilon() / 2;
      for (int64_t i = 0; i < n; ++i) {
        d[i] /= largest;
        if (std::abs(d[i]) < least) d[i] = std::copysign(least, d[i]);
        if (i + 1 < n) e[i] /= largest;
      }
      for (int64_t start = 0, i = 0; i < n && info == 0; ++i) {
        if (i + 1 < n && std::abs(e[i]) >= least) continue;
        info = Part(whole, start, i + 1 - start, pool);
        start = i + 1;
      }
      for (int64_t i = 0; i < n; ++i) d[i] *= largest;
    }
    std::iota(sorted.begin(), sorted.end(), 0);
    std::stable_sort(sorted.begin(), sorted.end(), [&](int a, int b) { return d[a] > d[b]; });
    gemm::Spread(pool, n, kRows, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        std::copy_n(u + sorted[static_cast<size_t>(i)] * n, n, xt + i * n);
        for (int64_t c = 0; c < n; ++c) y[i * y_row + c] = v[i * n + sorted[static_cast<size_t>(c)]];
      }
    });
    std::sort(d, d + n, std::greater<T>());
    return info;
  }

 private:
  using Lasd0 = void (*)(const int* n, const int* more, T* d, T* e, T* u, const int* ldu, T* vt, const int* ldvt,
                         const int* small, int* integers, T* work, int* info);
  using Lasd2 = void (*)(const int* left, const int* right, const int* more, int* k, T* d, T* z, const T* alpha,
                         const T* beta, T* u, const int* ldu, T* vt, const int* ldvt, T* sigma, T* u2, const int* ldu2,
                         T* vt2, const int* ldvt2, int* idxp, int* idx, int* idxc, int* idxq, int* types, int* info);
  using Lasd4 = void (*)(const int* n, const int* i, const T* d, const T* z, T* delta, const T* rho, T* sigma, T* work,
                         int* info);

  static constexpr int64_t kLeaf = 64;   // rows of a part that is LAPACK's alone
  static constexpr int64_t kRows = 64;   // of copies that are worth a thread
  static constexpr int64_t kRoots = 16;  // of an equation that are worth a thread
  static constexpr int kSmall = 25;      // rows that LAPACK does not halve

  // To LAPACK, whose columns are adjacent, u is U and v is V^T: here u's rows are U's columns, and v is V.
  struct Whole {
    int64_t n;
    T *d, *e, *u, *v;
    int* order;  // of a part's values, from the least on, counted from one
  };
  struct Node {
    int64_t start, count, more;  // more: whether there is one column more than rows
  };

  template <class F>
  static F Routine(const char* name) {
    return reinterpret_cast<F>(BlasRoutine(kBlasLetter<T> + std::string(name)));
  }

  int Part(const Whole& whole, int64_t start, int64_t count, ThreadPool* pool) const {
    std::vector<std::vector<Node>> levels{{Node{start, count, 0}}};
    while (true) {
      std::vector<Node> next;
      for (const Node& node : levels.back()) {
        if (node.count <= kLeaf) continue;
        const int64_t left = node.count / 2;
        next.push_back({node.start, left, 1});
        next.push_back({node.start + left + 1, node.count - left - 1, node.more});
      }
      if (next.empty()) break;
      levels.push_back(std::move(next));
    }
    const int64_t threads = pool ? pool->threads() : 1;
    std::vector<int> failed;
    for (size_t level = levels.size(); level-- > 0;) {
      const std::vector<Node>& nodes = levels[level];
      const auto parts = static_cast<int64_t>(nodes.size());
      failed.assign(nodes.size(), 0);
      auto one = [&](int64_t i, ThreadPool* inner) {
        const Node& node = nodes[static_cast<size_t>(i)];
        failed[static_cast<size_t>(i)] = node.count <= kLeaf ? Leaf(whole, node) : Join(whole, node, inner);
      };
      if (parts >= threads) {
        gemm::Spread(pool, parts, 1, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) one(i, nullptr);
        });
      } else {
        for (int64_t i = 0; i < parts; ++i) one(i, pool);
      }
      for (int info : failed) {
        if (info != 0) return info;
      }
    }
    return 0;
  }

  int Leaf(const Whole& whole, const Node& node) const {
    static thread_local AlignedScratch scratch, integer_scratch;
    const int count = static_cast<int>(node.count), more = static_cast<int>(node.more), n = static_cast<int>(whole.n);
    const int64_t columns = node.count + node.more, corner = node.start * (whole.n + 1);
    int info = 0;
    T* d = whole.d + node.start;
    lasd0_(&count, &more, d, whole.e + node.start, whole.u + corner, &n, whole.v + corner, &n, &kSmall,
           integer_scratch.Get<int>(8 * columns), scratch.Get<T>(3 * columns * columns + 2 * columns), &info);
    Order(whole, node);
    return info;
  }

  static void Order(const Whole& whole, const Node& node) {
    const T* d = whole.d + node.start;
    int* order = whole.order + node.start;
    std::iota(order, order + node.count, 1);
    std::stable_sort(order, order + node.count, [&](int a, int b) { return d[a - 1] < d[b - 1]; });
  }

  // D = A B or D += A B
  static void Product(int64_t m, int64_t n, int64_t k, const T* a, int64_t a_row, const T* b, int64_t b_row,
                      int64_t b_col, bool add, T* d, int64_t d_row, ThreadPool* pool) {
    if (k == 0) {
      for (int64_t i = 0; i < m && !add; ++i) std::fill_n(d + i * d_row, n, T(0));
      return;
    }
    GemmShape s = ProductShape<T>(m, n, k);
    s.a_row = a_row, s.b_row = b_row, s.b_col = b_col, s.d_row = d_row, s.add = add;
    BlockedGemm(s, kAccumulatorOf<T>, a, b, d, pool);
  }

  // The values and vectors of a part from those of its halves, between which there is one row.
  int Join(const Whole& whole, const Node& node, ThreadPool* pool) const {
    static thread_local AlignedScratch kept, integer_scratch;
    AlignedScratch freed, &scratch = node.count > kKept ? freed : kept;
    const int64_t n = node.count, m = n + node.more, upper = n / 2, lower = n - upper - 1, row = whole.n;
    const int64_t center = node.start + upper;
    T *d = whole.d + node.start, *u = whole.u + node.start * (row + 1), *v = whole.v + node.start * (row + 1);
    T* z = scratch.Get<T>(2 * m + n * n + m * m + 2 * n * n);
    T *sigma = z + m, *u2 = sigma + m, *v2 = u2 + n * n, *left = v2 + m * m, *right = left + n * n;
    int *idxp = integer_scratch.Get<int>(4 * n), *idx = idxp + n, *idxc = idx + n, *types = idxc + n;
    T alpha = whole.d[center], beta = whole.e[center], largest = std::max(std::abs(alpha), std::abs(beta));
    d[upper] = T(0);
    for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(d[i]));
    for (int64_t i = 0; i < n; ++i) d[i] /= largest;
    alpha /= largest, beta /= largest;
    int count = 0, info = 0;
    {
      const int nl = static_cast<int>(upper), nr = static_cast<int>(lower), more = static_cast<int>(node.more);
      const int whole_row = static_cast<int>(row), ldu2 = static_cast<int>(n), ldvt2 = static_cast<int>(m);
      lasd2_(&nl, &nr, &more, &count, d, z, &alpha, &beta, u, &whole_row, v, &whole_row, sigma, u2, &ldu2, v2, &ldvt2,
             idxp, idx, idxc, whole.order + node.start, types, &info);
    }
    if (info != 0) return info;
    const int64_t k = count;
    if (k == 1) {
      d[0] = std::abs(z[0]);
      for (int64_t i = 0; i < n; ++i) u[i] = z[0] > 0 ? u2[i] : -u2[i];
      for (int64_t i = 0; i < m; ++i) v[i * row] = v2[i * m];
    } else {
      info = Secular(k, sigma, z, idxc, d, left, right, pool);
      if (info != 0) return info;
      // Of the old vectors the first belongs to the row between the halves, `first` to the upper half, `second` to the
      // lower one and the others to both.
      const int64_t first = types[0], second = types[1], both = types[2], from = 1 + first;
      Product(k, upper, first, left + 1, k, u2 + n, n, 1, false, u, row, pool);
      Product(k, upper, both, left + from + second, k, u2 + (from + second) * n, n, 1, true, u, row, pool);
      for (int64_t j = 0; j < k; ++j) u[j * row + upper] = left[j * k];
      Product(k, lower, second + both, left + from, k, u2 + from * n + upper + 1, n, 1, false, u + upper + 1, row,
              pool);
      Product(upper + 1, k, from, v2, m, right, 1, k, false, v, row, pool);
      Product(upper + 1, k, both, v2 + from + second, m, right + from + second, 1, k, true, v, row, pool);
      T *v2_lower = v2 + (upper + 1) * m, *v_lower = v + (upper + 1) * row;
      for (int64_t i = 0; i < m - upper - 1; ++i) v2_lower[i * m + first] = v2_lower[i * m];
      for (int64_t j = 0; j < k; ++j) right[j * k + first] = right[j * k];
      Product(m - upper - 1, k, 1 + second + both, v2_lower + first, m, right + first, 1, k, false, v_lower, row, pool);
    }
    for (int64_t i = 0; i < n; ++i) d[i] *= largest;
    Order(whole, node);
    return 0;
  }

  // The k values d of a diagonal matrix sigma to which a row z is added, and the vectors of that: in left[j] and
  // right[j] those of value j, in the order of elements that idxc says. The vectors are those of a row that is
  // computed from the values, so that they are orthogonal however close these are.
  int Secular(int64_t k, const T* sigma, T* z, const int* idxc, T* d, T* left, T* right, ThreadPool* pool) const {
    const int size = static_cast<int>(k);
    double squares = 0;
    for (int64_t i = 0; i < k; ++i) squares += static_cast<double>(z[i]) * z[i];
    const double norm = std::sqrt(squares);
    std::vector<T> unit(static_cast<size_t>(k)), own(static_cast<size_t>(k));
    for (int64_t i = 0; i < k; ++i) unit[static_cast<size_t>(i)] = static_cast<T>(z[i] / norm);
    const T rho = static_cast<T>(norm) * static_cast<T>(norm);
    std::vector<int> failed(static_cast<size_t>(k));
    gemm::Spread(pool, k, kRoots, [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) {
        const int number = static_cast<int>(j) + 1;
        lasd4_(&size, &number, sigma, unit.data(), left + j * k, &rho, d + j, right + j * k,
               &failed[static_cast<size_t>(j)]);
      }
    });
    for (int info : failed) {
      if (info != 0) return info;
    }
    gemm::Spread(pool, k, kRoots, [&](int64_t begin, int64_t end) {
      const T *last_left = left + (k - 1) * k, *last_right = right + (k - 1) * k;
      for (int64_t i = begin; i < end; ++i) own[static_cast<size_t>(i)] = last_left[i] * last_right[i];
      for (int64_t j = 0; j + 1 < k; ++j) {
        const T* __restrict differences = left + j * k, * __restrict sums = right + j * k;
        T* __restrict to = own.data();
        const T before = sigma[j], after = sigma[j + 1];
        const int64_t middle = std::clamp(j + 1, begin, end);
        for (int64_t i = begin; i < middle; ++i) {
          to[i] *= differences[i] * sums[i] / (sigma[i] - after) / (sigma[i] + after);
        }
        for (int64_t i = middle; i < end; ++i) {
          to[i] *= differences[i] * sums[i] / (sigma[i] - before) / (sigma[i] + before);
        }
      }
      for (int64_t i = begin; i < end; ++i) {
        T& x = own[static_cast<size_t>(i)];
        x = std::copysign(std::sqrt(std::abs(x)), z[i]);
      }
    });
    gemm::Spread(pool, k, kRoots, [&](int64_t begin, int64_t end) {
      std::vector<T> of_left(static_cast<size_t>(k)), of_right(static_cast<size_t>(k));
      T *x = of_left.data(), *y = of_right.data();
      for (int64_t j = begin; j < end; ++j) {
        T *to_left = left + j * k, *to_right = right + j * k;
        for (int64_t i = 0; i < k; ++i) {
          y[i] = own[static_cast<size_t>(i)] / to_left[i] / to_right[i];
          x[i] = sigma[i] * y[i];
        }
        x[0] = T(-1);
        const T left_scale = 1 / Norm(x, k), right_scale = 1 / Norm(y, k);
        to_left[0] = x[0] * left_scale, to_right[0] = y[0] * right_scale;
        for (int64_t i = 1; i < k; ++i) {
          const int64_t at = idxc[i] - 1;
          to_left[i] = x[at] * left_scale, to_right[i] = y[at] * right_scale;
        }
      }
    });
    return 0;
  }

  static T Norm(const T* x, int64_t count) {
    T largest(0);
    for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(x[i]));
    if (!(largest > 0)) return T(1);
    constexpr int64_t kLanes = 8;
    double sums[kLanes] = {};
    int64_t i = 0;
    const T scale = 1 / largest;
    for (; i + kLanes <= count; i += kLanes) {
      for (int64_t l = 0; l < kLanes; ++l) {
        const double part = x[i + l] * scale;
        sums[l] += part * part;
      }
    }
    for (; i < count; ++i) sums[0] += static_cast<double>(x[i] * scale) * (x[i] * scale);
    return largest * static_cast<T>(std::sqrt(std::accumulate(sums, sums + kLanes, 0.0)));
  }

  Lasd0 lasd0_ = Routine<Lasd0>("lasd0");
  Lasd2 lasd2_ = Routine<Lasd2>("lasd2");
  Lasd4 lasd4_ = Routine<Lasd4>("lasd4");
};

}  // namespace bidiagonal
}  // namespace ferrule

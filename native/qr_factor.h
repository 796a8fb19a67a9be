// QR factorizations of row-major matrices in blocks of columns, those in panels (qr_kernel.h), and all reflections of
// one. A block's columns are brought up to date and factored by one thread while the others apply the block before it
// to the rest.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "aligned_scratch.h"
#include "cpu_features.h"
#include "gemm_spread.h"
#include "qr_reflections.h"
#include "qr_tables.h"
#include "thread_pool.h"

namespace ferrule {
namespace qr {

inline const QrKernels& Kernels() {
#if defined(__x86_64__)
  if (ChosenIsa() == Isa::kAvx512) return kAvx512Qr;
  if (ChosenIsa() == Isa::kAvx2) return kAvx2Qr;
#endif
  return kBaselineQr;
}

template <class T>
const QrFunctions<T>& Functions() {
  if constexpr (std::is_same_v<T, float>) {
    return Kernels().f32;
  } else {
    return Kernels().f64;
  }
}

constexpr int64_t kSmallVectors = 1024;  // of matrices that are one panel
constexpr int64_t kPanel = 32;           // columns of a panel of a large matrix, as far as vectors reach
constexpr int64_t kBlock = 64;           // columns that are applied at once
constexpr int64_t kSlice = 64;           // columns that are worth a thread
constexpr double kThreadWork = 1 << 16;  // multiply-adds that are worth a thread: some microseconds
constexpr double kSpreadWork = 1 << 20;  // of a matrix that is spread over the threads

template <class T>
int64_t PanelColumns() {
  return std::min(kPanel, kQrVectors * Functions<T>().lanes);
}

// The columns of a block of k.
template <class T>
int64_t BlockColumns(int64_t k) {
  const int64_t panel = PanelColumns<T>(), eighth = (k / 8 + panel - 1) / panel * panel;
  return std::min(k, std::clamp(eighth, panel, kBlock));
}

// Vectors that hold so many columns, where those are few.
template <class T>
int64_t VectorsOf(int64_t columns) {
  return (columns + Functions<T>().lanes - 1) / Functions<T>().lanes;
}

template <class T>
bool IsSmall(int64_t rows, int64_t columns) {
  return VectorsOf<T>(columns) <= kQrVectors && rows * VectorsOf<T>(columns) <= kSmallVectors;
}

// Columns whose largest elements are far from one are divided by powers of two, which the reflections do not depend on:
// squares and products of their elements then stay in the range of exponents.
template <class T>
class Scales {
 public:
  Scales(const T* largest, int64_t columns) {
    constexpr int kFar = std::numeric_limits<T>::max_exponent / 3;
    for (int64_t c = 0; c < columns; ++c) {
      int exponent = 0;
      if (largest[c] > 0 && std::isfinite(largest[c])) std::frexp(largest[c], &exponent);
      if (std::abs(exponent) < kFar) continue;
      exponents_.resize(static_cast<size_t>(columns));
      exponents_[static_cast<size_t>(c)] = exponent;
    }
  }

  void Divide(T* a, int64_t a_row, int64_t rows) const { Turn(a, a_row, rows, -1, false); }
  void Restore(T* a, int64_t a_row, int64_t rows) const { Turn(a, a_row, rows, 1, true); }

 private:
  void Turn(T* a, int64_t a_row, int64_t rows, int sign, bool upper) const {
    for (size_t c = 0; c < exponents_.size(); ++c) {
      if (exponents_[c] == 0) continue;
      const int64_t column = static_cast<int64_t>(c), end = upper ? std::min(rows, column + 1) : rows;
      for (int64_t i = 0; i < end; ++i) a[i * a_row + column] = std::ldexp(a[i * a_row + column], sign * exponents_[c]);
    }
  }

  std::vector<int> exponents_;  // empty where all are zero
};

// to = from, less what its columns are divided by.
template <class T>
Scales<T> CopyScaled(const T* from, int64_t from_row, int64_t rows, int64_t columns, T* to, int64_t to_row,
                     ThreadPool* pool) {
  constexpr int64_t kMostParts = 16, kLeastRows = 64;
  static thread_local AlignedScratch scratch;
  const int64_t parts =
      pool ? std::clamp<int64_t>(rows / kLeastRows, 1, std::min<int64_t>(kMostParts, pool->threads())) : 1;
  T* largest = scratch.Get<T>(parts * columns);
  std::fill_n(largest, parts * columns, T(0));
  gemm::Spread(pool, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const int64_t row = gemm::Border(rows, parts, 1, p), count = gemm::Border(rows, parts, 1, p + 1) - row;
      Functions<T>().copy(from + row * from_row, from_row, count, columns, to + row * to_row, to_row,
                          largest + p * columns);
    }
  });
  for (int64_t p = 1; p < parts; ++p) {
    for (int64_t c = 0; c < columns; ++c) largest[c] = std::max(largest[c], largest[p * columns + c]);
  }
  Scales<T> scales(largest, columns);
  scales.Divide(to, to_row, rows);
  return scales;
}

// In place in a[rows][count], from whose first row on the reflections are; `made` gets them, unless it is null.
template <class T>
void FactorBlock(T* a, int64_t a_row, int64_t rows, int64_t count, T* tau, Reflections<T>* made, ThreadPool* pool) {
  static thread_local AlignedScratch panel_scratch, reflections_scratch;
  const int64_t most = PanelColumns<T>();
  for (int64_t j = 0; j < count; j += most) {
    const int64_t columns = std::min(most, count - j), vectors = VectorsOf<T>(columns);
    const int64_t width = vectors * Functions<T>().lanes, left = rows - j;
    T* corner = a + j * a_row + j;
    T* panel = panel_scratch.Get<T>(left * width);
    for (int64_t i = 0; i < left; ++i) {
      std::copy_n(corner + i * a_row, columns, panel + i * width);
      std::fill(panel + i * width + columns, panel + (i + 1) * width, T(0));
    }
    Functions<T>().factor(panel, vectors, left, columns, tau + j);
    for (int64_t i = 0; i < left; ++i) std::copy_n(panel + i * width, columns, corner + i * a_row);
    if (made) made->Add(panel, width, columns, tau + j, pool);
    if (const int64_t others = count - j - columns; others > 0) {
      Reflections<T> own(left, columns, reflections_scratch.Get<T>(Reflections<T>::Elements(left, columns)));
      own.Add(panel, width, columns, tau + j, pool);
      own.ApplyLeft(true, corner + columns, a_row, others, pool);
    }
  }
}

// In place, for columns that are in range.
template <class T>
void FactorLarge(T* a, int64_t rows, int64_t columns, T* tau, ThreadPool* pool) {
  static thread_local AlignedScratch scratch;
  const int64_t steps = std::min(rows, columns), most = BlockColumns<T>(steps);
  const int64_t room = Reflections<T>::Elements(rows, most);
  T* memory = scratch.Get<T>(2 * room);
  Reflections<T> current(rows, most, memory), next(0, most, memory);
  FactorBlock(a, columns, rows, std::min(most, steps), tau, most < columns ? &current : nullptr, pool);
  if (most >= columns) return;
  const int64_t threads = pool ? pool->threads() : 1;
  for (int64_t j = 0; j < steps; j += most) {
    // The next block, then the others, in slices.
    const int64_t start = j + current.count(), count = std::clamp<int64_t>(steps - start, 0, most);
    const int64_t first = start + count, rest = columns - first, row = j * columns;
    const int64_t slices = threads == 1 ? rest > 0 : std::clamp<int64_t>(rest / kSlice, rest > 0, 3 * threads);
    next = Reflections<T>(rows - start, most, memory + (j / most % 2 == 0 ? room : 0));
    const bool alone = slices == 0;
    auto some = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (i == 0 && count > 0) {
          current.ApplyLeft(true, a + row + start, columns, count, alone ? pool : nullptr);
          FactorBlock(a + start * columns + start, columns, rows - start, count, tau + start,
                      first < columns ? &next : nullptr, alone ? pool : nullptr);
        } else if (i > 0) {
          const int64_t from = gemm::Border(rest, slices, 16, i - 1), to = gemm::Border(rest, slices, 16, i);
          if (from < to) current.ApplyLeft(true, a + row + first + from, columns, to - from, nullptr);
        }
      }
    };
    gemm::Spread(pool, 1 + slices, 1, some);
    if (first >= columns) break;
    current = next;
  }
}

// The reflections of a whole matrix, in blocks, in memory that is the thread's: one such object at a time.
template <class T>
class AllReflections {
 public:
  AllReflections(const T* a, int64_t a_row, int64_t rows, int64_t steps, const T* tau, ThreadPool* pool) : rows_(rows) {
    static thread_local AlignedScratch scratch;
    const int64_t most = BlockColumns<T>(steps), panel = PanelColumns<T>(), count = (steps + most - 1) / most;
    int64_t elements = 0;
    for (int64_t i = 0; i < count; ++i) elements += Reflections<T>::Elements(rows - i * most, most);
    T* memory = scratch.Get<T>(elements);
    for (int64_t i = 0; i < count; ++i) {
      blocks_.emplace_back(rows - i * most, most, memory);
      memory += Reflections<T>::Elements(rows - i * most, most);
    }
    gemm::Spread(pool, count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t last = std::min(steps, (i + 1) * most);
        for (int64_t j = i * most; j < last; j += panel) {
          blocks_[static_cast<size_t>(i)].Add(a + j * a_row + j, a_row, std::min(panel, last - j), tau + j,
                                              count == 1 ? pool : nullptr);
        }
      }
    });
  }

  const std::vector<Reflections<T>>& blocks() const { return blocks_; }

  // C becomes Q C or C Q, or with Q^T, all threads sharing C's other dimension of `lines`.
  void Apply(bool left, bool adjoint, T* c, int64_t c_row, int64_t lines, ThreadPool* pool) const {
    gemm::Spread(pool, lines, kSlice, [&](int64_t begin, int64_t end) {
      for (size_t k = 0; k < blocks_.size(); ++k) {
        const Reflections<T>& block = blocks_[left == adjoint ? k : blocks_.size() - 1 - k];
        const int64_t before = rows_ - block.rows();
        if (left) {
          block.ApplyLeft(adjoint, c + before * c_row + begin, c_row, end - begin, nullptr);
        } else {
          block.ApplyRight(adjoint, c + begin * c_row + before, c_row, end - begin, nullptr);
        }
      }
    });
  }

 private:
  int64_t rows_;
  std::vector<Reflections<T>> blocks_;
};

// One to a thread where there are many small ones, else one after the other with all threads.
template <class F>
void EachMatrix(ThreadPool* pool, int64_t batch, double work, F&& one) {
  if (work >= kSpreadWork && batch < 4 * pool->threads()) {
    for (int64_t i = 0; i < batch; ++i) one(i, pool);
  } else {
    gemm::Spread(pool, batch, static_cast<int64_t>(kThreadWork / (work + 1000)) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) one(i, nullptr);
    });
  }
}

}  // namespace qr
}  // namespace ferrule

// The loops of small factorizations and triangular solves, written once with vector types and compiled for several
// instruction sets as gemm_kernel.h is: nothing of the standard library may be instantiated here.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "lanes.h"
#include "small_matrix_tables.h"

namespace ferrule {
namespace FERRULE_ISA {

// The largest element, by halves.
template <class V>
inline V LargerHalf(V v, V other) {
  return other > v ? other : v;
}

template <class T>
inline typename Lanes<T>::Integer Largest(typename Lanes<T>::Index whole) {
  using N = typename Lanes<T>::Integer;
  typedef N Quarter __attribute__((vector_size(16)));
#if FERRULE_VECTOR_BYTES == 64
  typedef N Half __attribute__((vector_size(32)));
  const Half *halves = reinterpret_cast<const Half*>(&whole), half = LargerHalf(halves[0], halves[1]);
#else
  const auto& half = whole;
#endif
#if FERRULE_VECTOR_BYTES >= 32
  const Quarter* quarters = reinterpret_cast<const Quarter*>(&half);
  Quarter v = LargerHalf(quarters[0], quarters[1]);
#else
  Quarter v = half;
#endif
  if constexpr (sizeof(N) == 4) {
    v = LargerHalf(v, __builtin_shuffle(v, Quarter{2, 3, 0, 1}));
    v = LargerHalf(v, __builtin_shuffle(v, Quarter{1, 0, 3, 2}));
  } else {
    v = LargerHalf(v, __builtin_shuffle(v, Quarter{1, 0}));
  }
  return v[0];
}

// A bit for each lane that is not zero in `equal`, which has zeros and minus ones.
template <class T>
inline uint64_t Bits(typename Lanes<T>::Index equal) {
#if FERRULE_VECTOR_BYTES == 64
  if constexpr (sizeof(T) == 4) return _mm512_movepi32_mask((__m512i)equal);
  if constexpr (sizeof(T) == 8) return _mm512_movepi64_mask((__m512i)equal);
#elif FERRULE_VECTOR_BYTES == 32
  if constexpr (sizeof(T) == 4) return static_cast<uint32_t>(_mm256_movemask_ps((__m256)equal));
  if constexpr (sizeof(T) == 8) return static_cast<uint32_t>(_mm256_movemask_pd((__m256d)equal));
#else
  uint64_t bits = 0;
  for (int l = 0; l < Lanes<T>::kCount; ++l) bits |= static_cast<uint64_t>(equal[l] != 0) << l;
  return bits;
#endif
}

// to[columns][to_row] = the transpose of from[rows][from_row]: squares of vectors by interleaving them log2 times.
template <class T>
void Turn(const T* from, int64_t from_row, int64_t rows, int64_t columns, T* to, int64_t to_row) {
  using V = typename Lanes<T>::Vector;
  using I = typename Lanes<T>::Index;
  constexpr int kCount = Lanes<T>::kCount;
  I low{}, high{};
  for (int l = 0; l < kCount; ++l) {
    low[l] = l / 2 + (l % 2) * kCount;
    high[l] = low[l] + kCount / 2;
  }
  const int64_t whole_rows = rows / kCount * kCount, whole = columns / kCount * kCount;
  for (int64_t i = 0; i < whole_rows; i += kCount) {
    for (int64_t j = 0; j < whole; j += kCount) {
      V v[kCount];
#pragma GCC unroll 16
      for (int l = 0; l < kCount; ++l) v[l] = Load(from + (i + l) * from_row + j);
#pragma GCC unroll 4
      for (int round = kCount; round > 1; round /= 2) {
        V mixed[kCount];
#pragma GCC unroll 8
        for (int l = 0; l < kCount / 2; ++l) {
          mixed[2 * l] = __builtin_shuffle(v[l], v[l + kCount / 2], low);
          mixed[2 * l + 1] = __builtin_shuffle(v[l], v[l + kCount / 2], high);
        }
#pragma GCC unroll 16
        for (int l = 0; l < kCount; ++l) v[l] = mixed[l];
      }
#pragma GCC unroll 16
      for (int l = 0; l < kCount; ++l) Store(to + (j + l) * to_row + i, v[l]);
    }
    for (int64_t j = whole; j < columns; ++j) {
      for (int64_t l = i; l < i + kCount; ++l) to[j * to_row + l] = from[l * from_row + j];
    }
  }
  for (int64_t j = 0; j < columns; ++j) {
    for (int64_t i = whole_rows; i < rows; ++i) to[j * to_row + i] = from[i * from_row + j];
  }
}

// Each of the columns k + 1 … less its element of row k times column k below the diagonal, after its elements of rows k
// and p are exchanged: COUNT vectors of each, of which the first may hold elements that stay. They are exchanged in
// registers: stores to places that are known late would hold up the loads behind them.
template <class T, int COUNT>
void Eliminate(T* a, int64_t stride, int64_t k, int64_t p, int64_t columns, int64_t first) {
  using V = typename Lanes<T>::Vector;
  using N = typename Lanes<T>::Integer;
  constexpr int kCount = Lanes<T>::kCount;
  const auto row = Counted<T>() + static_cast<N>(first);
  const auto diagonal = row == static_cast<N>(k), below = row > static_cast<N>(k);
  V factor[COUNT];
  const T* from = a + k * stride + first;
#pragma GCC unroll 8
  for (int v = 0; v < COUNT; ++v) factor[v] = Load(from + v * kCount);
  for (int64_t j = k + 1; j < columns; ++j) {
    T* column = a + j * stride;
    const T times = column[p], other = column[k];
    V x[COUNT];
#pragma GCC unroll 8
    for (int v = 0; v < COUNT; ++v) {
      x[v] = Load(column + first + v * kCount);
      x[v] = row + static_cast<N>(v * kCount) == static_cast<N>(p) ? V{} + other : x[v];
    }
    x[0] = diagonal ? V{} + times : x[0];
    x[0] = below ? x[0] - factor[0] * times : x[0];
    Store(column + first, x[0]);
#pragma GCC unroll 8
    for (int v = 1; v < COUNT; ++v) Store(column + first + v * kCount, x[v] - factor[v] * times);
  }
}

template <class T>
inline void Exchange(T* a, int64_t stride, int64_t k, int64_t p, int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end; ++j) {
    T* column = a + j * stride;
    const T x = column[k];
    column[k] = column[p];
    column[p] = x;
  }
}

template <class T>
inline void EliminateBelow(T* a, int64_t stride, int64_t k, int64_t p, int64_t columns, int64_t first, int64_t padded) {
  constexpr int64_t kCount = Lanes<T>::kCount;
  switch ((padded - first) / kCount) {
    case 1:
      return Eliminate<T, 1>(a, stride, k, p, columns, first);
    case 2:
      return Eliminate<T, 2>(a, stride, k, p, columns, first);
    case 3:
      return Eliminate<T, 3>(a, stride, k, p, columns, first);
    case 4:
      return Eliminate<T, 4>(a, stride, k, p, columns, first);
    default:
      Exchange(a, stride, k, p, k + 1, columns);
      Eliminate<T, 4>(a, stride, k, k, columns, first);
      for (first += 4 * kCount; first < padded; first += kCount) Eliminate<T, 1>(a, stride, k, k, columns, first);
  }
}

// What pivots are compared by: magnitudes as integers, NaN less than all.
template <class T>
inline typename Lanes<T>::Index PivotKey(typename Lanes<T>::Vector x) {
  using I = typename Lanes<T>::Index;
  using N = typename Lanes<T>::Integer;
  constexpr N kInfinity = sizeof(T) == 4 ? N(0x7F800000) : N(0x7FF0000000000000);
  constexpr N kMagnitude = sizeof(T) == 4 ? N(0x7FFFFFFF) : N(0x7FFFFFFFFFFFFFFF);
  const I bits = (I)x & kMagnitude;
  return bits | (bits > kInfinity);
}

// The row of the first of the largest magnitudes in column k, from the diagonal on, as LAPACK finds it: NaN is never
// larger, but is taken where it stands on the diagonal. Magnitudes are compared as integers, which takes fewer cycles.
// What follows the last row is zero or NaN, so that the diagonal comes before it.
template <class T>
inline int64_t Pivot(const T* column, int64_t k, int64_t first, int64_t padded) {
  using I = typename Lanes<T>::Index;
  using N = typename Lanes<T>::Integer;
  constexpr int kCount = Lanes<T>::kCount;
  if (column[k] != column[k]) return k;
  const I above = Counted<T>() < static_cast<N>(k - first);
  auto key = [&](int64_t i) {
    const I bits = PivotKey<T>(Load(column + i));
    return i == first ? bits | above : bits;
  };
  I best = key(first);
  for (int64_t i = first + kCount; i < padded; i += kCount) {
    I other = key(i);
    best = other > best ? other : best;
  }
  const N largest = Largest<T>(best);
  uint64_t equal = 0;
  for (int64_t i = first; i < padded; i += kCount) equal |= Bits<T>(key(i) == largest) << i;
  return __builtin_ctzll(equal);
}

// The matrix is turned, so that its columns are vectors: pivots are looked for and rows eliminated along them.
template <class T>
int32_t Factor(const T* from, int64_t rows, int64_t columns, T* to, int32_t* pivots) {
  using V = typename Lanes<T>::Vector;
  using N = typename Lanes<T>::Integer;
  constexpr int64_t kCount = Lanes<T>::kCount;
  // A vector more than a power of two apart: columns do not share sets of the cache.
  constexpr int64_t kStride = kSmallMatrix + kSmallLanes<T>;
  alignas(64) T a[kSmallMatrix * kStride];
  const int64_t padded = (rows + kCount - 1) / kCount * kCount, steps = rows < columns ? rows : columns;
  if (padded > rows) {
    for (int64_t j = 0; j < columns; ++j) Store(a + j * kStride + padded - kCount, V{});
  }
  Turn(from, columns, rows, columns, a, kStride);
  int32_t info = 0;
  for (int64_t k = 0; k < steps; ++k) {
    T* column = a + k * kStride;
    const int64_t first = k / kCount * kCount, p = Pivot(column, k, first, padded);
    pivots[k] = static_cast<int32_t>(p + 1);
    const auto row = Counted<T>() + static_cast<N>(first);
    const T pivot = column[p], other = column[k];
    Exchange(a, kStride, k, p, 0, k);
    if (pivot == 0 && info == 0) info = static_cast<int32_t>(k + 1);
    V divisor = V{} + (pivot == 0 ? T(1) : pivot);
    for (int64_t i = first; i < padded; i += kCount) {
      V x = Load(column + i);
      x = row + static_cast<N>(i - first) == static_cast<N>(p) ? V{} + other : x;
      V scaled = x / divisor;
      if (i == first) {
        scaled = row > static_cast<N>(k) ? scaled : x;
        scaled = row == static_cast<N>(k) ? V{} + pivot : scaled;
      }
      Store(column + i, scaled);
    }
    EliminateBelow(a, kStride, k, p, columns, first, padded);
  }
  Turn(a, kStride, columns, rows, to, columns);
  return info;
}

// COUNT vectors of row j of U, where U^T U = A, from column c on: those of the rows before it are added up, which
// keeps more digits than taking each away, and taken away. The first that is asked for has the diagonal.
template <class T, int COUNT>
inline bool CholeskyRow(T* a, int64_t stride, int64_t j, int64_t c, T* pivot) {
  using V = typename Lanes<T>::Vector;
  constexpr int kCount = Lanes<T>::kCount;
  T* to = a + j * stride + c;
  V sum[COUNT], other[COUNT];
#pragma GCC unroll 8
  for (int v = 0; v < COUNT; ++v) sum[v] = other[v] = V{};
  int64_t k = 0;
  for (; k + 2 <= j; k += 2) {
    const T *from = a + k * stride, *next = from + stride;
#pragma GCC unroll 8
    for (int v = 0; v < COUNT; ++v) {
      sum[v] += from[j] * Load(from + c + v * kCount);
      other[v] += next[j] * Load(next + c + v * kCount);
    }
  }
  if (k < j) {
    const T* from = a + k * stride;
#pragma GCC unroll 8
    for (int v = 0; v < COUNT; ++v) sum[v] += from[j] * Load(from + c + v * kCount);
  }
#pragma GCC unroll 8
  for (int v = 0; v < COUNT; ++v) sum[v] = Load(to + v * kCount) - (sum[v] + other[v]);
  if (c <= j) {
    Store(to, sum[0]);
    const T square = to[j - c];
    if (!(square > 0)) return false;
    *pivot = sizeof(T) == 4 ? static_cast<T>(__builtin_sqrtf(static_cast<float>(square)))
                            : static_cast<T>(__builtin_sqrt(static_cast<double>(square)));
  }
#pragma GCC unroll 8
  for (int v = 0; v < COUNT; ++v) Store(to + v * kCount, sum[v] / *pivot);
  if (c <= j) to[j - c] = *pivot;
  return true;
}

// The matrix is turned, so that the columns of L are vectors.
template <class T>
bool Cholesky(T* matrix, int64_t row, int64_t n) {
  constexpr int64_t kCount = Lanes<T>::kCount, kStride = kSmallMatrix + kSmallLanes<T>;
  alignas(64) T a[kSmallMatrix * kStride];
  const int64_t padded = (n + kCount - 1) / kCount * kCount;
  if (padded > n) {
    for (int64_t j = 0; j < n; ++j) Store(a + j * kStride + padded - kCount, typename Lanes<T>::Vector{});
  }
  Turn(matrix, row, n, n, a, kStride);
  for (int64_t j = 0; j < n; ++j) {
    T pivot = 1;
    int64_t c = j / kCount * kCount;
    for (; c + 4 * kCount <= padded; c += 4 * kCount) {
      if (!CholeskyRow<T, 4>(a, kStride, j, c, &pivot)) return false;
    }
    for (; c + 2 * kCount <= padded; c += 2 * kCount) {
      if (!CholeskyRow<T, 2>(a, kStride, j, c, &pivot)) return false;
    }
    for (; c < padded; c += kCount) {
      if (!CholeskyRow<T, 1>(a, kStride, j, c, &pivot)) return false;
    }
  }
  Turn(a, kStride, n, n, matrix, row);
  return true;
}

// The sums of COUNT vectors of each row of B stay in registers. What is subtracted is added up first: more digits stay.
template <class T, int COUNT>
void SolveColumns(bool lower, bool unit, int64_t n, const T* a, int64_t a_row, T* b, int64_t b_row) {
  using V = typename Lanes<T>::Vector;
  constexpr int kCount = Lanes<T>::kCount;
  for (int64_t step = 0; step < n; ++step) {
    const int64_t i = lower ? step : n - 1 - step, end = lower ? i : n;
    const T* row = a + i * a_row;
    T* to = b + i * b_row;
    V sum[COUNT], other[COUNT];
#pragma GCC unroll 8
    for (int v = 0; v < COUNT; ++v) sum[v] = other[v] = V{};
    int64_t k = lower ? 0 : i + 1;
    for (; k + 2 <= end; k += 2) {
      const T *from = b + k * b_row, *next = from + b_row;
#pragma GCC unroll 8
      for (int v = 0; v < COUNT; ++v) {
        sum[v] += row[k] * Load(from + v * kCount);
        other[v] += row[k + 1] * Load(next + v * kCount);
      }
    }
    for (; k < end; ++k) {
#pragma GCC unroll 8
      for (int v = 0; v < COUNT; ++v) sum[v] += row[k] * Load(b + k * b_row + v * kCount);
    }
    const T pivot = row[i];
#pragma GCC unroll 8
    for (int v = 0; v < COUNT; ++v) {
      const V rest = Load(to + v * kCount) - (sum[v] + other[v]);
      Store(to + v * kCount, unit ? rest : rest / pivot);
    }
  }
}

template <class T>
void SolveMany(bool lower, bool unit, int64_t n, const T* a, int64_t a_row, T* b, int64_t b_row, int64_t columns) {
  constexpr int64_t kCount = Lanes<T>::kCount;
  int64_t c = 0;
  for (; c + 4 * kCount <= columns; c += 4 * kCount) SolveColumns<T, 4>(lower, unit, n, a, a_row, b + c, b_row);
  for (; c + 2 * kCount <= columns; c += 2 * kCount) SolveColumns<T, 2>(lower, unit, n, a, a_row, b + c, b_row);
  for (; c < columns; c += kCount) SolveColumns<T, 1>(lower, unit, n, a, a_row, b + c, b_row);
}

}  // namespace FERRULE_ISA
}  // namespace ferrule

#include "lu_panel_kernel.h"
#include "triangular_kernel.h"

namespace ferrule {
namespace FERRULE_ISA {

template <class T>
constexpr SmallMatrixFunctions<T> SmallMatrixOf() {
  return {Factor<T>, Panel<T>, Cholesky<T>, Turn<T>, SolveVectors<T>, SolveMany<T>};
}

constexpr SmallMatrixKernels SmallMatrix() { return {SmallMatrixOf<float>(), SmallMatrixOf<double>()}; }

}  // namespace FERRULE_ISA
}  // namespace ferrule

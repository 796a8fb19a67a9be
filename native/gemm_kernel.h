// The innermost loops of the own matrix product, written once with vector types and compiled for several instruction
// sets: each gemm_<isa>.cc sets FERRULE_VECTOR_BYTES and FERRULE_ISA, turns the instructions on with a pragma, and
// includes this file. For that reason nothing of the standard library may be instantiated here: a copy of an inline
// function compiled for AVX-512 could otherwise be the one that the linker keeps for everybody.
#pragma once

#if FERRULE_VECTOR_BYTES == 64
#include "vector_tiles.h"
#endif
#include "gemm_tables.h"

namespace ferrule {
namespace FERRULE_ISA {

constexpr int kBytes = FERRULE_VECTOR_BYTES;

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kBytes), may_alias));
  typedef T unaligned __attribute__((vector_size(kBytes), may_alias, aligned(alignof(T))));
};

// What the sums of parts are added up in, where a wider type costs nothing.
template <class T>
struct TotalOf {
  using type = T;
};

template <>
struct TotalOf<float> {
  using type = double;
};

#if FERRULE_VECTOR_BYTES == 32
inline VectorOf<uint32_t>::type MultiplyPairs(VectorOf<uint32_t>::type a, VectorOf<uint32_t>::type b) {
  typedef short Words __attribute__((vector_size(kBytes)));
  return (VectorOf<uint32_t>::type)__builtin_ia32_pmaddwd256((Words)a, (Words)b);
}
#elif FERRULE_VECTOR_BYTES == 64
inline VectorOf<uint32_t>::type MultiplyPairs(VectorOf<uint32_t>::type a, VectorOf<uint32_t>::type b) {
  return (VectorOf<uint32_t>::type)_mm512_madd_epi16((__m512i)a, (__m512i)b);
}
#endif

template <class T>
constexpr bool kIsFloat = T(0.5) != T(0);

// sum[j] += *a * b[j]. Left to itself the compiler lets some sums of an unrolled loop change places with factors, has
// too few registers for that, and waits for the stack.
template <class T, int NV>
inline void AddProducts(const T* a, const typename VectorOf<T>::type (&b)[NV], typename VectorOf<T>::type (&sum)[NV]) {
#if FERRULE_VECTOR_BYTES == 32
  if constexpr (kIsFloat<T>) {
    typename VectorOf<T>::type left;
    if constexpr (sizeof(T) == 4) {
      left = __builtin_ia32_vbroadcastss256(a);
    } else {
      left = __builtin_ia32_vbroadcastsd256(a);
    }
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      if constexpr (sizeof(T) == 4) {
        __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum[j]) : "x"(left), "x"(b[j]));
      } else {
        __asm__("vfmadd231pd %2, %1, %0" : "+x"(sum[j]) : "x"(left), "x"(b[j]));
      }
    }
    return;
  }
#endif
#pragma GCC unroll 4
  for (int j = 0; j < NV; ++j) sum[j] += *a * b[j];
}

#if FERRULE_VECTOR_BYTES == 64
// to[a whole vector] = from[lanes], zero behind them; there may be none, or more than a vector has.
template <class T>
inline void GetLanes(const T* from, int64_t lanes, T* to) {
  constexpr int64_t kLanes = kBytes / static_cast<int64_t>(sizeof(T));
  lanes = lanes < 0 ? 0 : lanes > kLanes ? kLanes : lanes;
  const unsigned mask = (1u << lanes) - 1;
  if constexpr (sizeof(T) == 4) {
    _mm512_storeu_epi32(to, _mm512_maskz_loadu_epi32(static_cast<__mmask16>(mask), from));
  } else {
    _mm512_storeu_epi64(to, _mm512_maskz_loadu_epi64(static_cast<__mmask8>(mask), from));
  }
}

// d[lanes] (+)= from[a whole vector], for fewer lanes than it has.
template <class T>
inline void PutLanes(const T* from, int64_t lanes, bool accumulate, T* d) {
  typedef typename VectorOf<T>::type V;
  V sum = *reinterpret_cast<const typename VectorOf<T>::unaligned*>(from);
  const unsigned mask = (1u << lanes) - 1;
  if constexpr (sizeof(T) == 4) {
    if (accumulate) sum += (V)_mm512_maskz_loadu_epi32(static_cast<__mmask16>(mask), d);
    _mm512_mask_storeu_epi32(d, static_cast<__mmask16>(mask), (__m512i)sum);
  } else {
    if (accumulate) sum += (V)_mm512_maskz_loadu_epi64(static_cast<__mmask8>(mask), d);
    _mm512_mask_storeu_epi64(d, static_cast<__mmask8>(mask), (__m512i)sum);
  }
}
#endif

// The rows of a tile of C lie apart and would be waited for one by one at the end, also where they are only written.
template <class T, int MR, int NV>
__attribute__((always_inline)) inline void FetchTile(const T* c, int64_t c_row) {
  constexpr int kLanes = kBytes / sizeof(T);
#pragma GCC unroll 32
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) __builtin_prefetch(c + i * c_row + j * kLanes, 1);
  }
}

template <class T, int MR, int NV>
__attribute__((always_inline)) inline void PutSums(const typename VectorOf<T>::type (&sum)[MR][NV], T* c, int64_t c_row,
                                                   bool accumulate) {
  using U = typename VectorOf<T>::unaligned;
  constexpr int kLanes = kBytes / sizeof(T);
#pragma GCC unroll 32
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      U* to = reinterpret_cast<U*>(c + i * c_row + j * kLanes);
      *to = accumulate ? *to + sum[i][j] : sum[i][j];
    }
  }
}

// C[MR][NR] (+)= A[MR][k] * B[k][NR]. B's rows are `b_k` apart: a packed panel, or the matrix itself. A is a packed
// panel (a_row 1, a_k MR, known when compiled) or has any strides. What hardware would look for too late is fetched
// meanwhile: with kNextColumns the columns of B that come next; with a positive kFetch so many vectors `a_row` elements
// behind each row of a panel of B, which are in the next panel (A is packed then); with kNextRows the rows of A that
// follow this tile's and lie close together, some in each step: all of them at once would fill what a core has for
// lines under way, and the tile would wait.
constexpr int kNextColumns = -1, kNextRows = -2;
// What a step adds to a sum: a product, or the two products of a pair of 16-bit integers (GroupKernels).
enum class Term { kProduct, kPair };
template <class T, int MR, int NV, bool kPackedA, int kFetch = 0, Term kTerm = Term::kProduct>
void Multiply(int64_t k, const T* a, int64_t a_row, int64_t a_k, const T* b, int64_t b_k, T* c, int64_t c_row,
              bool accumulate) {
  using V = typename VectorOf<T>::type;
  using U = typename VectorOf<T>::unaligned;
  constexpr int kLanes = kBytes / sizeof(T), kAhead = 2;  // vectors; a tile has one or two
  V sum[MR][NV] = {};
  constexpr int kLine = 64 / sizeof(T), kStep = (MR + kLine - 1) / kLine;  // elements of a line; lines of a step
  const int64_t ahead = a_row;
  if (kPackedA || kFetch > 0) a_row = 1;
  const T* next_rows = a + MR * a_row;
  if (kPackedA) a_k = MR;
  // Three rows of a strided A share a pointer, from which an instruction reaches them by itself. The compiler must not
  // see how they hang together: it would keep an offset for each row, more than there are registers.
  constexpr int kShare = kPackedA ? MR : 3, kPointers = (MR + kShare - 1) / kShare;
  const T* rows[kPointers];
  FetchTile<T, MR, NV>(c, c_row);
  // Adds a step, whose elements of A are where `left_at` says.
  auto add = [&](auto left_at) __attribute__((always_inline)) {
    V right[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) right[j] = *reinterpret_cast<const U*>(b + j * kLanes);
    if (kFetch == kNextColumns) {
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) __builtin_prefetch(b + (kAhead + j) * kLanes, 0, 2);
    }
#pragma GCC unroll 4
    for (int j = 0; j < kFetch; ++j) __builtin_prefetch(b + ahead + j * kLanes, 0, 2);
    if (kFetch == kNextRows) {
#pragma GCC unroll 4
      for (int j = 0; j < kStep; ++j) __builtin_prefetch(next_rows + j * kLine);
      next_rows += kStep * kLine;
    }
#pragma GCC unroll 32
    for (int i = 0; i < MR; ++i) {
      const T* left = left_at(i);
      if constexpr (kTerm == Term::kPair) {
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) sum[i][j] += MultiplyPairs(V{} + *left, right[j]);
      } else {
        AddProducts<T>(left, right, sum[i]);
      }
    }
    b += b_k;
  };
  int64_t p = 0;
  // What counts the steps takes a fifth of a narrow tile's instructions, which shows where another thread has the other
  // half of a core: several steps at once where they are next to each other. (Integers' products take more registers.)
  if constexpr (kBytes == 32 && kIsFloat<T>) {
    constexpr int kSteps = 4, kApart = kPackedA ? MR : 1, kFirst = kPackedA ? 1 : MR;
    const T* first[kFirst];
#pragma GCC unroll 12
    for (int i = 0; i < kFirst; ++i) first[i] = a + i * a_row;
    for (; a_k == kApart && p + kSteps <= k; p += kSteps) {
#pragma GCC unroll 12
      for (int i = 0; i < kFirst; ++i) __asm__("" : "+r"(first[i]));
#pragma GCC unroll 4
      for (int q = 0; q < kSteps; ++q) {
        add([&](int i) __attribute__((always_inline)) {
          return kPackedA ? first[0] + i + q * kApart : first[kPackedA ? 0 : i] + q;
        });
        __asm__ volatile("" ::: "memory");  // one after the other, else there are too few registers
      }
#pragma GCC unroll 12
      for (int i = 0; i < kFirst; ++i) first[i] += kSteps * kApart;
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < kPointers; ++i) {
    rows[i] = a + p * a_k + kShare * i * a_row;
    if (!kPackedA) __asm__("" : "+r"(rows[i]));
  }
  for (; p < k; ++p) {
    add([&](int i) __attribute__((always_inline)) { return rows[i / kShare] + i % kShare * a_row; });
#pragma GCC unroll 12
    for (int i = 0; i < kPointers; ++i) rows[i] += a_k;
  }
  __asm__("" : "+r"(c));  // nor keep where C's rows are meanwhile
  PutSums<T, MR, NV>(sum, c, c_row, accumulate);
}

// The same where A's and B's rows of one k are read where they lie, a few elements each.
template <class T, int MR, int NV>
void MultiplyTall(int64_t k, const T* a, int64_t a_k, const T* b, int64_t b_k, T* c, int64_t c_row, bool accumulate) {
  using V = typename VectorOf<T>::type;
  using U = typename VectorOf<T>::unaligned;
  constexpr int kLanes = kBytes / sizeof(T), kAheadBytes = 2048;
  V sum[MR][NV] = {};
  for (int64_t p = 0; p < k; ++p, a += a_k, b += b_k) {
    V right[NV];
    // Two streams beside each other are more than processors foresee well.
    __builtin_prefetch(reinterpret_cast<const char*>(a) + kAheadBytes);
    __builtin_prefetch(reinterpret_cast<const char*>(b) + kAheadBytes);
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) right[j] = *reinterpret_cast<const U*>(b + j * kLanes);
#pragma GCC unroll 32
    for (int i = 0; i < MR; ++i) AddProducts<T>(a + i, right, sum[i]);
  }
  PutSums<T, MR, NV>(sum, c, c_row, accumulate);
}

// Multiply for complex numbers: A and C interleaved, B a packed panel of NR real parts followed by NR imaginary parts
// for each k. Strides count real numbers; the imaginary parts begin b_k / 2 after the real ones.
template <class R, int MR, int NV, bool kPackedA>
void MultiplyComplex(int64_t k, const R* a, int64_t a_row, int64_t a_k, const R* b, int64_t b_k, R* c, int64_t c_row,
                     bool accumulate) {
  using V = typename VectorOf<R>::type;
  constexpr int kLanes = kBytes / sizeof(R);
  V re[MR][NV] = {}, im[MR][NV] = {};
  if (kPackedA) {
    a_row = 2;
    a_k = 2 * MR;
  }
  for (int64_t p = 0; p < k; ++p) {
    V br[NV], bi[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      br[j] = *reinterpret_cast<const V*>(b + j * kLanes);
      bi[j] = *reinterpret_cast<const V*>(b + b_k / 2 + j * kLanes);
    }
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      R ar = a[i * a_row], ai = a[i * a_row + 1];
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) {
        re[i][j] += ar * br[j];
        im[i][j] += ar * bi[j];
        re[i][j] -= ai * bi[j];
        im[i][j] += ai * br[j];
      }
    }
    a += a_k;
    b += b_k;
  }
  for (int i = 0; i < MR; ++i) {
    R* row = c + i * c_row;
    for (int j = 0; j < NV; ++j) {
      for (int l = 0; l < kLanes; ++l) {
        R* to = row + 2 * (j * kLanes + l);
        to[0] = (accumulate ? to[0] : R(0)) + re[i][j][l];
        to[1] = (accumulate ? to[1] : R(0)) + im[i][j][l];
      }
    }
  }
}

// to[j][i] = from[i][j] for a 4 x 4 tile.
template <class T>
inline void Transpose4(const T* from, int64_t from_row, T* to, int64_t to_row) {
  typedef T V __attribute__((vector_size(4 * sizeof(T)), may_alias, aligned(alignof(T))));
  V a = *reinterpret_cast<const V*>(from), b = *reinterpret_cast<const V*>(from + from_row);
  V c = *reinterpret_cast<const V*>(from + 2 * from_row), d = *reinterpret_cast<const V*>(from + 3 * from_row);
  V ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  V cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  *reinterpret_cast<V*>(to) = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
  *reinterpret_cast<V*>(to + to_row) = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
  *reinterpret_cast<V*>(to + 2 * to_row) = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
  *reinterpret_cast<V*>(to + 3 * to_row) = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
}

#if FERRULE_VECTOR_BYTES == 64
// The same of four such tiles of words of 32 bits, one below the other.
inline void FourTiles(const void* from, int64_t from_row, void* to, int64_t to_row) {
  const float* x = static_cast<const float*>(from);
  Floats64 v[4];
  for (int64_t r = 0; r < 4; ++r, x += from_row) {
    JoinQuarters(v[r], x, x + 4 * from_row, x + 8 * from_row, x + 12 * from_row);
  }
  TileTurned(v);
  for (int64_t c = 0; c < 4; ++c) _mm512_storeu_ps(static_cast<float*>(to) + c * to_row, v[c]);
}
#endif

// Writes the first `width` of W columns of k rows of a panel, the rest zero: panel[p * W + w] = x[w * x_w + p * x_k].
template <class T, int W>
void Pack(const T* x, int64_t x_w, int64_t x_k, int64_t width, int64_t k, T* panel) {
  if (width == W && x_w == 1) {
    for (int64_t p = 0; p < k; ++p) {
      // What the next panel begins with.
      for (int64_t w = 0; w < W; w += 64 / sizeof(T)) __builtin_prefetch(x + p * x_k + W + w, 0, 2);
      __builtin_memcpy(panel + p * W, x + p * x_k, W * sizeof(T));
    }
    return;
  }
#if FERRULE_VECTOR_BYTES == 64
  constexpr int64_t kLanes = kBytes / static_cast<int64_t>(sizeof(T));
  if (x_w == 1 && W % kLanes == 0) {
    for (int64_t p = 0; p < k; ++p, x += x_k, panel += W) {
#pragma GCC unroll 2
      for (int64_t w = 0; w < W; w += kLanes) GetLanes(x + w, width - w, panel + w);
    }
    return;
  }
#endif
  if (width < W) {
    for (int64_t p = 0; p < k; ++p) {
      for (int64_t w = width; w < W; ++w) panel[p * W + w] = T(0);
    }
  }
  if (x_k == 1) {  // transposing, in tiles of 4 x 4
    int64_t p = 0, tiled = width - width % 4;
#if FERRULE_VECTOR_BYTES == 64
    if constexpr (W % 16 == 0 && sizeof(T) == 4) {
      constexpr int64_t kVisit = 128 / sizeof(T);  // as below
      for (; width == W && p + kVisit <= k; p += kVisit) {
        for (int64_t w = 0; w < W; w += 16) {
#pragma GCC unroll 8
          for (int64_t q = p; q < p + kVisit; q += 4) FourTiles(x + w * x_w + q, x_w, panel + q * W + w, W);
        }
      }
    }
#endif
    if constexpr (W >= 12) {
      // Where columns lie a multiple of 4 KB apart, the first-level cache forgets a line of a panel as wide as that
      // before the line's next tile comes: all tiles of two lines are taken at once.
      constexpr int64_t kVisit = 128 / sizeof(T);
      for (; p + kVisit <= k; p += kVisit) {
        for (int64_t w = 0; w < tiled; w += 4) {
#pragma GCC unroll 4
          for (int64_t q = p; q < p + kVisit; q += 4) Transpose4(x + w * x_w + q, x_w, panel + q * W + w, W);
        }
        for (int64_t w = tiled; w < width; ++w) {
          for (int64_t q = p; q < p + kVisit; ++q) panel[q * W + w] = x[w * x_w + q];
        }
      }
    }
    for (; p + 4 <= k; p += 4) {
      for (int64_t w = 0; w < tiled; w += 4) Transpose4(x + w * x_w + p, x_w, panel + p * W + w, W);
      for (int64_t w = tiled; w < width; ++w) {
        for (int64_t q = p; q < p + 4; ++q) panel[q * W + w] = x[w * x_w + q];
      }
    }
    for (; p < k; ++p) {
      for (int64_t w = 0; w < width; ++w) panel[p * W + w] = x[w * x_w + p];
    }
    return;
  }
  for (int64_t p = 0; p < k; ++p) {
    for (int64_t w = 0; w < width; ++w) panel[p * W + w] = x[w * x_w + p * x_k];
  }
}

// d[rows][columns] (+)= tile[rows][width], of which the last columns are not wanted.
template <class T>
void PutTile(const T* tile, int64_t width, int64_t rows, int64_t columns, bool accumulate, T* d, int64_t d_row) {
  using V = typename VectorOf<T>::type;
  using U = typename VectorOf<T>::unaligned;
  constexpr int kLanes = kBytes / sizeof(T);
  const int64_t whole = columns / kLanes * kLanes;
  for (int64_t i = 0; i < rows; ++i, tile += width, d += d_row) {
    for (int64_t j = 0; j < whole; j += kLanes) {
      U* to = reinterpret_cast<U*>(d + j);
      const V sum = *reinterpret_cast<const U*>(tile + j);
      *to = accumulate ? *to + sum : sum;
    }
#if FERRULE_VECTOR_BYTES == 64
    if (whole < columns) PutLanes(tile + whole, columns - whole, accumulate, d + whole);
#else
    for (int64_t j = whole; j < columns; ++j) d[j] = accumulate ? static_cast<T>(d[j] + tile[j]) : tile[j];
#endif
  }
}

// So many products are added up before their sum joins the total: one long run of additions would lose digits.
constexpr int64_t kRun = 64;

// y[0..n) = sum over p of x[p * x_stride] * B[p][0..n), B's columns adjacent: a row vector times a matrix.
template <class T>
void RowTimesMatrix(int64_t k, int64_t n, const T* x, int64_t x_stride, const T* b, int64_t b_row, T* y) {
  using V = typename VectorOf<T>::type;
  using U = typename VectorOf<T>::unaligned;
  constexpr int kLanes = kBytes / sizeof(T), kVectors = 8;
  int64_t j = 0;
  for (; j + kVectors * kLanes <= n; j += kVectors * kLanes) {
    V total[kVectors] = {};
    for (int64_t from = 0; from < k; from += kRun) {
      V sum[kVectors] = {};
      for (int64_t p = from, to = k - from < kRun ? k : from + kRun; p < to; ++p) {
        const T* row = b + p * b_row + j;
        T left = x[p * x_stride];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sum[v] += left * *reinterpret_cast<const U*>(row + v * kLanes);
      }
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) total[v] += sum[v];
    }
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) *reinterpret_cast<U*>(y + j + v * kLanes) = total[v];
  }
  for (; j + kLanes <= n; j += kLanes) {
    V total = {};
    for (int64_t from = 0; from < k; from += kRun) {
      V sum = {};
      for (int64_t p = from, to = k - from < kRun ? k : from + kRun; p < to; ++p) {
        sum += x[p * x_stride] * *reinterpret_cast<const U*>(b + p * b_row + j);
      }
      total += sum;
    }
    *reinterpret_cast<U*>(y + j) = total;
  }
  for (; j < n; ++j) {
    T total = 0;
    for (int64_t from = 0; from < k; from += kRun) {
      T sum = 0;
      for (int64_t p = from, to = k - from < kRun ? k : from + kRun; p < to; ++p) {
        sum += x[p * x_stride] * b[p * b_row + j];
      }
      total += sum;
    }
    y[j] = total;
  }
}

// y[0..n) += sum over p of x[p * x_stride] * B[p][0..n), where y stays in the nearest cache: memory gives B fastest
// when it is read from end to end, some rows at once.
template <class T>
void AddRows(int64_t k, int64_t n, const T* x, int64_t x_stride, const T* b, int64_t b_row, T* y) {
  using V = typename VectorOf<T>::type;
  using U = typename VectorOf<T>::unaligned;
  constexpr int kLanes = kBytes / sizeof(T), kRows = 8, kVectors = 2;
  int64_t p = 0;
  for (; p + kRows <= k; p += kRows) {
    T left[kRows];
    for (int r = 0; r < kRows; ++r) left[r] = x[(p + r) * x_stride];
    const T* row = b + p * b_row;
    int64_t j = 0;
    for (; j + kVectors * kLanes <= n; j += kVectors * kLanes) {
      V sum[kVectors] = {};
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          sum[v] += left[r] * *reinterpret_cast<const U*>(row + r * b_row + j + v * kLanes);
        }
      }
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) *reinterpret_cast<U*>(y + j + v * kLanes) += sum[v];
    }
    for (; j < n; ++j) {
      T sum = 0;
      for (int r = 0; r < kRows; ++r) sum += left[r] * row[r * b_row + j];
      y[j] += sum;
    }
  }
  for (; p < k; ++p) {
    T left = x[p * x_stride];
    for (int64_t j = 0; j < n; ++j) y[j] += left * b[p * b_row + j];
  }
}

}  // namespace FERRULE_ISA
}  // namespace ferrule

#include "gemm_dots.h"

namespace ferrule {
namespace FERRULE_ISA {

// d[0..kVectors) = the sum of so many rows of x times their values.
template <class T, int kVectors>
inline void CombineVectors(int64_t terms, const int32_t* at, const T* value, const T* x, int64_t x_row, T* d) {
  using V = typename VectorOf<T>::type;
  using U = typename VectorOf<T>::unaligned;
  constexpr int kLanes = kBytes / sizeof(T);
  V sum[kVectors] = {};
  for (int64_t t = 0; t < terms; ++t) {
    const T* row = x + at[t] * x_row;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[v] += value[t] * *reinterpret_cast<const U*>(row + v * kLanes);
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) *reinterpret_cast<U*>(d + v * kLanes) = sum[v];
}

// d[r][0..n) = the sum of value[t] * x[at[t]][0..n) over t from starts[r] to starts[r + 1].
template <class T>
void Combine(int64_t rows, const int64_t* starts, const int32_t* at, const T* value, const T* x, int64_t x_row,
             int64_t n, T* d, int64_t d_row) {
  constexpr int kLanes = kBytes / sizeof(T);
  for (int64_t r = 0; r < rows; ++r, d += d_row) {
    const int64_t begin = starts[r], terms = starts[r + 1] - begin;
    const int32_t* from = at + begin;
    const T* values = value + begin;
    int64_t j = 0;
    for (; j + 4 * kLanes <= n; j += 4 * kLanes) CombineVectors<T, 4>(terms, from, values, x + j, x_row, d + j);
    if (j + 2 * kLanes <= n) CombineVectors<T, 2>(terms, from, values, x + j, x_row, d + j), j += 2 * kLanes;
    if (j + kLanes <= n) CombineVectors<T, 1>(terms, from, values, x + j, x_row, d + j), j += kLanes;
    if (j < n && n >= kLanes) {  // the last vector has some results once more
      CombineVectors<T, 1>(terms, from, values, x + n - kLanes, x_row, d + n - kLanes);
      continue;
    }
    for (; j < n; ++j) {
      T sum = 0;
      for (int64_t t = 0; t < terms; ++t) sum += values[t] * x[from[t] * x_row + j];
      d[j] = sum;
    }
  }
}

// Writes where elements are not zero; gives how many there are.
template <class T>
int64_t Find(int64_t n, const T* x, int32_t* at) {
  typedef uint64_t Bits __attribute__((vector_size(kBytes), may_alias, aligned(alignof(T))));
  constexpr int kWords = kBytes / 8, kInWord = 8 / sizeof(T), kLanes = kBytes / sizeof(T);
  // All but the signs.
  constexpr uint64_t kMagnitude = sizeof(T) == 4 ? 0x7fffffff7fffffff : 0x7fffffffffffffff;
  int64_t count = 0, j = 0;
  auto test = [&](int64_t i) {
    if (x[i] != T(0)) at[count++] = static_cast<int32_t>(i);
  };
  for (; j + kLanes <= n; j += kLanes) {
    const Bits words = *reinterpret_cast<const Bits*>(x + j) & kMagnitude;
    uint64_t any = 0;
    for (int w = 0; w < kWords; ++w) any |= words[w];
    for (int w = 0; any != 0 && w < kWords; ++w) {
      for (int i = 0; words[w] != 0 && i < kInWord; ++i) test(j + w * kInWord + i);
    }
  }
  for (; j < n; ++j) test(j);
  return count;
}

// Whether all are: a number times zero is not zero where it is not finite.
template <class T>
bool Finite(int64_t n, const T* x) {
  using V = typename VectorOf<T>::type;
  using U = typename VectorOf<T>::unaligned;
  constexpr int kLanes = kBytes / sizeof(T), kVectors = 4;
  V sum[kVectors] = {};
  int64_t j = 0;
  for (; j + kVectors * kLanes <= n; j += kVectors * kLanes) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[v] += *reinterpret_cast<const U*>(x + j + v * kLanes) * T(0);
  }
  V total = sum[0] + sum[1] + (sum[2] + sum[3]);
  T all = 0;
  for (int l = 0; l < kLanes; ++l) all += total[l];
  for (; j < n; ++j) all += x[j] * T(0);
  return all == T(0);
}

template <class T, int MR, int NV>
constexpr MicroKernels<T> Real() {
  constexpr int kLanes = kBytes / static_cast<int>(sizeof(T)), kWidth = NV * kLanes;
  return {MR,
          kWidth,
          {{&Multiply<T, MR, NV, true>, &Multiply<T, MR, NV / 2, true>},
           {&Multiply<T, MR, NV, false>, &Multiply<T, MR, NV / 2, false>},
           {&Multiply<T, kFewRows, NV, false>, &Multiply<T, kFewRows, NV / 2, false>}},
          {{kFewRows, NV * kLanes, &Multiply<T, kFewRows, NV, true, kNextColumns>},
           {MR, NV * kLanes, &Multiply<T, MR, NV, true, kNextColumns>},
           {MR * 4 / 3, kLanes, &Multiply<T, MR * 4 / 3, 1, true, kNextColumns>},
           {MR * 2, kLanes, &Multiply<T, MR * 2, 1, true, kNextColumns>}},
          {{&Multiply<T, MR, NV, true, 1>, &Multiply<T, MR, NV, true, NV>},
           {&Multiply<T, kFewRows, NV, false, 1>, &Multiply<T, kFewRows, NV, false, NV>}},
          {&Multiply<T, MR, NV, false, kNextRows>, &Multiply<T, MR, NV / 2, false, kNextRows>},
          &Pack<T, MR>,
          &Pack<T, kWidth>,
          &PutTile<T>,
          &RowTimesMatrix<T>,
          &AddRows<T>,
          {&Dots<T, 1, 4, 2>, &Dots<T, 2, 4, 1>, &Dots<T, 4, kDotColumns, 1>},
          &Find<T>,
          &Combine<T>,
          &Finite<T>,
          {{&MultiplyTall<T, MR, NV>, &MultiplyTall<T, MR, NV / 2>},
           {&MultiplyTall<T, kFewRows, NV>, &MultiplyTall<T, kFewRows, NV / 2>}}};
}

template <class R, int MR, int NV>
constexpr ComplexMicroKernels<R> Complex() {
  constexpr int kWidth = NV * kBytes / static_cast<int>(sizeof(R));
  return {MR,
          kWidth,
          {{&MultiplyComplex<R, MR, NV, true>, &MultiplyComplex<R, MR, NV / 2, true>},
           {&MultiplyComplex<R, MR, NV, false>, &MultiplyComplex<R, MR, NV / 2, false>},
           {&MultiplyComplex<R, kFewRows, NV, false>, &MultiplyComplex<R, kFewRows, NV / 2, false>}}};
}

}  // namespace FERRULE_ISA
}  // namespace ferrule

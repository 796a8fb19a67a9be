// A few vectors times a matrix of elements that are narrower in memory than what they are multiplied in: the matrix is
// read once, where it lies, and widened in registers. Included after gemm_kernel.h, of which the same is true: several
// instruction sets, no standard library.
#include "gemm_tables.h"
#include "narrow_integers.h"

namespace ferrule {
namespace FERRULE_ISA {

// What the elements become and how they are multiplied. A step along k has kElements of them.
struct Bf16Terms {
  using Stored = uint16_t;
  using Sum = float;
  static constexpr int kElements = 1;
  using V = VectorOf<float>::type;

  static V Wide(const uint16_t* x) { return reinterpret_cast<V>(UpperHalves(x)); }
  static V Along(const uint16_t* x) { return Wide(x); }            // steps of one column
  static V Across(const uint16_t* x, int64_t) { return Wide(x); }  // a step of adjacent columns
  static float One(const uint16_t* x, int64_t) { return __builtin_bit_cast(float, uint32_t{*x} << 16); }
  static V Product(V x, V y) { return x * y; }
  static V Product(float x, V y) { return x * y; }
  static float Product(float x, float y) { return x * y; }
};

// 8-bit integers that meet floats.
template <class S>
struct IntegerTerms : Bf16Terms {
  using Stored = S;

  static V Wide(const S* x) { return (V) __builtin_convertvector(WideBytes(x), typename VectorOf<float>::type); }
  static V Along(const S* x) { return Wide(x); }
  static V Across(const S* x, int64_t) { return Wide(x); }
  static float One(const S* x, int64_t) { return static_cast<float>(*x); }
};

// Pairs of integers as 16 bits each (GroupKernels).
template <class S>
struct PairTerms {
  using Stored = S;
  using Sum = uint32_t;
  static constexpr int kElements = 2;
  using V = VectorOf<uint32_t>::type;

  static V Along(const S* x) {
    const auto from = *reinterpret_cast<const typename Narrow<S, 2 * kLanes32>::type*>(x);
    return (V)WideWords<S>(from);
  }
  // The two rows' elements alternate.
  static V Across(const S* x, int64_t x_k) {
    using Half = typename Narrow<S, kLanes32>::type;
    const Half a = *reinterpret_cast<const Half*>(x), b = *reinterpret_cast<const Half*>(x + x_k);
    typename Narrow<S, 2 * kLanes32>::type both;
    if constexpr (kLanes32 == 4) {
      both = __builtin_shufflevector(a, b, 0, 4, 1, 5, 2, 6, 3, 7);
    } else if constexpr (kLanes32 == 8) {
      both = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    } else {
      both = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26,
                                     11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    return (V)WideWords<S>(both);
  }
  static uint32_t One(const S* x, int64_t x_k) {
    return static_cast<uint16_t>(x[0]) | uint32_t(uint16_t(x[x_k])) << 16;
  }
  static V Product(V x, V y) {
#if FERRULE_VECTOR_BYTES >= 32
    return MultiplyPairs(x, y);
#elif FERRULE_VECTOR_BYTES == 16 && defined(__x86_64__)
    typedef short Words __attribute__((vector_size(kBytes)));
    return (V)__builtin_ia32_pmaddwd128((Words)x, (Words)y);
#else
    typedef int32_t Signed __attribute__((vector_size(kBytes)));
    const Signed low_x = (Signed)(x << 16) >> 16, low_y = (Signed)(y << 16) >> 16;
    return (V)low_x * (V)low_y + (V)((Signed)x >> 16) * (V)((Signed)y >> 16);
#endif
  }
  static V Product(uint32_t x, V y) { return Product(V{} + x, y); }
  static uint32_t Product(uint32_t x, uint32_t y) {
    auto low = [](uint32_t v) { return static_cast<uint32_t>(static_cast<int16_t>(v)); };
    return low(x) * low(y) + low(x >> 16) * low(y >> 16);
  }
};

// y[v][0..n) += the products of kSteps steps: rows of the matrix `b_row` apart, those of a pair `pair` apart.
template <class F, int M, int kSteps>
void AddSteps(int64_t n, const typename F::Sum* x, int64_t x_vector, const typename F::Stored* b, int64_t b_row,
              int64_t pair, typename F::Sum* y, int64_t y_vector) {
  using T = typename F::Sum;
  using V = typename F::V;
  using U = typename VectorOf<T>::unaligned;
  constexpr int kVectors = 2;
  T left[M][kSteps];
  for (int v = 0; v < M; ++v) {
    for (int r = 0; r < kSteps; ++r) left[v][r] = x[v * x_vector + r];
  }
  int64_t j = 0;
  for (; j + kVectors * kLanes32 <= n; j += kVectors * kLanes32) {
    V sum[M][kVectors] = {};
    auto step = [&](int r) __attribute__((always_inline)) {
#pragma GCC unroll 2
      for (int i = 0; i < kVectors; ++i) {
        const V right = F::Across(b + r * F::kElements * b_row + j + i * kLanes32, pair);
#pragma GCC unroll 4
        for (int v = 0; v < M; ++v) sum[v][i] += F::Product(left[v][r], right);
      }
    };
    if constexpr (M == 1) {
#pragma GCC unroll 8
      for (int r = 0; r < kSteps; ++r) step(r);
    } else {  // the steps of several vectors side by side would not fit the registers
#pragma GCC unroll 1
      for (int r = 0; r < kSteps; ++r) step(r);
    }
#pragma GCC unroll 4
    for (int v = 0; v < M; ++v) {
#pragma GCC unroll 2
      for (int i = 0; i < kVectors; ++i) *reinterpret_cast<U*>(y + v * y_vector + j + i * kLanes32) += sum[v][i];
    }
  }
  for (; j < n; ++j) {
    for (int v = 0; v < M; ++v) {
      T sum = 0;
      for (int r = 0; r < kSteps; ++r) sum += F::Product(left[v][r], F::One(b + r * F::kElements * b_row + j, pair));
      y[v * y_vector + j] += sum;
    }
  }
}

// y[v][0..n) += sum over p of x[v][p] * B[p][0..n), where y stays in the nearest cache (AddRows in gemm_kernel.h).
template <class F, int M>
void AddNarrowRows(int64_t k, int64_t n, const typename F::Sum* x, int64_t x_vector, const void* b, int64_t b_row,
                   typename F::Sum* y, int64_t y_vector, int64_t) {
  constexpr int64_t kSteps = 8 / F::kElements;
  const auto* row = static_cast<const typename F::Stored*>(b);
  const int64_t whole = k / F::kElements;
  int64_t p = 0;
  for (; p + kSteps <= whole; p += kSteps) {
    AddSteps<F, M, kSteps>(n, x + p, x_vector, row + p * F::kElements * b_row, b_row, b_row, y, y_vector);
  }
  for (; p < whole; ++p) {
    AddSteps<F, M, 1>(n, x + p, x_vector, row + p * F::kElements * b_row, b_row, b_row, y, y_vector);
  }
  // A last row alone meets a zero of x.
  if (whole * F::kElements < k) {
    AddSteps<F, M, 1>(n, x + p, x_vector, row + p * F::kElements * b_row, b_row, 0, y, y_vector);
  }
}

// y[v][0..n) = sum over p of x[v][p] * B[p][0..n), the elements of a column adjacent and columns `b_col` apart.
template <class F, int M, int N, int kChains>
void DotsOf(int64_t k, const typename F::Sum* x, int64_t x_vector, const typename F::Stored* b, int64_t b_col,
            typename F::Sum* y, int64_t y_vector, int64_t y_stride) {
  using T = typename F::Sum;
  using V = typename F::V;
  using U = typename VectorOf<T>::unaligned;
  using Total = typename TotalOf<T>::type;
  constexpr int64_t kStep = kChains * kLanes32, kPart = kRun * kStep;
  const int64_t steps = k / F::kElements, whole = steps - steps % kStep;
  V total[M][N] = {};
  for (int64_t from = 0; from < whole; from += kPart) {
    V sum[M][N][kChains] = {};
    for (int64_t p = from, to = whole - from < kPart ? whole : from + kPart; p < to; p += kStep) {
#pragma GCC unroll 2
      for (int i = 0; i < kChains; ++i) {
        V left[M];
#pragma GCC unroll 4
        for (int v = 0; v < M; ++v) left[v] = *reinterpret_cast<const U*>(x + v * x_vector + p + i * kLanes32);
#pragma GCC unroll 4
        for (int c = 0; c < N; ++c) {
          const V right = F::Along(b + c * b_col + (p + i * kLanes32) * F::kElements);
#pragma GCC unroll 4
          for (int v = 0; v < M; ++v) sum[v][c][i] += F::Product(left[v], right);
        }
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < M; ++v) {
#pragma GCC unroll 4
      for (int c = 0; c < N; ++c) {
#pragma GCC unroll 2
        for (int i = 0; i < kChains; ++i) total[v][c] += sum[v][c][i];
      }
    }
  }
  for (int v = 0; v < M; ++v) {
    for (int c = 0; c < N; ++c) {
      const auto* column = b + c * b_col;
      Total all = 0;
      for (int l = 0; l < kLanes32; ++l) all += total[v][c][l];
      int64_t p = whole;
      for (; p < steps; ++p) all += F::Product(x[v * x_vector + p], F::One(column + p * F::kElements, 1));
      if (p * F::kElements < k) all += F::Product(x[v * x_vector + p], F::One(column + p * F::kElements, 0));
      y[v * y_vector + c * y_stride] = static_cast<T>(all);
    }
  }
}

template <class F, int M, int N, int kChains>
void NarrowDots(int64_t k, int64_t n, const typename F::Sum* x, int64_t x_vector, const void* b, int64_t b_col,
                typename F::Sum* y, int64_t y_vector, int64_t y_stride) {
  const auto* column = static_cast<const typename F::Stored*>(b);
  int64_t j = 0;
  for (; j + N <= n; j += N) {
    DotsOf<F, M, N, kChains>(k, x, x_vector, column + j * b_col, b_col, y + j * y_stride, y_vector, y_stride);
  }
  for (; j < n; ++j) {
    DotsOf<F, M, 1, kChains>(k, x, x_vector, column + j * b_col, b_col, y + j * y_stride, y_vector, y_stride);
  }
}

template <class F>
constexpr VectorKernels<typename F::Sum> Vectors() {
  return {F::kElements,
          {&NarrowDots<F, 1, 4, 2>, &NarrowDots<F, 2, 4, 1>},
          {&AddNarrowRows<F, 1>, &AddNarrowRows<F, 2>, &AddNarrowRows<F, 4>}};
}

}  // namespace FERRULE_ISA
}  // namespace ferrule

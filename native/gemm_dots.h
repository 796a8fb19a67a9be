// Dot products of one, two or four vectors with the columns of a matrix whose elements are adjacent. Part of
// gemm_kernel.h, of which the same is true: several instruction sets, no standard library.

namespace ferrule {
namespace FERRULE_ISA {

template <class T, int kLanes>
struct Lanes {
  typedef T type __attribute__((vector_size(kLanes * sizeof(T))));
};

// The sum of all lanes, half by half.
template <class T, int kLanes>
inline T AddLanes(typename Lanes<T, kLanes>::type v) {
  if constexpr (kLanes == 2) {
    return v[0] + v[1];
  } else if constexpr (kLanes == 4) {
    return AddLanes<T, 2>(__builtin_shufflevector(v, v, 0, 1) + __builtin_shufflevector(v, v, 2, 3));
  } else if constexpr (kLanes == 8) {
    return AddLanes<T, 4>(__builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7));
  } else {
    static_assert(kLanes == 16);
    return AddLanes<T, 8>(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                          __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
  }
}

// So many elements, fewer than a vector has, and zeros.
template <class T>
inline typename VectorOf<T>::type FirstLanes(const T* x, int64_t count) {
  using V = typename VectorOf<T>::type;
#if FERRULE_VECTOR_BYTES == 64
  const unsigned mask = (1u << count) - 1;
  if constexpr (sizeof(T) == 4) return (V)_mm512_maskz_loadu_epi32(static_cast<__mmask16>(mask), x);
  return (V)_mm512_maskz_loadu_epi64(static_cast<__mmask8>(mask), x);
#else
  V all = {};
  __builtin_memcpy(&all, x, count * sizeof(T));
  return all;
#endif
}

// y[v][c] = the dot product of x[v] and column c, for M vectors and N columns; each has kChains sums per lane, for one
// alone would wait for the instruction before.
template <class T, int M, int N, int kChains>
void DotTile(int64_t k, const T* x, int64_t x_vector, const T* b, int64_t b_col, T* y, int64_t y_vector,
             int64_t y_stride) {
  using V = typename VectorOf<T>::type;
  using U = typename VectorOf<T>::unaligned;
  using Total = typename TotalOf<T>::type;
  constexpr int kLanes = kBytes / sizeof(T);
  constexpr int64_t kStep = kChains * kLanes, kPart = kRun * kStep;
  using Wide = typename Lanes<Total, kLanes>::type;
  Total total[M][N] = {};
  V sum[M][N][kChains] = {};
  auto add_up = [&]() __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int v = 0; v < M; ++v) {
#pragma GCC unroll 4
      for (int c = 0; c < N; ++c) {
        V all = sum[v][c][0];
#pragma GCC unroll 2
        for (int i = 1; i < kChains; ++i) all += sum[v][c][i];
        total[v][c] += AddLanes<Total, kLanes>(__builtin_convertvector(all, Wide));
#pragma GCC unroll 2
        for (int i = 0; i < kChains; ++i) sum[v][c][i] = V{};
      }
    }
  };
  // A vector of each side, or with `part` its first elements.
  auto step = [&](int64_t p, int i, int64_t part) __attribute__((always_inline)) {
    auto load = [&](const T* at) __attribute__((always_inline)) -> V {
      return part > 0 ? FirstLanes(at, part) : *reinterpret_cast<const U*>(at);
    };
    V from[M];
#pragma GCC unroll 4
    for (int v = 0; v < M; ++v) from[v] = load(x + v * x_vector + p);
#pragma GCC unroll 4
    for (int c = 0; c < N; ++c) {
      const V to = load(b + c * b_col + p);
#pragma GCC unroll 4
      for (int v = 0; v < M; ++v) sum[v][c][i] += from[v] * to;
    }
  };
  const int64_t whole = k - k % kStep;
  int64_t p = 0;
  while (p < whole) {
    const int64_t end = whole - p < kPart ? whole : p + kPart;
    for (; p < end; p += kStep) {
#pragma GCC unroll 2
      for (int i = 0; i < kChains; ++i) step(p + i * kLanes, i, 0);
    }
    if (p < whole) add_up();
  }
  if (p + kLanes <= k) {
    step(p, 0, 0);
    p += kLanes;
  }
  if (p < k) step(p, 0, k - p);
  add_up();
  for (int v = 0; v < M; ++v) {
    for (int c = 0; c < N; ++c) y[v * y_vector + c * y_stride] = static_cast<T>(total[v][c]);
  }
}

// So many columns for four vectors: their sums have to stay in registers.
constexpr int kDotColumns = kBytes == 64 ? 4 : 2;

template <class T, int M, int N, int kChains>
void Dots(int64_t k, int64_t n, const T* x, int64_t x_vector, const T* b, int64_t b_col, T* y, int64_t y_vector,
          int64_t y_stride) {
  int64_t j = 0;
  for (; j + N <= n; j += N) {
    DotTile<T, M, N, kChains>(k, x, x_vector, b + j * b_col, b_col, y + j * y_stride, y_vector, y_stride);
  }
  for (; j < n; ++j) {
    DotTile<T, M, 1, 2>(k, x, x_vector, b + j * b_col, b_col, y + j * y_stride, y_vector, y_stride);
  }
}

}  // namespace FERRULE_ISA
}  // namespace ferrule

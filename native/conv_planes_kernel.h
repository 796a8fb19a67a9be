// The innermost loops of depthwise convolutions of planes, for several instruction sets as gemm_kernel.h is: nothing of
// the standard library may be instantiated here.
#include "conv_lines_tables.h"

namespace ferrule {
namespace FERRULE_ISA {

// The sums of kPlaneRows rows and V vectors of columns stay in registers. A vector that has been read is part of as
// many rows' sums as it can be: reads that begin anywhere cross lines of the cache, and would be the limit.
template <class T, int V>
inline void SumPlaneTile(const PlaneSums<T>& s, const T* from, T* to) {
  typedef T Vector __attribute__((vector_size(FERRULE_VECTOR_BYTES)));
  typedef T Unaligned __attribute__((vector_size(FERRULE_VECTOR_BYTES), may_alias, aligned(alignof(T))));
  constexpr int kLanes = FERRULE_VECTOR_BYTES / sizeof(T), R = kPlaneRows;
  Vector sum[R][V];
#pragma GCC unroll 4
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      sum[i][v] = s.accumulate ? (Vector) * reinterpret_cast<Unaligned*>(to + i * s.sums_pitch + v * kLanes) : Vector{};
    }
  }
  const T* weights = s.weights;  // of this row for the first one's sums
  for (int64_t row = 0; row < s.down + R - 1; ++row, from += s.pitch, weights += s.across) {
    auto add = [&]<int kFirst, int kLast>() __attribute__((always_inline)) {
      for (int64_t j = 0; j < s.across; ++j) {
        Vector values[V];
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) values[v] = *reinterpret_cast<const Unaligned*>(from + j + v * kLanes);
#pragma GCC unroll 4
        for (int i = kFirst; i <= kLast; ++i) {
          const T weight = weights[j - i * s.across];
#pragma GCC unroll 8
          for (int v = 0; v < V; ++v) sum[i][v] += values[v] * weight;
        }
      }
    };
    // The first and the last row whose sums this one is part of, as R * first + last.
    const int64_t rows = (row < s.down ? 0 : row - s.down + 1) * R + (row < R - 1 ? row : R - 1);
    auto choose = [&]<int... kRows>() __attribute__((always_inline)) {
      ((rows == kRows ? add.template operator()<kRows / R, kRows % R>() : void()), ...);
    };
    static_assert(R == 4);
    choose.template operator()<0, 1, 2, 3, 5, 6, 7, 10, 11, 15>();
  }
#pragma GCC unroll 4
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) *reinterpret_cast<Unaligned*>(to + i * s.sums_pitch + v * kLanes) = sum[i][v];
  }
}

template <class T>
void SumPlane(const PlaneSums<T>& s) {
  constexpr int64_t kLanes = FERRULE_VECTOR_BYTES / sizeof(T);
  constexpr int kVectors = FERRULE_VECTOR_BYTES == 64 ? 6 : 3;
  for (int64_t y = 0; y < s.rows; y += kPlaneRows) {
    const T* from = s.from + y * s.pitch;
    T* to = s.sums + y * s.sums_pitch;
    int64_t x = 0;
    for (; x + (kVectors - 1) * kLanes < s.width; x += kVectors * kLanes)
      SumPlaneTile<T, kVectors>(s, from + x, to + x);
    if constexpr (kVectors > 3) {
      for (; x + 2 * kLanes < s.width; x += 3 * kLanes) SumPlaneTile<T, 3>(s, from + x, to + x);
    }
    for (; x + kLanes < s.width; x += 2 * kLanes) SumPlaneTile<T, 2>(s, from + x, to + x);
    for (; x < s.width; x += kLanes) SumPlaneTile<T, 1>(s, from + x, to + x);
  }
}

}  // namespace FERRULE_ISA
}  // namespace ferrule

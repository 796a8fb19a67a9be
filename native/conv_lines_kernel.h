// The innermost loops of convolutions along lines, written once with vector types and compiled for several instruction
// sets as gemm_kernel.h is: nothing of the standard library may be instantiated here.
#include "conv_lines_tables.h"
#include "conv_planes_kernel.h"

namespace ferrule {
namespace FERRULE_ISA {

// VECTORS vectors of each of F features' sums stay in registers. TAPS of them, one for each of so many taps in turn,
// where a single one would wait for its own last addition.
template <class T, int F, int VECTORS, int TAPS>
inline void SumBlock(const LineSums<T>& s, int64_t x) {
  typedef T Vector __attribute__((vector_size(FERRULE_VECTOR_BYTES)));
  typedef T Unaligned __attribute__((vector_size(FERRULE_VECTOR_BYTES), may_alias, aligned(alignof(T))));
  constexpr int kLanes = FERRULE_VECTOR_BYTES / sizeof(T);
  Vector sum[TAPS][F][VECTORS];
#pragma GCC unroll 8
  for (int u = 0; u < TAPS; ++u) {
#pragma GCC unroll 4
    for (int f = 0; f < F; ++f) {
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; ++v) sum[u][f][v] = Vector{};
    }
  }
  for (int64_t l = 0; l < s.line_count; ++l) {
    const T *line = s.lines[l] + x, *weights = s.weights + l * s.weights_line;
    int64_t t = 0;
    for (; t + TAPS <= s.taps; t += TAPS, weights += TAPS * F) {
#pragma GCC unroll 8
      for (int u = 0; u < TAPS; ++u) {
        const T* from = line + s.at[t + u];
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v) {
          Vector values = *reinterpret_cast<const Unaligned*>(from + v * kLanes);
#pragma GCC unroll 4
          for (int f = 0; f < F; ++f) sum[u][f][v] += values * weights[u * F + f];
        }
      }
    }
    for (; TAPS > 1 && t < s.taps; ++t, weights += F) {
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; ++v) {
        Vector values = *reinterpret_cast<const Unaligned*>(line + s.at[t] + v * kLanes);
#pragma GCC unroll 4
        for (int f = 0; f < F; ++f) sum[0][f][v] += values * weights[f];
      }
    }
  }
#pragma GCC unroll 4
  for (int f = 0; f < F; ++f) {
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v) {
      Vector total = sum[0][f][v];
#pragma GCC unroll 8
      for (int u = 1; u < TAPS; ++u) total += sum[u][f][v];
      *reinterpret_cast<Unaligned*>(s.sums + f * s.sums_row + x + v * kLanes) += total;
    }
  }
}

template <class T, int F>
void SumLines(const LineSums<T>& s) {
  constexpr int kLanes = FERRULE_VECTOR_BYTES / sizeof(T);
  constexpr int kMost = FERRULE_VECTOR_BYTES == 64 ? 16 : 8, kVectors = kMost / F > 8 ? 8 : kMost / F;
  // Two sums of half as many products are closer to the whole than one, where there are registers for both.
  constexpr int kSums = kMost / (F * kVectors);
  int64_t x = 0;
  for (; x + (kVectors - 1) * kLanes < s.width; x += kVectors * kLanes) SumBlock<T, F, kVectors, kSums>(s, x);
  if constexpr (kVectors > 2) {
    for (; x + kLanes < s.width; x += 2 * kLanes) SumBlock<T, F, 2, 4 / F>(s, x);
  }
  for (; x < s.width; x += kLanes) SumBlock<T, F, 1, 8 / F>(s, x);
}

template <class T>
constexpr LineFunctions<T> LinesOf() {
  return {SumLines<T, 1>, SumLines<T, 2>, SumLines<T, 4>};
}

constexpr LineKernels Lines() {
  return {LinesOf<float>(),    LinesOf<double>(), LinesOf<uint32_t>(),
          LinesOf<uint64_t>(), SumPlane<float>,   SumPlane<double>};
}

}  // namespace FERRULE_ISA
}  // namespace ferrule

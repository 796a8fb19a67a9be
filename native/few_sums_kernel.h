// The innermost loops of sums with few outputs, written once with vector types and compiled for several instruction
// sets as gemm_kernel.h is: nothing of the standard library may be instantiated here.
#include "few_sums_tables.h"
#include "lanes.h"

namespace ferrule {
namespace FERRULE_ISA {

constexpr int64_t kLongFew = 256;

// A vector of products for each of POSITIONS x OUTPUTS sums stays in a register; their lanes are added at the end.
template <class T, int OUTPUTS, int POSITIONS>
inline void FewGroup(const FewSums<T>& s, int64_t first) {
  using Vector = typename Lanes<T>::Vector;
  using Index = typename Lanes<T>::Index;
  constexpr int kLanes = Lanes<T>::kCount, kSums = OUTPUTS * POSITIONS, kVectors = (kSums + kLanes - 1) / kLanes;
  Vector sum[kVectors * kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kVectors * kLanes; ++i) sum[i] = Vector{};
  const int64_t rest = s.depth % kLanes, whole = s.depth - rest, row = rest > 0 ? whole + kLanes : whole;
  // What is left over is read with elements before it, which count as zeros, not with what may be behind the array.
  const Index left = Counted<T>() >= static_cast<typename Lanes<T>::Integer>(kLanes - rest) ? ~Index{} : Index{};
  for (int64_t r = 0; r < s.count; ++r) {
    const T *x = s.runs[r] + first * s.step, *weights = s.weights[r];
    for (int64_t i = 0; i < whole; i += kLanes) {
      Vector values[POSITIONS];
#pragma GCC unroll 16
      for (int p = 0; p < POSITIONS; ++p) values[p] = Load(x + p * s.step + i);
#pragma GCC unroll 8
      for (int o = 0; o < OUTPUTS; ++o) {
        const Vector weight = Load(weights + o * row + i);
#pragma GCC unroll 16
        for (int p = 0; p < POSITIONS; ++p) sum[p * OUTPUTS + o] += values[p] * weight;
      }
    }
    if (rest == 0) continue;
    Vector values[POSITIONS];
#pragma GCC unroll 16
    for (int p = 0; p < POSITIONS; ++p) {
      values[p] = (Vector)((Index)Load(x + p * s.step + s.depth - kLanes) & left);
    }
#pragma GCC unroll 8
    for (int o = 0; o < OUTPUTS; ++o) {
      const Vector weight = Load(weights + o * row + whole);
#pragma GCC unroll 16
      for (int p = 0; p < POSITIONS; ++p) sum[p * OUTPUTS + o] += values[p] * weight;
    }
  }
  T* to = s.sums + first * OUTPUTS;
  const T* end = s.sums + s.positions * OUTPUTS;
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v, to += kLanes) {
    const Vector sums = Sums<kLanes, kLanes>(sum + v * kLanes);
    constexpr int kLast = kSums - (kVectors - 1) * kLanes;
    if ((v + 1 < kVectors || kLast == kLanes) || end - to >= kLanes) {
      Store(to, sums);  // the next group writes the places behind its own again
    } else {
      __builtin_memcpy(to, &sums, kLast * sizeof(T));
    }
  }
}

template <class T, int OUTPUTS, int POSITIONS>
inline void FewGroups(const FewSums<T>& s) {
  int64_t i = 0;
  for (; i + POSITIONS <= s.positions; i += POSITIONS) FewGroup<T, OUTPUTS, POSITIONS>(s, i);
  if (i == s.positions) return;
  // The last ones together with some before them, which get the same sums again.
  if (s.positions >= POSITIONS) return FewGroup<T, OUTPUTS, POSITIONS>(s, s.positions - POSITIONS);
  for (; i < s.positions; ++i) FewGroup<T, OUTPUTS, 1>(s, i);
}

template <class T, int OUTPUTS>
void FewSumsOf(const FewSums<T>& s) {
  constexpr int kMost = FERRULE_VECTOR_BYTES == 64 ? 16 : FERRULE_VECTOR_BYTES == 32 ? 12 : 8;  // registers of sums
  if constexpr (FERRULE_VECTOR_BYTES == 64 && OUTPUTS > 4) {
    // Long sums are worth more positions for each vector of weights that is read; of short ones, adding up the lanes of
    // as many sums as a vector has is most of the work.
    if (s.count * s.depth >= kLongFew) return FewGroups<T, OUTPUTS, 24 / OUTPUTS>(s);
  }
  FewGroups<T, OUTPUTS, kMost / OUTPUTS>(s);
}

template <class T>
constexpr FewFunctions<T> FewOf() {
  return {Lanes<T>::kCount,
          {FewSumsOf<T, 1>, FewSumsOf<T, 2>, FewSumsOf<T, 3>, FewSumsOf<T, 4>, FewSumsOf<T, 5>, FewSumsOf<T, 6>,
           FewSumsOf<T, 7>, FewSumsOf<T, 8>}};
}

constexpr FewKernels Few() { return {FewOf<float>(), FewOf<double>()}; }

}  // namespace FERRULE_ISA
}  // namespace ferrule

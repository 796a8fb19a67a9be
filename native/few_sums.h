// Sums of products with few outputs at each position: vectors go along what is summed, so that none is mostly empty.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cpu_features.h"
#include "few_sums_tables.h"

namespace ferrule {

template <class T>
const FewFunctions<T>& ChosenFew() {
  const FewKernels* kernels = &kBaselineFew;
#if defined(__x86_64__)
  if (ChosenIsa() == Isa::kAvx512) kernels = &kAvx512Few;
  if (ChosenIsa() == Isa::kAvx2) kernels = &kAvx2Few;
#endif
  if constexpr (std::is_same_v<T, float>) {
    return kernels->f32;
  } else {
    return kernels->f64;
  }
}

// Elements of a row of weights: whole vectors.
inline int64_t FewRow(int64_t depth, int64_t lanes) { return (depth + lanes - 1) / lanes * lanes; }

// Lays out one output's weights of a run, of which `from` has one after the other: the last vector has the last
// elements, and zeros for those that the vectors before it have.
template <class T>
void FewWeights(const T* from, int64_t depth, int64_t lanes, T* to) {
  const int64_t rest = depth % lanes, whole = depth - rest;
  std::copy_n(from, whole, to);
  if (rest == 0) return;
  std::fill_n(to + whole, lanes - rest, T(0));
  std::copy_n(from + whole, rest, to + whole + lanes - rest);
}

}  // namespace ferrule

// The innermost loops of convolutions along lines that the processor is to run.
#pragma once

#include <type_traits>

#include "conv_lines_tables.h"

namespace ferrule {

const LineKernels& ChosenLines();

template <class T>
const LineFunctions<T>& LineFunctionsOf() {
  if constexpr (std::is_same_v<T, float>) return ChosenLines().f32;
  if constexpr (std::is_same_v<T, double>) return ChosenLines().f64;
  if constexpr (std::is_same_v<T, uint32_t>) return ChosenLines().u32;
  if constexpr (std::is_same_v<T, uint64_t>) return ChosenLines().u64;
}

template <class T>
PlaneFunction<T> PlaneFunctionOf() {
  if constexpr (std::is_same_v<T, float>) return ChosenLines().f32_planes;
  if constexpr (std::is_same_v<T, double>) return ChosenLines().f64_planes;
}

}  // namespace ferrule

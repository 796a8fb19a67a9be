// What a set of innermost loops offers to sums with few outputs; one table per instruction set.
#pragma once

#include <cstdint>

namespace ferrule {

// sums[p * outputs + o] = sum over runs r and elements i < depth of runs[r][p * step + i] * weights[r][o][i] for every
// position p < positions. A row of weights is as FewWeights (few_sums.h) lays it out.
template <class T>
struct FewSums {
  const T* const* runs;     // where each run of the first position begins
  const T* const* weights;  // those of each run
  int64_t count;            // of runs
  int64_t depth;            // of a run: a vector's elements at least
  int64_t step;
  T* sums;
  int64_t positions;
};

template <class T>
using FewFunction = void (*)(const FewSums<T>&);

constexpr int kFewOutputs = 8;

template <class T>
struct FewFunctions {
  int64_t lanes;
  FewFunction<T> outputs[kFewOutputs];  // for one output and more
};

struct FewKernels {
  FewFunctions<float> f32;
  FewFunctions<double> f64;
};

extern const FewKernels kBaselineFew;
#if defined(__x86_64__)
extern const FewKernels kAvx2Few, kAvx512Few;
#endif

}  // namespace ferrule

// What a set of innermost loops offers to the convolution along lines; one table per instruction set.
#pragma once

#include <cstdint>

namespace ferrule {

// sums[f * sums_row + x] += sum over lines l and taps t of weights[l * weights_line + t * F + f] * lines[l][at[t] + x]
// for f < F and x < width. Up to kLineLanes - 1 elements more are read from each line, and more sums are written.
template <class T>
struct LineSums {
  const T* const* lines;
  int64_t line_count;
  const int64_t* at;
  int64_t taps;
  const T* weights;
  int64_t weights_line;
  T* sums;
  int64_t sums_row, width;
};

template <class T>
using LineFunction = void (*)(const LineSums<T>&);

// More than any vector has elements.
constexpr int64_t kLineLanes = 64;

// For one, two and four features at once.
template <class T>
struct LineFunctions {
  LineFunction<T> one, two, four;
};

// sums[y * sums_pitch + x] (+)= sum over i < down, j < across of weights[i * across + j] * from[(y + i) * pitch + x +
// j] for y < rows, x < width. Whole groups of kPlaneRows rows and whole vectors are read and written.
template <class T>
struct PlaneSums {
  const T* from;
  int64_t pitch;
  const T* weights;
  int64_t down, across;
  T* sums;
  int64_t sums_pitch, rows, width;
  bool accumulate;
};

constexpr int kPlaneRows = 4;

template <class T>
using PlaneFunction = void (*)(const PlaneSums<T>&);

struct LineKernels {
  LineFunctions<float> f32;
  LineFunctions<double> f64;
  LineFunctions<uint32_t> u32;
  LineFunctions<uint64_t> u64;
  PlaneFunction<float> f32_planes;
  PlaneFunction<double> f64_planes;
};

extern const LineKernels kBaselineLines;
#if defined(__x86_64__)
extern const LineKernels kAvx2Lines, kAvx512Lines;
#endif

}  // namespace ferrule

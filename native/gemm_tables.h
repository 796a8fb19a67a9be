// What a set of innermost loops offers to the blocked matrix product; one table per instruction set.
#pragma once

#include <cstdint>

namespace ferrule {

template <class T>
struct MicroKernels {
  int rows, columns;  // of the tile that one call computes
  // (k, a, a_row, a_k, b panel, c, c_row, accumulate)
  void (*packed)(int64_t, const T*, int64_t, int64_t, const T*, T*, int64_t, bool);
  void (*in_place)(int64_t, const T*, int64_t, int64_t, const T*, T*, int64_t, bool);
  // (x, x_w, x_k, width, k, panel), for panels of `rows` and of `columns`
  void (*pack_rows)(const T*, int64_t, int64_t, int64_t, int64_t, T*);
  void (*pack_columns)(const T*, int64_t, int64_t, int64_t, int64_t, T*);
  // (k, n, x, x_stride, b, b_row, y)
  void (*row_times_matrix)(int64_t, int64_t, const T*, int64_t, const T*, int64_t, T*);
  // (k, n, x, b, b_col, y, y_stride)
  void (*row_times_columns)(int64_t, int64_t, const T*, const T*, int64_t, T*, int64_t);
};

template <class R>
struct ComplexMicroKernels {
  int rows, columns;
  void (*packed)(int64_t, const R*, int64_t, int64_t, const R*, R*, int64_t, bool);
  void (*in_place)(int64_t, const R*, int64_t, int64_t, const R*, R*, int64_t, bool);
};

struct GemmKernels {
  const char* isa;
  MicroKernels<float> f32;
  MicroKernels<double> f64;
  MicroKernels<uint32_t> u32;
  MicroKernels<uint64_t> u64;
  ComplexMicroKernels<float> c64;
  ComplexMicroKernels<double> c128;
};

extern const GemmKernels kBaselineGemm;
#if defined(__x86_64__)
extern const GemmKernels kAvx2Gemm, kAvx512Gemm;
#endif

}  // namespace ferrule

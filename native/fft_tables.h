// What a set of innermost loops offers to Fourier transforms; one table per instruction set. See fft_stages.h.
#pragma once

#include <cstdint>

namespace ferrule {

// The largest radix of stages without a convolution, and how many products are added in a row there.
constexpr int kLargestRadix = 160, kRun = 16;

// Neighbouring signals that are transformed together.
template <class R>
constexpr int kLine = 64 / sizeof(R);

// Transforms of some rows of a few points together, see fft_short.h: of rows * columns points each.
template <class R>
struct ShortFft {
  int64_t rows, columns;
  int64_t lanes;    // numbers in a vector
  int64_t signals;  // how many at once
  // Forward and inverse: (x, y, scratch, twiddle, scale); scratch has 2 rows columns numbers for
  // each signal.
  void (*run[2])(const R*, R*, R*, const R*, R);
};

template <class R>
struct FftStages {
  // By radix: (xr, xi, yr, yi, rest, span, apart, twiddle); null where there is none.
  void (*stage[9])(const R*, const R*, R*, R*, int64_t, int64_t, int64_t, const R*);
  // By radix, forward and inverse: (x, yr, yi, rest, twiddle).
  void (*first[9][2])(const R*, R*, R*, int64_t, const R*);
  // By radix, forward and inverse: (xr, xi, y, span, scale).
  void (*last[9][2])(const R*, const R*, R*, int64_t, R);
  // By radix, forward and inverse: (x, stride, yr, yi, rest, twiddle), and (xr, xi, y, stride, count, scale).
  void (*first_of_lines[9][2])(const R*, int64_t, R*, R*, int64_t, const R*);
  void (*last_of_lines[9][2])(const R*, const R*, R*, int64_t, int64_t, R);
  // Of any odd radix up to kLargestRadix: (radix, roots, xr, xi, yr, yi, rest, span, twiddle).
  void (*any)(int64_t, const R*, const R*, const R*, R*, R*, int64_t, int64_t, const R*);
  // Of real signals, see fft_real.h: (radix, roots, x, yr, yi, rest, twiddle), and (radix, roots, xr, xi, y, rest,
  // twiddle).
  void (*real_first)(int64_t, const R*, const R*, R*, R*, int64_t, const R*);
  void (*real_last)(int64_t, const R*, const R*, const R*, R*, int64_t, const R*);
  // Products with complex factors: (xr, xi, step, factors, yr, yi, to_step, count, lanes), and of interleaved parts,
  // also with exchanged parts of x: (x, factors, y, count, scale).
  void (*scale)(const R*, const R*, int64_t, const R*, R*, R*, int64_t, int64_t, int64_t);
  void (*scale_row[2])(const R*, const R*, R*, int64_t, R);
  // Lines in the order of places, or their conjugates: (places, count, xr, xi, yr, yi).
  void (*order)(const int32_t*, int64_t, const R*, const R*, R*, R*);
  // (x, distance, count, re, im, apart, lanes), and (re, im, apart, places, y, distance, count, lanes, scale).
  void (*to_lanes)(const R*, int64_t, int64_t, R*, R*, int64_t, int64_t);
  void (*to_rows)(const R*, const R*, int64_t, const int32_t*, R*, int64_t, int64_t, int64_t, R);
  void (*turn)(const R*, const R*, int64_t, const R*, const R*, R*, int64_t);  // (xr, xi, count, near, far, y, block)
  ShortFft<R> short_ffts[5];                 // of 16, 32, 64, 128 and 256 points; of none where vectors are short
  void (*split)(const R*, R*, R*, int64_t);  // interleaved parts to two arrays
  void (*join)(const R*, const R*, R*, int64_t, R);                   // and back, scaled
  void (*unfold)(const R*, const R*, R*, int64_t, int64_t, int64_t);  // (z, roots, x, h, begin, end)
  void (*fold)(const R*, const R*, R*, int64_t, int64_t, int64_t);    // (x, roots, z, h, begin, end)
};

struct FftKernels {
  FftStages<float> f32;
  FftStages<double> f64;
};

extern const FftKernels kBaselineFft;
#if defined(__x86_64__)
extern const FftKernels kAvx2Fft, kAvx512Fft;
#endif

}  // namespace ferrule

// What fft_vectors.h does, with vectors of 64 bytes: one instruction exchanges any numbers of two of them.
#pragma once

#include "fft_vectors.h"

namespace ferrule {
namespace FERRULE_ISA {

#if FERRULE_VECTOR_BYTES == 64

template <bool kInverse>
FERRULE_ALWAYS void Apart(const Floats64& a, const Floats64& b, Floats64& re, Floats64& im) {
  Floats64 even = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  Floats64 odd = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  re = kInverse ? odd : even, im = kInverse ? even : odd;
}
template <bool kInverse>
FERRULE_ALWAYS void Apart(const Doubles64& a, const Doubles64& b, Doubles64& re, Doubles64& im) {
  Doubles64 even = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14);
  Doubles64 odd = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
  re = kInverse ? odd : even, im = kInverse ? even : odd;
}
template <bool kInverse, class R>
FERRULE_ALWAYS void LoadParts(const R* x, typename Wide<R, 64>::V& re, typename Wide<R, 64>::V& im) {
  const typename Wide<R, 64>::V a = At<64>(x), b = At<64>(x + 64 / sizeof(R));
  Apart<kInverse>(a, b, re, im);
}

template <bool kInverse>
FERRULE_ALWAYS void Together(Floats64& re, Floats64& im) {
  const Floats64 a = kInverse ? im : re, b = kInverse ? re : im;
  re = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  im = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
template <bool kInverse>
FERRULE_ALWAYS void Together(Doubles64& re, Doubles64& im) {
  const Doubles64 a = kInverse ? im : re, b = kInverse ? re : im;
  re = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  im = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}
template <bool kInverse, class R>
FERRULE_ALWAYS void StoreParts(R* y, const typename Wide<R, 64>::V& re, const typename Wide<R, 64>::V& im) {
  typename Wide<R, 64>::V a = re, b = im;
  Together<kInverse>(a, b);
  At<64>(y) = a, At<64>(y + 64 / sizeof(R)) = b;
}

// One number in the first half of a vector, another in the second.
FERRULE_ALWAYS void Halves(float a, float b, Floats64& v) {
  const Floats64 first = a - Floats64{}, second = b - Floats64{};
  v = __builtin_shufflevector(first, second, 0, 0, 0, 0, 0, 0, 0, 0, 16, 16, 16, 16, 16, 16, 16, 16);
}
FERRULE_ALWAYS void Halves(double a, double b, Doubles64& v) {
  const Doubles64 first = a - Doubles64{}, second = b - Doubles64{};
  v = __builtin_shufflevector(first, second, 0, 0, 0, 0, 8, 8, 8, 8);
}

// The quarters q of four vectors, one after the other, go to y[q * apart].
template <class R, class V>
FERRULE_ALWAYS void StoreQuarters(R* y, int64_t apart, const V& v0, const V& v1, const V& v2, const V& v3) {
  Quarters(v0, v1, v2, v3, [&](int q, const V& x) { At<64>(y + q * apart) = x; });
}

// Number j of vector r goes to y[kRows * j + r].
template <int kRows>
FERRULE_ALWAYS void StoreTurned(float* y, Floats64* v) {
  static_assert(kRows == 4 || kRows == 8);
  for (int r = 0; r < kRows; r += 4) TileTurned(v + r);
  if constexpr (kRows == 8) {
    StoreQuarters(y, 32, v[0], v[4], v[1], v[5]);
    StoreQuarters(y + 16, 32, v[2], v[6], v[3], v[7]);
  } else {
    StoreQuarters(y, 16, v[0], v[1], v[2], v[3]);
  }
}
template <int kRows>
FERRULE_ALWAYS void StoreTurned(double* y, Doubles64* v) {
  static_assert(kRows == 4 || kRows == 8);
  for (int r = 0; r < kRows; r += 2) TileTurned(v + r);
  if constexpr (kRows == 8) {
    StoreQuarters(y, 16, v[0], v[2], v[4], v[6]);
    StoreQuarters(y + 8, 16, v[1], v[3], v[5], v[7]);
  } else {
    StoreQuarters(y, 8, v[0], v[2], v[1], v[3]);
  }
}

#endif

}  // namespace FERRULE_ISA
}  // namespace ferrule

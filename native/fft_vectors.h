// Real and imaginary parts between memory and vectors of 32 bytes, for the loops of fft_stages.h; fft_wide.h has the
// same with 64 bytes for where registers have as many.
#pragma once

#include "vector_tiles.h"

namespace ferrule {
namespace FERRULE_ISA {

// One number in the first half of a vector, another in the second.
FERRULE_ALWAYS void Halves(float a, float b, Wide<float>::V& v) { v = Wide<float>::V{a, a, a, a, b, b, b, b}; }
FERRULE_ALWAYS void Halves(double a, double b, Wide<double>::V& v) { v = Wide<double>::V{a, a, b, b}; }

// Interleaved real and imaginary parts of a vector's numbers, two vectors of them, apart. (The function behind it takes
// the first halves of both in the first one.)
template <bool kInverse>
FERRULE_ALWAYS void PartsOfHalves(const Wide<float>::V& a, const Wide<float>::V& b, Wide<float>::V& re,
                                  Wide<float>::V& im) {
  Wide<float>::V even = __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14);
  Wide<float>::V odd = __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
  re = kInverse ? odd : even, im = kInverse ? even : odd;
}
template <bool kInverse>
FERRULE_ALWAYS void PartsOfHalves(Wide<double>::V a, Wide<double>::V b, Wide<double>::V& re, Wide<double>::V& im) {
  Interleave(a, b);
  re = kInverse ? b : a, im = kInverse ? a : b;
}
template <bool kInverse, class V>
FERRULE_ALWAYS void Apart(const V& first, const V& second, V& re, V& im) {
  V a = first, b = second;
  ExchangeHalves(a, b);
  PartsOfHalves<kInverse>(a, b, re, im);
}
template <bool kInverse, class R>
FERRULE_ALWAYS void LoadParts(const R* x, typename Wide<R>::V& re, typename Wide<R>::V& im) {
  constexpr int kHalf = kWidth<R> / 2;
  typename Wide<R>::V a, b;
  JoinHalves(a, x, x + 2 * kHalf), JoinHalves(b, x + kHalf, x + 3 * kHalf);
  PartsOfHalves<kInverse>(a, b, re, im);
}

// And interleaved, in place.
template <bool kInverse, class V>
FERRULE_ALWAYS void Together(V& re, V& im) {
  if constexpr (kInverse) {
    const V swapped = re;
    re = im, im = swapped;
  }
  Interleave(re, im);
  ExchangeHalves(re, im);
}
template <bool kInverse, class R>
FERRULE_ALWAYS void StoreParts(R* y, const typename Wide<R>::V& re, const typename Wide<R>::V& im) {
  typename Wide<R>::V a = re, b = im;
  Together<kInverse>(a, b);
  At(y) = a, At(y + kWidth<R>) = b;
}

// Number j of vector r goes to y[kRows * j + r].
template <int kRows>
FERRULE_ALWAYS void StoreTurned(double* y, Wide<double>::V* v) {
  static_assert(kRows % 4 == 0);
  for (int r = 0; r < kRows; r += 4) {
    Turned(v + r, [&](int j, const auto& column) { At(y + kRows * j + r) = column; });
  }
}
template <int kRows>
FERRULE_ALWAYS void StoreTurned(float* y, Wide<float>::V* v) {
  static_assert(kRows == 4 || kRows == 8);
  if constexpr (kRows == 8) {
    Turned(v, [&](int j, const auto& column) { At(y + kRows * j) = column; });
  } else {
    TileTurned(v);
    ExchangeHalves(v[0], v[1]), ExchangeHalves(v[2], v[3]);
    At(y) = v[0], At(y + 8) = v[2], At(y + 16) = v[1], At(y + 24) = v[3];
  }
}

}  // namespace FERRULE_ISA
}  // namespace ferrule

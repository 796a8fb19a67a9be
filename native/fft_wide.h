// What fft_vectors.h does, with vectors of 64 bytes: one instruction exchanges any numbers of two of them.
#pragma once

#include "fft_vectors.h"

namespace ferrule {
namespace FERRULE_ISA {

#if FERRULE_VECTOR_BYTES == 64

typedef Wide<float, 64>::V Floats64;
typedef Wide<double, 64>::V Doubles64;

template <bool kInverse>
FERRULE_ALWAYS void LoadParts(const float* x, Floats64& re, Floats64& im) {
  const Floats64 a = At<64>(x), b = At<64>(x + 16);
  Floats64 even = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  Floats64 odd = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  re = kInverse ? odd : even, im = kInverse ? even : odd;
}
template <bool kInverse>
FERRULE_ALWAYS void LoadParts(const double* x, Doubles64& re, Doubles64& im) {
  const Doubles64 a = At<64>(x), b = At<64>(x + 8);
  Doubles64 even = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14);
  Doubles64 odd = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
  re = kInverse ? odd : even, im = kInverse ? even : odd;
}

template <bool kInverse>
FERRULE_ALWAYS void StoreParts(float* y, const Floats64& re, const Floats64& im) {
  const Floats64 &a = kInverse ? im : re, &b = kInverse ? re : im;
  At<64>(y) = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  At<64>(y + 16) = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
template <bool kInverse>
FERRULE_ALWAYS void StoreParts(double* y, const Doubles64& re, const Doubles64& im) {
  const Doubles64 &a = kInverse ? im : re, &b = kInverse ? re : im;
  At<64>(y) = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  At<64>(y + 8) = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}

// In each quarter of 16 bytes, as the functions of these names do in halves.
FERRULE_ALWAYS void Interleave(Floats64& a, Floats64& b) {
  Floats64 first = __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
  b = __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  a = first;
}
FERRULE_ALWAYS void InterleavePairs(Floats64& a, Floats64& b) {
  Floats64 first = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
  b = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  a = first;
}
FERRULE_ALWAYS void Interleave(Doubles64& a, Doubles64& b) {
  Doubles64 first = __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14);
  b = __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
  a = first;
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
  const auto a = reinterpret_cast<Doubles64>(v0), b = reinterpret_cast<Doubles64>(v1);
  const auto c = reinterpret_cast<Doubles64>(v2), d = reinterpret_cast<Doubles64>(v3);
  const Doubles64 p = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
  const Doubles64 q = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
  const Doubles64 r = __builtin_shufflevector(c, d, 0, 1, 2, 3, 8, 9, 10, 11);
  const Doubles64 s = __builtin_shufflevector(c, d, 4, 5, 6, 7, 12, 13, 14, 15);
  auto put = [&](int64_t at, Doubles64 x) { At<64>(y + at) = reinterpret_cast<V>(x); };
  put(0, __builtin_shufflevector(p, r, 0, 1, 4, 5, 8, 9, 12, 13));
  put(apart, __builtin_shufflevector(p, r, 2, 3, 6, 7, 10, 11, 14, 15));
  put(2 * apart, __builtin_shufflevector(q, s, 0, 1, 4, 5, 8, 9, 12, 13));
  put(3 * apart, __builtin_shufflevector(q, s, 2, 3, 6, 7, 10, 11, 14, 15));
}

// Number j of vector r goes to y[kRows * j + r].
template <int kRows>
FERRULE_ALWAYS void StoreTurned(float* y, Floats64* v) {
  static_assert(kRows == 4 || kRows == 8);
  for (int r = 0; r < kRows; r += 4) {
    // Quarter q of v[r + i] gets four numbers of 4 q + 0, 2, 1 and 3.
    Interleave(v[r], v[r + 1]), Interleave(v[r + 2], v[r + 3]);
    InterleavePairs(v[r], v[r + 2]), InterleavePairs(v[r + 1], v[r + 3]);
  }
  if constexpr (kRows == 8) {
    StoreQuarters(y, 32, v[0], v[4], v[2], v[6]);
    StoreQuarters(y + 16, 32, v[1], v[5], v[3], v[7]);
  } else {
    StoreQuarters(y, 16, v[0], v[2], v[1], v[3]);
  }
}
template <int kRows>
FERRULE_ALWAYS void StoreTurned(double* y, Doubles64* v) {
  static_assert(kRows == 4 || kRows == 8);
  for (int r = 0; r < kRows; r += 2) Interleave(v[r], v[r + 1]);  // two numbers of 2 q in v[r], of 2 q + 1 in v[r + 1]
  if constexpr (kRows == 8) {
    StoreQuarters(y, 16, v[0], v[2], v[4], v[6]);
    StoreQuarters(y + 8, 16, v[1], v[3], v[5], v[7]);
  } else {
    StoreQuarters(y, 8, v[0], v[2], v[1], v[3]);
  }
}

#endif

// The bytes of the vectors of stages, and the numbers in one.
#if FERRULE_VECTOR_BYTES == 64
constexpr int kFullBytes = 64;
#else
constexpr int kFullBytes = 32;
#endif
template <class R>
constexpr int kFull = kFullBytes / sizeof(R);

}  // namespace FERRULE_ISA
}  // namespace ferrule

// What fft_vectors.h does, with vectors of 64 bytes: one instruction exchanges any numbers of two of them.
#pragma once

#if FERRULE_VECTOR_BYTES == 64
#include <immintrin.h>
#endif

#include "fft_vectors.h"

namespace ferrule {
namespace FERRULE_ISA {

#if FERRULE_VECTOR_BYTES == 64

typedef Wide<float, 64>::V Floats64;
typedef Wide<double, 64>::V Doubles64;

// Two vectors of 32 bytes, or four of 16, as one.
FERRULE_ALWAYS void Join(const Wide<float>::V& a, const Wide<float>::V& b, Floats64& v) {
  v = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
FERRULE_ALWAYS void Join(const Wide<double>::V& a, const Wide<double>::V& b, Doubles64& v) {
  v = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7);
}
// (The compiler would load each quarter before it joins them.)
FERRULE_ALWAYS void JoinQuarters(Floats64& v, const float* a, const float* b, const float* c, const float* d) {
  __m512 joined = _mm512_castps128_ps512(_mm_loadu_ps(a));
  joined = _mm512_insertf32x4(joined, _mm_loadu_ps(b), 1);
  joined = _mm512_insertf32x4(joined, _mm_loadu_ps(c), 2);
  v = _mm512_insertf32x4(joined, _mm_loadu_ps(d), 3);
}
FERRULE_ALWAYS void JoinQuarters(Doubles64& v, const double* a, const double* b, const double* c, const double* d) {
  __m512d joined = _mm512_castpd128_pd512(_mm_loadu_pd(a));
  joined = _mm512_insertf64x2(joined, _mm_loadu_pd(b), 1);
  joined = _mm512_insertf64x2(joined, _mm_loadu_pd(c), 2);
  v = _mm512_insertf64x2(joined, _mm_loadu_pd(d), 3);
}

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

FERRULE_ALWAYS void TileTurned(Floats64* v) {
  Interleave(v[0], v[1]), Interleave(v[2], v[3]);
  InterleavePairs(v[0], v[2]), InterleavePairs(v[1], v[3]);
  const Floats64 third = v[1];
  v[1] = v[2], v[2] = third;
}
FERRULE_ALWAYS void TileTurned(Doubles64* v) { Interleave(v[0], v[1]); }

// One number in the first half of a vector, another in the second.
FERRULE_ALWAYS void Halves(float a, float b, Floats64& v) {
  const Floats64 first = a - Floats64{}, second = b - Floats64{};
  v = __builtin_shufflevector(first, second, 0, 0, 0, 0, 0, 0, 0, 0, 16, 16, 16, 16, 16, 16, 16, 16);
}
FERRULE_ALWAYS void Halves(double a, double b, Doubles64& v) {
  const Doubles64 first = a - Doubles64{}, second = b - Doubles64{};
  v = __builtin_shufflevector(first, second, 0, 0, 0, 0, 8, 8, 8, 8);
}

// `put` gets, for each q, the quarters q of four vectors.
template <class V, class Put>
FERRULE_ALWAYS void Quarters(const V& v0, const V& v1, const V& v2, const V& v3, Put&& put) {
  const auto a = reinterpret_cast<Doubles64>(v0), b = reinterpret_cast<Doubles64>(v1);
  const auto c = reinterpret_cast<Doubles64>(v2), d = reinterpret_cast<Doubles64>(v3);
  const Doubles64 p = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
  const Doubles64 q = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
  const Doubles64 r = __builtin_shufflevector(c, d, 0, 1, 2, 3, 8, 9, 10, 11);
  const Doubles64 s = __builtin_shufflevector(c, d, 4, 5, 6, 7, 12, 13, 14, 15);
  put(0, reinterpret_cast<V>(__builtin_shufflevector(p, r, 0, 1, 4, 5, 8, 9, 12, 13)));
  put(1, reinterpret_cast<V>(__builtin_shufflevector(p, r, 2, 3, 6, 7, 10, 11, 14, 15)));
  put(2, reinterpret_cast<V>(__builtin_shufflevector(q, s, 0, 1, 4, 5, 8, 9, 12, 13)));
  put(3, reinterpret_cast<V>(__builtin_shufflevector(q, s, 2, 3, 6, 7, 10, 11, 14, 15)));
}

// The quarters q of four vectors, one after the other, go to y[q * apart].
template <class R, class V>
FERRULE_ALWAYS void StoreQuarters(R* y, int64_t apart, const V& v0, const V& v1, const V& v2, const V& v3) {
  Quarters(v0, v1, v2, v3, [&](int q, const V& x) { At<64>(y + q * apart) = x; });
}

template <class Put>
FERRULE_ALWAYS void Turned(Floats64* v, Put&& put) {
  for (int r = 0; r < 16; r += 4) TileTurned(v + r);
  for (int i = 0; i < 4; ++i) {
    Quarters(v[i], v[i + 4], v[i + 8], v[i + 12], [&](int q, const auto& x) { put(4 * q + i, x); });
  }
}
template <class Put>
FERRULE_ALWAYS void Turned(Doubles64* v, Put&& put) {
  for (int r = 0; r < 8; r += 2) TileTurned(v + r);
  for (int i = 0; i < 2; ++i) {
    Quarters(v[i], v[i + 2], v[i + 4], v[i + 6], [&](int q, const auto& x) { put(2 * q + i, x); });
  }
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

// The bytes of the vectors of stages, and the numbers in one.
#if FERRULE_VECTOR_BYTES == 64
constexpr int kFullBytes = 64;
#else
constexpr int kFullBytes = 32;
#endif
template <class R>
constexpr int kFull = kFullBytes / sizeof(R);

// A vector of what lies at kParts places.
template <int kBytes, int kParts, class R, class Place>
FERRULE_ALWAYS void Gathered(typename Wide<R, kBytes>::V& v, Place&& at) {
  if constexpr (kParts == 1) {
    v = At<kBytes>(at(0));
  } else if constexpr (kBytes == 32) {
    JoinHalves(v, at(0), at(1));
  } else if constexpr (kParts == 2) {
    Join(At<32>(at(0)), At<32>(at(1)), v);
  } else {
    JoinQuarters(v, at(0), at(1), at(2), at(3));
  }
}

}  // namespace FERRULE_ISA
}  // namespace ferrule

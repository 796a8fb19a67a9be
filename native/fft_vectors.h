// Vectors for the loops of fft_stages.h where the compiler's own come out slow: what exchanges parts of vectors. They
// are 32 bytes wide and exchange within halves of 16 first, which is one instruction each with AVX, and natural where
// vectors have 16 bytes; fft_wide.h has the same with 64 bytes for where registers have as many.
#pragma once

#include <cstdint>

#define FERRULE_ALWAYS inline __attribute__((always_inline))

namespace ferrule {
namespace FERRULE_ISA {

// V is a vector of numbers R anywhere in memory, H half of one. Templates that are given a V forget that it may lie
// anywhere, so that local arrays are aligned.
template <class R, int kBytes = 32>
struct Wide;
template <int kBytes>
struct Wide<float, kBytes> {
  typedef float V __attribute__((vector_size(kBytes), aligned(4)));
  typedef float H __attribute__((vector_size(kBytes / 2), aligned(4)));
};
template <int kBytes>
struct Wide<double, kBytes> {
  typedef double V __attribute__((vector_size(kBytes), aligned(8)));
  typedef double H __attribute__((vector_size(kBytes / 2), aligned(8)));
};

// Numbers in a vector.
template <class R>
constexpr int kWidth = 32 / sizeof(R);

template <int kBytes = 32, class R>
FERRULE_ALWAYS typename Wide<R, kBytes>::V& At(R* p) {
  return *reinterpret_cast<typename Wide<R, kBytes>::V*>(p);
}
template <int kBytes = 32, class R>
FERRULE_ALWAYS const typename Wide<R, kBytes>::V& At(const R* p) {
  return *reinterpret_cast<const typename Wide<R, kBytes>::V*>(p);
}

// Two halves of what is at a and at b. (Results go to references: as values they would have no convention where vectors
// of 32 bytes are no registers.)
FERRULE_ALWAYS void JoinHalves(Wide<float>::V& v, const float* a, const float* b) {
  v = __builtin_shufflevector(*reinterpret_cast<const Wide<float>::H*>(a), *reinterpret_cast<const Wide<float>::H*>(b),
                              0, 1, 2, 3, 4, 5, 6, 7);
}
FERRULE_ALWAYS void JoinHalves(Wide<double>::V& v, const double* a, const double* b) {
  v = __builtin_shufflevector(*reinterpret_cast<const Wide<double>::H*>(a),
                              *reinterpret_cast<const Wide<double>::H*>(b), 0, 1, 2, 3);
}

// The first halves of two vectors, and the second ones.
FERRULE_ALWAYS void ExchangeHalves(Wide<float>::V& a, Wide<float>::V& b) {
  Wide<float>::V first = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
  b = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
  a = first;
}
FERRULE_ALWAYS void ExchangeHalves(Wide<double>::V& a, Wide<double>::V& b) {
  Wide<double>::V first = __builtin_shufflevector(a, b, 0, 1, 4, 5);
  b = __builtin_shufflevector(a, b, 2, 3, 6, 7);
  a = first;
}

// One number in the first half of a vector, another in the second.
FERRULE_ALWAYS void Halves(float a, float b, Wide<float>::V& v) { v = Wide<float>::V{a, a, a, a, b, b, b, b}; }
FERRULE_ALWAYS void Halves(double a, double b, Wide<double>::V& v) { v = Wide<double>::V{a, a, b, b}; }

// In each half: numbers of the two vectors by turns, the first ones in a, the rest in b.
FERRULE_ALWAYS void Interleave(Wide<float>::V& a, Wide<float>::V& b) {
  Wide<float>::V first = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
  b = __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
  a = first;
}
FERRULE_ALWAYS void Interleave(Wide<double>::V& a, Wide<double>::V& b) {
  Wide<double>::V first = __builtin_shufflevector(a, b, 0, 4, 2, 6);
  b = __builtin_shufflevector(a, b, 1, 5, 3, 7);
  a = first;
}
// The same with pairs of numbers.
FERRULE_ALWAYS void InterleavePairs(Wide<float>::V& a, Wide<float>::V& b) {
  Wide<float>::V first = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
  b = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
  a = first;
}

// Of as many vectors as 16 bytes have numbers, the tiles of 16 bytes each are transposed.
FERRULE_ALWAYS void TileTurned(Wide<float>::V* v) {
  Interleave(v[0], v[1]), Interleave(v[2], v[3]);
  InterleavePairs(v[0], v[2]), InterleavePairs(v[1], v[3]);
  const Wide<float>::V third = v[1];
  v[1] = v[2], v[2] = third;
}
FERRULE_ALWAYS void TileTurned(Wide<double>::V* v) { Interleave(v[0], v[1]); }

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

// `put` gets, for each j, number j of as many vectors as each of them has numbers.
template <class Put>
FERRULE_ALWAYS void Turned(Wide<float>::V* v, Put&& put) {
  TileTurned(v), TileTurned(v + 4);
  for (int i = 0; i < 4; ++i) {
    ExchangeHalves(v[i], v[i + 4]);
    put(i, v[i]), put(i + 4, v[i + 4]);
  }
}
template <class Put>
FERRULE_ALWAYS void Turned(Wide<double>::V* v, Put&& put) {
  TileTurned(v), TileTurned(v + 2);
  for (int i = 0; i < 2; ++i) {
    ExchangeHalves(v[i], v[i + 2]);
    put(i, v[i]), put(i + 2, v[i + 2]);
  }
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

// Vectors whose parts are exchanged, where the compiler's own come out slow: files of loops that are compiled for
// several instruction sets include this one. Vectors of 32 bytes exchange within halves of 16 first, which is one
// instruction each with AVX, and natural where vectors have 16 bytes; with AVX-512 there are such of 64 bytes, too.
#pragma once

#if FERRULE_VECTOR_BYTES == 64
#include <immintrin.h>
#endif

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

// `put` gets, for each j, number j of as many vectors as each of them has numbers.
template <class V, class Put>
  requires(sizeof(V) == 32)
FERRULE_ALWAYS void Turned(V* v, Put&& put) {
  constexpr int kTile = 16 / sizeof(v[0][0]);
  TileTurned(v), TileTurned(v + kTile);
  for (int i = 0; i < kTile; ++i) {
    ExchangeHalves(v[i], v[i + kTile]);
    put(i, v[i]), put(i + kTile, v[i + kTile]);
  }
}

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

template <class V, class Put>
  requires(sizeof(V) == 64)
FERRULE_ALWAYS void Turned(V* v, Put&& put) {
  constexpr int kTile = 16 / sizeof(v[0][0]);
  for (int r = 0; r < 4 * kTile; r += kTile) TileTurned(v + r);
  for (int i = 0; i < kTile; ++i) {
    Quarters(v[i], v[i + kTile], v[i + 2 * kTile], v[i + 3 * kTile],
             [&](int q, const auto& x) { put(kTile * q + i, x); });
  }
}

#endif

// The bytes of a vector as wide as registers are, 32 at least, and the numbers in one.
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

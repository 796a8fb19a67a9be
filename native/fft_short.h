// Rows of 16 to 256 points, a power of two, as a matrix of kRows times kColumns points: transforms along its columns,
// factors, the transposed matrix, and transforms along its rows. Vectors run along the matrix; what is too short for
// one is filled up with other signals. A part of fft_stages.h.
#pragma once

#include "fft_points.h"
#include "fft_tables.h"
#include "fft_wide.h"

namespace ferrule {
namespace FERRULE_ISA {

// (Files with instructions of their own instantiate nothing of the standard library.)
template <class T>
constexpr T Larger(T a, T b) {
  return a > b ? a : b;
}
template <class T>
constexpr T Smaller(T a, T b) {
  return a < b ? a : b;
}

// What vectors of kBytes hold of a matrix with lines of kLength numbers: so many of one line, of so many signals.
template <class R, int kLength, int kBytes>
struct Packed {
  static constexpr int kNumbers = kBytes / sizeof(R);
  static constexpr int kOfLine = Smaller(kLength, kNumbers), kSignals = kNumbers / kOfLine;
};

// As many signals as Packed says, one behind the other.
template <class R, int kBytes, int kRows, int kColumns, bool kInverse>
void ShortRowsOf(const R* x, R* y, R* scratch, const R* twiddle, R scale) {
  typedef typename Wide<R, kBytes>::V V;
  typedef Packed<R, kColumns, kBytes> First;
  typedef Packed<R, kRows, kBytes> Second;
  constexpr int kL = First::kNumbers, kTile = 16 / sizeof(R), kSignals = Larger(First::kSignals, Second::kSignals);
  constexpr int kSignal = 2 * kRows * kColumns;
  // Transforms along columns.
  for (int s = 0; s < kSignals; s += First::kSignals) {
    const R* w = twiddle;
    for (int j = 0; j < kColumns; j += First::kOfLine) {
      alignas(64) V re[kRows], im[kRows];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        constexpr int kParts = Larger(1, First::kSignals / 2);  // of each of two vectors
        V a, b;
        const R* from = x + s * kSignal + 2 * (r * kColumns + j);
        if constexpr (First::kSignals == 1) {
          a = At<kBytes>(from), b = At<kBytes>(from + kL);
        } else {
          Gathered<kBytes, kParts, R>(a, [&](int i) { return from + i * kSignal; });
          Gathered<kBytes, kParts, R>(b, [&](int i) { return from + (kParts + i) * kSignal; });
        }
        Apart<kInverse>(a, b, re[r], im[r]);
      }
      Points<R, kRows>(re, im);
#pragma GCC unroll 16
      for (int r = 1; r < kRows; ++r, w += 2 * kL) {
        const V wr = At<kBytes>(w), wi = At<kBytes>(w + kL), real = re[r] * wr - im[r] * wi;
        im[r] = re[r] * wi + im[r] * wr, re[r] = real;
      }
      // Transposed in tiles of 16 bytes, it goes to scratch memory: a tile is kTile rows of one column.
      for (int r = 0; r < kRows; r += kTile) TileTurned(re + r), TileTurned(im + r);
      R* place = scratch + (s / First::kSignals * (kColumns / First::kOfLine) + j / First::kOfLine) * 2 * kRows * kL;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        At<kBytes>(place + r * kL) = re[r], At<kBytes>(place + (kRows + r) * kL) = im[r];
      }
    }
  }
  // Else the compiler takes the tiles from what is in registers still, which takes longer than to load them.
  asm("" : : : "memory");
  // Transforms along rows.
  for (int s = 0; s < kSignals; s += Second::kSignals) {
    for (int k = 0; k < kRows; k += Second::kOfLine) {
      alignas(64) V re[kColumns], im[kColumns];
#pragma GCC unroll 16
      for (int j = 0; j < kColumns; ++j) {
        const auto tile = [&](int i) {
          const int signal = s + kTile * i / Second::kOfLine, row = k + kTile * i % Second::kOfLine;
          const int lane = signal % First::kSignals * First::kOfLine + j % First::kOfLine;
          const int block = signal / First::kSignals * (kColumns / First::kOfLine) + j / First::kOfLine;
          return scratch + (block * 2 * kRows + row + lane % kTile) * kL + lane / kTile * kTile;
        };
        Gathered<kBytes, kL / kTile, R>(re[j], tile);
        Gathered<kBytes, kL / kTile, R>(im[j], [&](int i) { return tile(i) + kRows * kL; });
      }
      Points<R, kColumns>(re, im);
#pragma GCC unroll 16
      for (int j = 0; j < kColumns; ++j) {
        V a = re[j] * scale, b = im[j] * scale;
        Together<kInverse>(a, b);
        R* out = y + s * kSignal + 2 * (j * kRows + k);
        if constexpr (Second::kSignals <= 2) {
          At<kBytes>(out) = a, At<kBytes>(out + (Second::kSignals == 1 ? kL : kSignal)) = b;
        } else {
          static_assert(Second::kSignals == 4);
          typedef typename Wide<R, kBytes>::H H;
          const H *first = reinterpret_cast<const H*>(&a), *second = reinterpret_cast<const H*>(&b);
          At<kBytes / 2>(out) = first[0], At<kBytes / 2>(out + kSignal) = first[1];
          At<kBytes / 2>(out + 2 * kSignal) = second[0], At<kBytes / 2>(out + 3 * kSignal) = second[1];
        }
      }
    }
  }
}

template <class R, int kRows, int kColumns>
constexpr ShortFft<R> ShortRows() {
  constexpr int kB = kFullBytes;
  return {kRows,
          kColumns,
          kB / static_cast<int>(sizeof(R)),
          Larger(Packed<R, kColumns, kB>::kSignals, Packed<R, kRows, kB>::kSignals),
          {ShortRowsOf<R, kB, kRows, kColumns, false>, ShortRowsOf<R, kB, kRows, kColumns, true>}};
}

}  // namespace FERRULE_ISA
}  // namespace ferrule

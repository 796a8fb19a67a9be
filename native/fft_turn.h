// Between signals one after the other, of interleaved real and imaginary parts, and signals beside each other as lanes,
// parts apart; a part of fft_stages.h.
#pragma once

#include "fft_tables.h"
#include "fft_wide.h"

namespace ferrule {
namespace FERRULE_ISA {

// What ToLanes does, by tiles of 16 bytes: some numbers of as many signals become signals of one number.
template <int kBytes, class R>
FERRULE_ALWAYS void TilesToLanes(const R* x, int64_t distance, int64_t count, R* re, R* im, int64_t apart,
                                 int64_t lanes) {
  constexpr int64_t kW = kBytes / sizeof(R), kTile = 16 / sizeof(R), kPoints = kTile / 2;
  for (int64_t l = 0; l < lanes; l += kW) {
    for (int64_t i = 0; i < count; i += kPoints) {
      if (i + kPoints > count) i = count - kPoints;  // some once more in place of some alone
      alignas(64) typename Wide<R, kBytes>::V v[kTile];
      for (int64_t r = 0; r < kTile; ++r) {
        const R* from = x + (l + r) * distance + 2 * i;
        Gathered<kBytes, kW / kTile, R>(v[r], [&](int64_t tile) { return from + tile * kTile * distance; });
      }
      TileTurned(v);
      for (int64_t p = 0; p < kPoints; ++p) {
        At<kBytes>(re + (i + p) * apart + l) = v[2 * p], At<kBytes>(im + (i + p) * apart + l) = v[2 * p + 1];
      }
    }
  }
}

// Point i of signal l, x[l * distance + 2 i] and the next number, goes to re[i * apart + l] and im[i * apart + l].
template <class R>
void ToLanes(const R* x, int64_t distance, int64_t count, R* re, R* im, int64_t apart, int64_t lanes) {
  if (count > 1 && lanes % kFull<R> == 0) {
    return TilesToLanes<kFullBytes>(x, distance, count, re, im, apart, lanes);
  }
  if (count > 1 && lanes % kWidth<R> == 0) return TilesToLanes<32>(x, distance, count, re, im, apart, lanes);
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t l = 0; l < lanes; ++l) {
      re[i * apart + l] = x[l * distance + 2 * i], im[i * apart + l] = x[l * distance + 2 * i + 1];
    }
  }
}

// Where ToRows finds a point, and what its imaginary part is multiplied by.
template <class R>
struct Found {
  int64_t from;
  R sign;
  Found(const int32_t* places, int64_t i, int64_t apart, R scale) {
    const int64_t at = places ? places[i] : i;
    from = (at < 0 ? ~at : at) * apart, sign = at < 0 ? -scale : scale;
  }
};

template <int kBytes, class R>
FERRULE_ALWAYS void SquaresToRows(const R* re, const R* im, int64_t apart, const int32_t* places, R* y,
                                  int64_t distance, int64_t count, int64_t lanes, R scale) {
  constexpr int64_t kW = kBytes / sizeof(R), kPoints = kW / 2;
  for (int64_t i = 0; i < count; i += kPoints) {
    if (i + kPoints > count) i = count - kPoints;
    for (int64_t l = 0; l < lanes; l += kW) {
      alignas(64) typename Wide<R, kBytes>::V v[kW];
      for (int64_t p = 0; p < kPoints; ++p) {
        const Found<R> found(places, i + p, apart, scale);
        v[2 * p] = At<kBytes>(re + found.from + l) * scale, v[2 * p + 1] = At<kBytes>(im + found.from + l) * found.sign;
      }
      Turned(v, [&](int64_t signal, const auto& row) { At<kBytes>(y + (l + signal) * distance + 2 * i) = row; });
    }
  }
}

// And back, times `scale`. Where there are places, point i is in the i-th one, or its conjugate where that is ~place.
template <class R>
void ToRows(const R* re, const R* im, int64_t apart, const int32_t* places, R* y, int64_t distance, int64_t count,
            int64_t lanes, R scale) {
  // (Tiles, as on the way in, are level here, and slower where rows are a power of two apart.)
  if (2 * count >= kFull<R> && lanes % kFull<R> == 0) {
    return SquaresToRows<kFullBytes>(re, im, apart, places, y, distance, count, lanes, scale);
  }
  if (2 * count >= kWidth<R> && lanes % kWidth<R> == 0) {
    return SquaresToRows<32>(re, im, apart, places, y, distance, count, lanes, scale);
  }
  for (int64_t i = 0; i < count; ++i) {
    const Found<R> found(places, i, apart, scale);
    for (int64_t l = 0; l < lanes; ++l) {
      R* to = y + l * distance + 2 * i;
      to[0] = re[found.from + l] * scale, to[1] = im[found.from + l] * found.sign;
    }
  }
}

}  // namespace FERRULE_ISA
}  // namespace ferrule

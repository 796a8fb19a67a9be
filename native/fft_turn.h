// Between signals one after the other, of interleaved real and imaginary parts, and signals beside each other as lanes,
// parts apart; a part of fft_stages.h.
#pragma once

#include "fft_tables.h"
#include "fft_vectors.h"

namespace ferrule {
namespace FERRULE_ISA {

// Point i of signal l, x[l * distance + 2 i] and the next number, goes to re[i * apart + l] and im[i * apart + l].
// `lanes` is a multiple of a vector's numbers.
template <class R>
void ToLanes(const R* x, int64_t distance, int64_t count, R* re, R* im, int64_t apart, int64_t lanes) {
  constexpr int64_t kW = kWidth<R>;
  for (int64_t i = 0; count >= kW && i < count; i += kW) {
    if (i + kW > count) i = count - kW;  // some once more in place of some alone
    for (int64_t l = 0; l < lanes; l += kW) {
      alignas(64) typename Wide<R>::V a[kW], b[kW];
      for (int64_t r = 0; r < kW; ++r) LoadParts<false>(x + (l + r) * distance + 2 * i, a[r], b[r]);
      StoreTurned<kW>(re + i * apart + l, a, apart);
      StoreTurned<kW>(im + i * apart + l, b, apart);
    }
  }
  for (int64_t i = 0; count < kW && i < count; ++i) {
    for (int64_t l = 0; l < lanes; ++l) {
      re[i * apart + l] = x[l * distance + 2 * i], im[i * apart + l] = x[l * distance + 2 * i + 1];
    }
  }
}

// And back, times `scale`. Where there are places, point i is in the i-th one, or its conjugate where that is ~place.
template <class R>
void ToRows(const R* re, const R* im, int64_t apart, const int32_t* places, R* y, int64_t distance, int64_t count,
            int64_t lanes, R scale) {
  constexpr int64_t kW = kWidth<R>;
  const auto place = [&](int64_t i, R& sign) {
    const int64_t at = places ? places[i] : i;
    sign = at < 0 ? -scale : scale;
    return (at < 0 ? ~at : at) * apart;
  };
  for (int64_t i = 0; count >= kW && i < count; i += kW) {
    if (i + kW > count) i = count - kW;
    int64_t from[kW];
    R sign[kW];
    for (int64_t r = 0; r < kW; ++r) from[r] = place(i + r, sign[r]);
    for (int64_t l = 0; l < lanes; l += kW) {
      alignas(64) typename Wide<R>::V a[kW], b[kW];
      for (int64_t r = 0; r < kW; ++r) {
        a[r] = At(re + from[r] + l) * scale, b[r] = At(im + from[r] + l) * sign[r];
      }
      R turned[2 * kW * kW];
      StoreTurned<kW>(turned, a, kW);
      StoreTurned<kW>(turned + kW * kW, b, kW);
      for (int64_t r = 0; r < kW; ++r) {
        StoreParts<false>(y + (l + r) * distance + 2 * i, At(turned + r * kW), At(turned + (kW + r) * kW));
      }
    }
  }
  for (int64_t i = 0; count < kW && i < count; ++i) {
    R sign;
    const int64_t from = place(i, sign);
    for (int64_t l = 0; l < lanes; ++l) {
      y[l * distance + 2 * i] = re[from + l] * scale, y[l * distance + 2 * i + 1] = im[from + l] * sign;
    }
  }
}

}  // namespace FERRULE_ISA
}  // namespace ferrule

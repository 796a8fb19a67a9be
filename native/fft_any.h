// Stages of Fourier transforms for any odd radix, with about radix^2 multiplications; a part of fft_stages.h.
#pragma once

#include "fft_tables.h"
#include "fft_wide.h"

namespace ferrule {
namespace FERRULE_ISA {

// A vector of numbers, or one. (As an argument of a template, a vector's type forgets that it may lie anywhere.)
template <class V, class R>
FERRULE_ALWAYS void Load(V& v, const R* p) {
  if constexpr (sizeof(V) == sizeof(R)) {
    v = *p;
  } else {
    v = At<sizeof(V)>(p);
  }
}

// Keeps what is loaded for several products: the compiler would load it for each, and loads are what there is most of.
template <class V>
FERRULE_ALWAYS void InRegister([[maybe_unused]] V& v) {
#if FERRULE_VECTOR_BYTES == 64
  asm("" : "+x"(v));
#endif
}

// The transforms of `radix` points `step` apart; `store` gets number, real and imaginary part of each. `roots`: the
// radix-th roots of one, re and im.
//
// Points u and radix - u have conjugate factors: X[r] and X[radix - r] are the sum and the difference of what the sums
// and the differences of such points give.
template <class V, class R, class Store>
FERRULE_ALWAYS void AnyPoints(int64_t radix, const R* roots, const R* xr, const R* xi, int64_t step, Store&& store) {
  struct Pair {
    V sr, si, dr, di;
  } pairs[kLargestRadix / 2];
  const int64_t half = radix / 2;
  V first_r, first_i;
  Load(first_r, xr), Load(first_i, xi);
  V total_r = first_r, total_i = first_i;
  for (int64_t u = 1; u <= half; ++u) {
    V ar, ai, br, bi;
    Load(ar, xr + u * step), Load(ai, xi + u * step);
    Load(br, xr + (radix - u) * step), Load(bi, xi + (radix - u) * step);
    Pair& p = pairs[u - 1];
    p.sr = ar + br, p.si = ai + bi, p.dr = ar - br, p.di = ai - bi;
    total_r += p.sr, total_i += p.si;
  }
  store(0, total_r, total_i);
  for (int64_t r = 1; r <= half; r += 2) {
    // Two at a time: what is loaded serves both. (The last of an odd number is done twice.)
    const int64_t other = r < half ? r + 1 : r;
    V cr = first_r, ci = first_i, sr = {}, si = {}, other_cr = first_r, other_ci = first_i, other_sr = {},
      other_si = {};
    int64_t at = 0, other_at = 0;
    for (int64_t from = 0; from < half;) {
      // In runs: the errors of the sums of many points stay smaller.
      const int64_t end = from + kRun < half ? from + kRun : half;
      V r0 = {}, i0 = {}, r1 = {}, i1 = {}, r2 = {}, i2 = {}, r3 = {}, i3 = {};
      for (; from < end; ++from) {
        at += r, other_at += other;
        at -= at >= radix ? radix : 0, other_at -= other_at >= radix ? radix : 0;
        const R c0 = roots[2 * at], s0 = roots[2 * at + 1], c1 = roots[2 * other_at], s1 = roots[2 * other_at + 1];
        Pair p = pairs[from];
        InRegister(p.sr), InRegister(p.si), InRegister(p.dr), InRegister(p.di);
        r0 += p.sr * c0, i0 += p.si * c0, r1 += p.dr * s0, i1 += p.di * s0;
        r2 += p.sr * c1, i2 += p.si * c1, r3 += p.dr * s1, i3 += p.di * s1;
      }
      cr += r0, ci += i0, sr += r1, si += i1;
      other_cr += r2, other_ci += i2, other_sr += r3, other_si += i3;
    }
    store(r, cr - si, ci + sr);
    store(radix - r, cr + si, ci - sr);
    store(other, other_cr - other_si, other_ci + other_sr);
    store(radix - other, other_cr + other_si, other_ci - other_sr);
  }
}

// AnyStage, where at least a vector of numbers is treated alike.
template <int kBytes, class R>
FERRULE_ALWAYS void AnyOfVectors(int64_t radix, const R* roots, const R* xr, const R* xi, R* yr, R* yi, int64_t rest,
                                 int64_t span, const R* twiddle) {
  typedef typename Wide<R, kBytes>::V V;
  constexpr int64_t kW = kBytes / sizeof(R);
  for (int64_t j = 0; j < rest; ++j) {
    for (int64_t t = 0; t < span; t += kW) {
      if (t + kW > span) t = span - kW;  // some once more in place of some alone
      const int64_t from = j * span + t;
      AnyPoints<V>(radix, roots, xr + from, xi + from, rest * span, [&](int64_t r, const V& re, const V& im) {
        const int64_t to = (radix * j + r) * span + t;
        V &to_r = At<kBytes>(yr + to), &to_i = At<kBytes>(yi + to);
        if (r == 0 || rest == 1) {
          to_r = re, to_i = im;
        } else {
          const R *w = twiddle + 2 * (j * (radix - 1) + r - 1), wr = w[0], wi = w[1];
          to_r = re * wr - im * wi, to_i = re * wi + im * wr;
        }
      });
    }
  }
}

// As Stage (see fft_stages.h), for a radix up to kLargestRadix.
template <class R>
void AnyStage(int64_t radix, const R* roots, const R* __restrict xr, const R* __restrict xi, R* __restrict yr,
              R* __restrict yi, int64_t rest, int64_t span, const R* twiddle) {
  typedef typename Wide<R>::V V;
  constexpr int64_t kW = kWidth<R>;
  if (span >= kFull<R>) return AnyOfVectors<kFullBytes>(radix, roots, xr, xi, yr, yi, rest, span, twiddle);
  if (span >= kW) return AnyOfVectors<32>(radix, roots, xr, xi, yr, yi, rest, span, twiddle);
  const int64_t step = rest * span;
  // Result r of point j and number t from x's `from` on.
  auto place = [&](int64_t j, int64_t r, int64_t t) { return (radix * j + r) * span + t; };
  auto factor = [&](int64_t j, int64_t r) { return twiddle + 2 * (j * (radix - 1) + r - 1); };
  auto put = [&](int64_t i, int64_t r, R re, R im) {
    const int64_t j = i / span, to = place(j, r, i % span);
    const R wr = r ? factor(j, r)[0] : R(1), wi = r ? factor(j, r)[1] : R(0);
    yr[to] = re * wr - im * wi, yi[to] = re * wi + im * wr;
  };
  if (step >= kW) {
    // Vectors over the points of several j.
    R re[kLargestRadix * kW], im[kLargestRadix * kW];
    for (int64_t i = 0; i < step; i += kW) {
      if (i + kW > step) i = step - kW;
      AnyPoints<V>(radix, roots, xr + i, xi + i, step,
                   [&](int64_t r, const V& a, const V& b) { At(re + r * kW) = a, At(im + r * kW) = b; });
      for (int64_t l = 0; l < kW; ++l) {
        for (int64_t r = 0; r < radix; ++r) put(i + l, r, re[r * kW + l], im[r * kW + l]);
      }
    }
    return;
  }
  for (int64_t i = 0; i < step; ++i) {
    AnyPoints<R>(radix, roots, xr + i, xi + i, step, [&](int64_t r, R re, R im) { put(i, r, re, im); });
  }
}

// Lines of `lanes` numbers, real and imaginary parts apart, times a complex factor for each line.
template <class R>
void Scale(const R* xr, const R* xi, int64_t step, const R* __restrict factors, R* yr, R* yi, int64_t to_step,
           int64_t count, int64_t lanes) {
  typedef typename Wide<R, kFullBytes>::V V;
  for (int64_t k = 0; k < count; ++k, xr += step, xi += step, yr += to_step, yi += to_step) {
    const R wr = factors[2 * k], wi = factors[2 * k + 1];
    int64_t t = 0;
    for (; t + kFull<R> <= lanes; t += kFull<R>) {
      V re = At<kFullBytes>(xr + t), im = At<kFullBytes>(xi + t);
      At<kFullBytes>(yr + t) = re * wr - im * wi, At<kFullBytes>(yi + t) = re * wi + im * wr;
    }
    for (; t < lanes; ++t) {
      R re = xr[t], im = xi[t];
      yr[t] = re * wr - im * wi, yi[t] = re * wi + im * wr;
    }
  }
}

// Interleaved parts times such factors times a number.
template <class R, bool kInverse>
void ScaleRow(const R* x, const R* __restrict factors, R* y, int64_t count, R scale) {
  typedef typename Wide<R, kFullBytes>::V V;
  int64_t k = 0;
  for (; k + kFull<R> <= count; k += kFull<R>) {
    V re, im, wr, wi;
    LoadParts<kInverse>(x + 2 * k, re, im), LoadParts<false>(factors + 2 * k, wr, wi);
    V a = (re * wr - im * wi) * scale, b = (re * wi + im * wr) * scale;
    StoreParts<false>(y + 2 * k, a, b);
  }
  for (; k < count; ++k) {
    R re = x[2 * k + kInverse], im = x[2 * k + !kInverse], wr = factors[2 * k], wi = factors[2 * k + 1];
    y[2 * k] = (re * wr - im * wi) * scale, y[2 * k + 1] = (re * wi + im * wr) * scale;
  }
}

}  // namespace FERRULE_ISA
}  // namespace ferrule

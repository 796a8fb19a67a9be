// The stages of Fourier transforms of real signals of odd length that meet real numbers; a part of fft_stages.h. (What
// fft_odd.h is about says why these, and only half of the results.)
#pragma once

#include "fft_any.h"

namespace ferrule {
namespace FERRULE_ISA {

// Adds radix / 2 products each to sum[0], for r, and to sum[1], for `other`, so that what is loaded serves both: x[u -
// 1] times the radix-th root of one of number u r, or u other, x[u - 1][0] times its real part and x[u - 1][1] times
// its imaginary one. Each is kVectors vectors, which share what is loaded of the roots.
template <int kVectors, class V, class R>
FERRULE_ALWAYS void TwoSums(int64_t radix, const R* roots, const V (*x)[2][kVectors], int64_t r, int64_t other,
                            V (&sum)[2][2][kVectors]) {
  const int64_t half = radix / 2;
  int64_t at = 0, other_at = 0;
  for (int64_t from = 0; from < half;) {
    // In runs, as in AnyPoints.
    const int64_t end = from + kRun < half ? from + kRun : half;
    V part[2][2][kVectors] = {};
    for (; from < end; ++from) {
      at += r, other_at += other;
      at -= at >= radix ? radix : 0, other_at -= other_at >= radix ? radix : 0;
      const R *w = roots + 2 * at, *o = roots + 2 * other_at;
      for (int p = 0; p < 2; ++p) {
        for (int v = 0; v < kVectors; ++v) {
          V number = x[from][p][v];
          InRegister(number);
          part[0][p][v] += number * w[p], part[1][p][v] += number * o[p];
        }
      }
    }
    for (int i = 0; i < 2; ++i) {
      for (int p = 0; p < 2; ++p) {
        for (int v = 0; v < kVectors; ++v) sum[i][p][v] += part[i][p][v];
      }
    }
  }
}

// Results 0 … radix / 2 of the transform of `radix` real points, which `get` gives by number and vector; `store` gets
// number, vector, real and imaginary part of each. `roots`: the radix-th roots of one, re and im. kRadix: the radix, or
// 0 for any.
template <class V, int kVectors, int kRadix, class R, class Get, class Store>
FERRULE_ALWAYS void FromReal(int64_t any, const R* roots, Get&& get, Store&& store) {
  const int64_t radix = kRadix ? kRadix : any, half = radix / 2;
  V pairs[(kRadix ? kRadix : kLargestRadix) / 2][2][kVectors];  // sums and differences of u and radix - u
  V first[kVectors], total[kVectors];
  for (int v = 0; v < kVectors; ++v) get(0, v, first[v]), total[v] = first[v];
  for (int64_t u = 1; u <= half; ++u) {
    for (int v = 0; v < kVectors; ++v) {
      V a, b;
      get(u, v, a), get(radix - u, v, b);
      pairs[u - 1][0][v] = a + b, pairs[u - 1][1][v] = a - b;
      total[v] += pairs[u - 1][0][v];
    }
  }
  for (int v = 0; v < kVectors; ++v) store(0, v, total[v], V{});
  for (int64_t r = 1; r <= half; r += 2) {
    const int64_t other = r < half ? r + 1 : r;  // the last of an odd number is done twice
    V sum[2][2][kVectors] = {};
    for (int v = 0; v < kVectors; ++v) sum[0][0][v] = sum[1][0][v] = first[v];
    TwoSums<kVectors>(radix, roots, pairs, r, other, sum);
    for (int v = 0; v < kVectors; ++v) {
      store(r, v, sum[0][0][v], sum[0][1][v]), store(other, v, sum[1][0][v], sum[1][1][v]);
    }
  }
}

// The way back: the `radix` real points, to `store` by number and vector, whose coefficients 0 … radix / 2 `get` gives;
// of the first one only the real part counts.
template <class V, int kVectors, int kRadix, class R, class Get, class Store>
FERRULE_ALWAYS void ToReal(int64_t any, const R* roots, Get&& get, Store&& store) {
  const int64_t radix = kRadix ? kRadix : any, half = radix / 2;
  V twice[(kRadix ? kRadix : kLargestRadix) / 2][2][kVectors];  // real and imaginary parts
  V first[kVectors], total[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    V none;
    get(0, v, first[v], none), total[v] = first[v];
  }
  for (int64_t r = 1; r <= half; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      V re, im;
      get(r, v, re, im);
      twice[r - 1][0][v] = re + re, twice[r - 1][1][v] = im + im;
      total[v] += twice[r - 1][0][v];
    }
  }
  for (int v = 0; v < kVectors; ++v) store(0, v, total[v]);
  for (int64_t u = 1; u <= half; u += 2) {
    const int64_t other = u < half ? u + 1 : u;
    V sum[2][2][kVectors] = {};
    for (int v = 0; v < kVectors; ++v) sum[0][0][v] = sum[1][0][v] = first[v];
    TwoSums<kVectors>(radix, roots, twice, u, other, sum);
    for (int v = 0; v < kVectors; ++v) {
      // The imaginary parts of the way back's roots have the other sign.
      store(u, v, sum[0][0][v] + sum[0][1][v]), store(radix - u, v, sum[0][0][v] - sum[0][1][v]);
      store(other, v, sum[1][0][v] + sum[1][1][v]), store(radix - other, v, sum[1][0][v] - sum[1][1][v]);
    }
  }
}

// The first stage of kLine<R> signals beside each other: results 0 … radix / 2 of the points x[j + rest * u], times the
// powers of the j-th root, go to y[(radix / 2 + 1) * j + r].
template <class R, int kRadix>
void RealFirst(int64_t any, const R* roots, const R* __restrict x, R* __restrict yr, R* __restrict yi, int64_t rest,
               const R* twiddle) {
  typedef typename Wide<R, kFullBytes>::V V;
  constexpr int kVectors = kRadix ? 1 : kLine<R> / kFull<R>;
  const int64_t half = (kRadix ? kRadix : any) / 2;
  for (int64_t j = 0; j < rest; ++j, twiddle += 2 * half) {
    for (int64_t t = 0; t < kLine<R>; t += kVectors * kFull<R>) {
      const auto get = [&](int64_t u, int v, V& point) {
        point = At<kFullBytes>(x + (j + rest * u) * kLine<R> + t + v * kFull<R>);
      };
      const auto store = [&](int64_t r, int v, const V& re, const V& im) {
        const int64_t to = ((half + 1) * j + r) * kLine<R> + t + v * kFull<R>;
        if (r == 0 || rest == 1) {
          At<kFullBytes>(yr + to) = re, At<kFullBytes>(yi + to) = im;
          return;
        }
        const R *w = twiddle + 2 * (r - 1), wr = w[0], wi = w[1];
        At<kFullBytes>(yr + to) = re * wr - im * wi, At<kFullBytes>(yi + to) = re * wi + im * wr;
      };
      FromReal<V, kVectors, kRadix>(any, roots, get, store);
    }
  }
}

// The last stage of the way back.
template <class R, int kRadix>
void RealLast(int64_t any, const R* roots, const R* __restrict xr, const R* __restrict xi, R* __restrict y,
              int64_t rest, const R* twiddle) {
  typedef typename Wide<R, kFullBytes>::V V;
  constexpr int kVectors = kRadix ? 1 : kLine<R> / kFull<R>;
  const int64_t half = (kRadix ? kRadix : any) / 2;
  for (int64_t j = 0; j < rest; ++j, twiddle += 2 * half) {
    for (int64_t t = 0; t < kLine<R>; t += kVectors * kFull<R>) {
      const auto get = [&](int64_t r, int v, V& re, V& im) {
        const int64_t from = ((half + 1) * j + r) * kLine<R> + t + v * kFull<R>;
        re = At<kFullBytes>(xr + from), im = At<kFullBytes>(xi + from);
        if (r == 0 || rest == 1) return;
        const R *w = twiddle + 2 * (r - 1), wr = w[0], wi = w[1];
        const V real = re * wr + im * wi;
        im = im * wr - re * wi, re = real;
      };
      const auto store = [&](int64_t u, int v, const V& point) {
        At<kFullBytes>(y + (j + rest * u) * kLine<R> + t + v * kFull<R>) = point;
      };
      ToReal<V, kVectors, kRadix>(any, roots, get, store);
    }
  }
}

// Lines of kLine<R> numbers, real and imaginary parts, from their places, one after the other; from ~place their
// conjugates.
template <class R>
void Order(const int32_t* places, int64_t count, const R* xr, const R* xi, R* __restrict yr, R* __restrict yi) {
  for (int64_t i = 0; i < count; ++i, yr += kLine<R>, yi += kLine<R>) {
    const int64_t from = static_cast<int64_t>(places[i] < 0 ? ~places[i] : places[i]) * kLine<R>;
    const R sign = places[i] < 0 ? R(-1) : R(1);
    for (int64_t t = 0; t < kLine<R>; t += kFull<R>) {
      At<kFullBytes>(yr + t) = At<kFullBytes>(xr + from + t);
      At<kFullBytes>(yi + t) = At<kFullBytes>(xi + from + t) * sign;
    }
  }
}

// By radix, as the tables have them.
template <class R>
void AnyRealFirst(int64_t radix, const R* roots, const R* x, R* yr, R* yi, int64_t rest, const R* twiddle) {
  if (radix == 3) return RealFirst<R, 3>(radix, roots, x, yr, yi, rest, twiddle);
  if (radix == 5) return RealFirst<R, 5>(radix, roots, x, yr, yi, rest, twiddle);
  if (radix == 7) return RealFirst<R, 7>(radix, roots, x, yr, yi, rest, twiddle);
  RealFirst<R, 0>(radix, roots, x, yr, yi, rest, twiddle);
}
template <class R>
void AnyRealLast(int64_t radix, const R* roots, const R* xr, const R* xi, R* y, int64_t rest, const R* twiddle) {
  if (radix == 3) return RealLast<R, 3>(radix, roots, xr, xi, y, rest, twiddle);
  if (radix == 5) return RealLast<R, 5>(radix, roots, xr, xi, y, rest, twiddle);
  if (radix == 7) return RealLast<R, 7>(radix, roots, xr, xi, y, rest, twiddle);
  RealLast<R, 0>(radix, roots, xr, xi, y, rest, twiddle);
}

}  // namespace FERRULE_ISA
}  // namespace ferrule

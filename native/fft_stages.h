// The innermost loops of Fourier transforms, written once and compiled for several instruction sets: each fft_<isa>.cc
// sets FERRULE_ISA, turns the instructions on with a pragma, and includes this file. The loops are plain; the compiler
// makes vectors of them. As in gemm_kernel.h, nothing of the standard library may be instantiated here.
#include "fft_any.h"
#include "fft_points.h"
#include "fft_real.h"
#include "fft_short.h"
#include "fft_tables.h"
#include "fft_turn.h"
#include "fft_wide.h"

namespace ferrule {
namespace FERRULE_ISA {

// The points but the first, multiplied by the powers of a root in `w`.
template <int kRadix, class R, class V>
FERRULE_ALWAYS void Twiddle(V* re, V* im, const R* w) {
  for (int r = 1; r < kRadix; ++r) {
    R wr = w[2 * (r - 1)], wi = w[2 * (r - 1) + 1];
    V real = re[r] * wr - im[r] * wi;
    im[r] = re[r] * wi + im[r] * wr;
    re[r] = real;
  }
}

// One vector's part of a stage: points `step` apart, results `span`. The factors of the first j are ones.
template <int kBytes, int kRadix, bool kOnes, class R>
FERRULE_ALWAYS void Butterflies(const R* ar, const R* ai, int64_t step, R* br, R* bi, int64_t span, const R* w) {
  alignas(64) typename Wide<R, kBytes>::V re[kRadix], im[kRadix];
  for (int r = 0; r < kRadix; ++r) re[r] = At<kBytes>(ar + r * step), im[r] = At<kBytes>(ai + r * step);
  Points<R, kRadix>(re, im);
  if constexpr (!kOnes) Twiddle<kRadix>(re, im, w);
  for (int r = 0; r < kRadix; ++r) At<kBytes>(br + r * span) = re[r], At<kBytes>(bi + r * span) = im[r];
}

// The parts of a stage of two points j where half a vector holds what is treated alike, one after the other in x.
template <int kBytes, int kRadix, class R>
FERRULE_ALWAYS void TwoEach(const R* xr, const R* xi, R* yr, R* yi, int64_t step, const R* w) {
  typedef typename Wide<R, kBytes>::V V;
  typedef typename Wide<R, kBytes>::H H;
  constexpr int64_t kSpan = kBytes / 2 / sizeof(R);
  alignas(64) V re[kRadix], im[kRadix];
  for (int r = 0; r < kRadix; ++r) re[r] = At<kBytes>(xr + r * step), im[r] = At<kBytes>(xi + r * step);
  Points<R, kRadix>(re, im);
  const auto store = [&](R* y, const V& v) {
    const H* halves = reinterpret_cast<const H*>(&v);
    At<kBytes / 2>(y) = halves[0], At<kBytes / 2>(y + kRadix * kSpan) = halves[1];
  };
  store(yr, re[0]), store(yi, im[0]);
  for (int r = 1; r < kRadix; ++r) {
    const R *a = w + 2 * (r - 1), *b = a + 2 * (kRadix - 1);
    V wr, wi;
    Halves(a[0], b[0], wr), Halves(a[1], b[1], wi);
    const V real = re[r] * wr - im[r] * wi, imaginary = re[r] * wi + im[r] * wr;
    store(yr + r * kSpan, real), store(yi + r * kSpan, imaginary);
  }
}

// A stage in which so many bytes, a vector or half of one, are treated alike.
template <int kBytes, bool kTwo, int kRadix, class R>
FERRULE_ALWAYS void StageOf(const R* xr, const R* xi, R* yr, R* yi, int64_t rest, int64_t apart, const R* twiddle) {
  constexpr int64_t kSpan = kBytes / sizeof(R);
  const int64_t step = rest * apart;
  int64_t j = 0;
  if constexpr (kTwo) {
    for (; apart == kSpan && j + 2 <= rest; j += 2, twiddle += 4 * (kRadix - 1)) {
      const int64_t from = j * kSpan, to = kRadix * from;
      TwoEach<2 * kBytes, kRadix>(xr + from, xi + from, yr + to, yi + to, step, twiddle);
    }
  }
  for (; j < rest; ++j, twiddle += 2 * (kRadix - 1)) {
    const int64_t from = j * apart, to = kRadix * j * kSpan;
    Butterflies<kBytes, kRadix, false>(xr + from, xi + from, step, yr + to, yi + to, kSpan, twiddle);
  }
}

// One stage: for each j, the transforms of the points x[j + rest * r], multiplied by powers of the j-th root, go to
// y[kRadix * j + r]. `span` consecutive numbers (lanes and what earlier stages sorted) are treated alike; in x, points
// are `apart` numbers from each other.
template <class R, int kRadix>
void Stage(const R* __restrict xr, const R* __restrict xi, R* __restrict yr, R* __restrict yi, int64_t rest,
           int64_t span, int64_t apart, const R* twiddle) {
  if (span == kFull<R>) return StageOf<kFullBytes, false, kRadix>(xr, xi, yr, yi, rest, apart, twiddle);
  if (span == kWidth<R>) return StageOf<32, kFullBytes == 64, kRadix>(xr, xi, yr, yi, rest, apart, twiddle);
  if (span == kWidth<R> / 2) return StageOf<16, true, kRadix>(xr, xi, yr, yi, rest, apart, twiddle);
  const int64_t step = rest * apart;
  for (int64_t j = 0; j < rest; ++j, twiddle += 2 * (kRadix - 1)) {
    const R *ar = xr + j * apart, *ai = xi + j * apart;
    R *br = yr + kRadix * j * span, *bi = yi + kRadix * j * span;
    int64_t t = 0;
    for (; j == 0 && t + kFull<R> <= span; t += kFull<R>) {
      Butterflies<kFullBytes, kRadix, true>(ar + t, ai + t, step, br + t, bi + t, span, twiddle);
    }
    for (; t + kFull<R> <= span; t += kFull<R>) {
      const R* w = twiddle;
      asm("" : "+r"(w));  // else all factors are prepared before the loop, and there are more of them than registers
      Butterflies<kFullBytes, kRadix, false>(ar + t, ai + t, step, br + t, bi + t, span, w);
    }
    if (t + kWidth<R> <= span) {
      Butterflies<32, kRadix, false>(ar + t, ai + t, step, br + t, bi + t, span, twiddle);
      t += kWidth<R>;
    }
    if (t + kWidth<R> / 2 <= span) {
      Butterflies<16, kRadix, false>(ar + t, ai + t, step, br + t, bi + t, span, twiddle);
      t += kWidth<R> / 2;
    }
    for (; t < span; ++t) {
      R re[kRadix], im[kRadix];
      for (int r = 0; r < kRadix; ++r) re[r] = ar[t + r * step], im[r] = ai[t + r * step];
      Points<R, kRadix>(re, im);
      Twiddle<kRadix>(re, im, twiddle);
      for (int r = 0; r < kRadix; ++r) br[t + r * span] = re[r], bi[t + r * span] = im[r];
    }
  }
}

// First, where there are at least as many j as a vector holds.
template <int kBytes, int kRadix, bool kInverse, class R>
FERRULE_ALWAYS void FirstOfVectors(const R* x, R* yr, R* yi, int64_t rest, const R* twiddle) {
  typedef typename Wide<R, kBytes>::V V;
  constexpr int64_t kW = kBytes / sizeof(R);
  for (int64_t j = 0; j < rest; j += kW) {
    if (j + kW > rest) j = rest - kW;  // some once more in place of some alone
    alignas(64) V re[kRadix], im[kRadix];
    for (int r = 0; r < kRadix; ++r) LoadParts<kInverse>(x + 2 * (j + r * rest), re[r], im[r]);
    Points<R, kRadix>(re, im);
    for (int r = 1; r < kRadix; ++r) {
      const R* w = twiddle + 2 * (r - 1) * rest + j;
      V wr = At<kBytes>(w), wi = At<kBytes>(w + rest), real = re[r] * wr - im[r] * wi;
      im[r] = re[r] * wi + im[r] * wr;
      re[r] = real;
    }
    StoreTurned<kRadix>(yr + kRadix * j, re);
    StoreTurned<kRadix>(yi + kRadix * j, im);
  }
}

// The first stage of one signal, from interleaved real and imaginary parts: vectors run over j. The twiddle factors
// lie as [r][re, im][j]. kInverse exchanges the parts.
template <class R, int kRadix, bool kInverse>
void First(const R* __restrict x, R* __restrict yr, R* __restrict yi, int64_t rest, const R* __restrict twiddle) {
  if constexpr (kRadix % 4 == 0) {
    if (rest >= kFull<R>) return FirstOfVectors<kFullBytes, kRadix, kInverse>(x, yr, yi, rest, twiddle);
    if (rest >= kWidth<R>) return FirstOfVectors<32, kRadix, kInverse>(x, yr, yi, rest, twiddle);
  }
#pragma GCC ivdep
  for (int64_t j = 0; j < rest; ++j) {
    R re[kRadix], im[kRadix];
    for (int r = 0; r < kRadix; ++r) {
      re[r] = x[2 * (j + r * rest) + kInverse], im[r] = x[2 * (j + r * rest) + !kInverse];
    }
    Points<R, kRadix>(re, im);
    yr[kRadix * j] = re[0], yi[kRadix * j] = im[0];
    for (int r = 1; r < kRadix; ++r) {
      R wr = twiddle[2 * (r - 1) * rest + j], wi = twiddle[(2 * (r - 1) + 1) * rest + j];
      yr[kRadix * j + r] = re[r] * wr - im[r] * wi;
      yi[kRadix * j + r] = re[r] * wi + im[r] * wr;
    }
  }
}

// A vector's part of Last.
template <int kBytes, int kRadix, bool kInverse, class R>
FERRULE_ALWAYS void LastOfVectors(const R* xr, const R* xi, R* y, int64_t span, R scale) {
  alignas(64) typename Wide<R, kBytes>::V re[kRadix], im[kRadix];
  for (int r = 0; r < kRadix; ++r) re[r] = At<kBytes>(xr + r * span), im[r] = At<kBytes>(xi + r * span);
  Points<R, kRadix>(re, im);
  for (int r = 0; r < kRadix; ++r) {
    typename Wide<R, kBytes>::V a = re[r] * scale, b = im[r] * scale;
    StoreParts<kInverse>(y + 2 * r * span, a, b);
  }
}

// The last stage of one signal (rest 1: no twiddle factors), to interleaved parts times `scale`.
template <class R, int kRadix, bool kInverse>
void Last(const R* __restrict xr, const R* __restrict xi, R* __restrict y, int64_t span, R scale) {
  int64_t t = 0;
  if constexpr (kFullBytes == 64) {  // else the compiler's vectors are as good or better
    for (; t + kFull<R> <= span; t += kFull<R>) {
      LastOfVectors<64, kRadix, kInverse>(xr + t, xi + t, y + 2 * t, span, scale);
    }
    if (t + kWidth<R> <= span) {
      LastOfVectors<32, kRadix, kInverse>(xr + t, xi + t, y + 2 * t, span, scale);
      t += kWidth<R>;
    }
  }
#pragma GCC ivdep
  for (; t < span; ++t) {
    R re[kRadix], im[kRadix];
    for (int r = 0; r < kRadix; ++r) re[r] = xr[t + r * span], im[r] = xi[t + r * span];
    Points<R, kRadix>(re, im);
    for (int r = 0; r < kRadix; ++r) {
      y[2 * (t + r * span) + kInverse] = re[r] * scale;
      y[2 * (t + r * span) + !kInverse] = im[r] * scale;
    }
  }
}

// The first stage of kLine<R> neighbouring signals: point i of signal l is x[i * stride + l], of interleaved parts.
template <class R, int kRadix, bool kInverse>
void FirstOfLines(const R* __restrict x, int64_t stride, R* __restrict yr, R* __restrict yi, int64_t rest,
                  const R* twiddle) {
  for (int64_t j = 0; j < rest; ++j, twiddle += 2 * (kRadix - 1)) {
    for (int64_t t = 0; t < kLine<R>; t += kFull<R>) {
      alignas(64) typename Wide<R, kFullBytes>::V re[kRadix], im[kRadix];
      for (int r = 0; r < kRadix; ++r) {
        const R* from = x + 2 * ((j + r * rest) * stride + t);
        LoadParts<kInverse>(from, re[r], im[r]);
        __builtin_prefetch(from + 2 * kLine<R>);  // for the next lines, which often are this thread's, too
      }
      Points<R, kRadix>(re, im);
      Twiddle<kRadix>(re, im, twiddle);
      for (int r = 0; r < kRadix; ++r) {
        int64_t to = (kRadix * j + r) * kLine<R> + t;
        At<kFullBytes>(yr + to) = re[r], At<kFullBytes>(yi + to) = im[r];
      }
    }
  }
}

// Their last stage, of `count` times kRadix points, back to such a place.
template <class R, int kRadix, bool kInverse>
void LastOfLines(const R* __restrict xr, const R* __restrict xi, R* __restrict y, int64_t stride, int64_t count,
                 R scale) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t t = 0; t < kLine<R>; t += kFull<R>) {
      alignas(64) typename Wide<R, kFullBytes>::V re[kRadix], im[kRadix];
      for (int r = 0; r < kRadix; ++r) {
        int64_t from = (i + r * count) * kLine<R> + t;
        re[r] = At<kFullBytes>(xr + from), im[r] = At<kFullBytes>(xi + from);
      }
      Points<R, kRadix>(re, im);
      for (int r = 0; r < kRadix; ++r) {
        typename Wide<R, kFullBytes>::V a = re[r] * scale, b = im[r] * scale;
        StoreParts<kInverse>(y + 2 * ((i + r * count) * stride + t), a, b);
      }
    }
  }
}

// The turn of LargeFft: point k of line j, x[k][j], times near[k][j] * far[k], goes to y[k / kLine][j][k % kLine],
// parts apart, where the blocks of k lie `block` numbers from each other.
template <class R>
void Turn(const R* __restrict xr, const R* __restrict xi, int64_t count, const R* near, const R* far, R* __restrict y,
          int64_t block) {
  constexpr int kW = kFull<R>;
  typedef typename Wide<R, kFullBytes>::V V;
  for (int64_t k = 0; k < count; k += kW) {
    for (int64_t j = 0; j < kLine<R>; j += kW) {
      alignas(64) V re[kW], im[kW];
      for (int i = 0; i < kW; ++i) {
        const R *x = xr + (k + i) * kLine<R> + j, *n = near + 2 * (k + i) * kLine<R> + j, *f = far + 2 * (k + i);
        const V ar = At<kFullBytes>(x), ai = At<kFullBytes>(xi + (x - xr));
        const V nr = At<kFullBytes>(n), ni = At<kFullBytes>(n + kLine<R>);
        const V wr = nr * f[0] - ni * f[1], wi = nr * f[1] + ni * f[0];
        re[i] = ar * wr - ai * wi;
        im[i] = ar * wi + ai * wr;
      }
      R* to = y + k / kLine<R> * block + j * 2 * kLine<R> + k % kLine<R>;
      Turned(re, [&](int i, const auto& x) { At<kFullBytes>(to + 2 * kLine<R> * i) = x; });
      Turned(im, [&](int i, const auto& x) { At<kFullBytes>(to + 2 * kLine<R> * i + kLine<R>) = x; });
    }
  }
}

template <class R>
void Split(const R* __restrict x, R* __restrict re, R* __restrict im, int64_t count) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) re[i] = x[2 * i], im[i] = x[2 * i + 1];
}

template <class R>
void Join(const R* __restrict re, const R* __restrict im, R* __restrict y, int64_t count, R scale) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) y[2 * i] = re[i] * scale, y[2 * i + 1] = im[i] * scale;
}

// Between the spectrum of a real signal, X, and that of the complex one of half its length h, z[i] = x[2i] + i x[2i+1]:
// X[k] = (Z[k] + Z'[h-k]) / 2 - i w^k (Z[k] - Z'[h-k]) / 2 (' conjugates). `roots`: w^k, re and im, k < h. For the k
// from `begin` to before `end`, and with 0 goes h.
template <class R>
void Unfold(const R* __restrict z, const R* __restrict roots, R* __restrict x, int64_t h, int64_t begin, int64_t end) {
  if (begin == 0) {
    x[0] = z[0] + z[1], x[1] = 0;
    x[2 * h] = z[0] - z[1], x[2 * h + 1] = 0;
    begin = 1;
  }
#pragma GCC ivdep
  for (int64_t k = begin; k < end; ++k) {
    R ar = z[2 * k], ai = z[2 * k + 1], br = z[2 * (h - k)], bi = z[2 * (h - k) + 1];
    R sr = ar + br, si = ai - bi, dr = ar - br, di = ai + bi, wr = roots[2 * k], wi = roots[2 * k + 1];
    x[2 * k] = (sr + (dr * wi + di * wr)) / 2;
    x[2 * k + 1] = (si - (dr * wr - di * wi)) / 2;
  }
}

// The way back, twice as large; the imaginary parts of X[0] and X[h] do not count.
template <class R>
void Fold(const R* __restrict x, const R* __restrict roots, R* __restrict z, int64_t h, int64_t begin, int64_t end) {
  if (begin == 0) {
    z[0] = x[0] + x[2 * h], z[1] = x[0] - x[2 * h];
    begin = 1;
  }
#pragma GCC ivdep
  for (int64_t k = begin; k < end; ++k) {
    R ar = x[2 * k], ai = x[2 * k + 1], br = x[2 * (h - k)], bi = x[2 * (h - k) + 1];
    R sr = ar + br, si = ai - bi, dr = ar - br, di = ai + bi, wr = roots[2 * k], wi = roots[2 * k + 1];
    z[2 * k] = sr - (di * wr - dr * wi);
    z[2 * k + 1] = si + (dr * wr + di * wi);
  }
}

template <class R>
constexpr FftStages<R> Stages() {
#define FERRULE_BOTH(stage, radix) {stage<R, radix, false>, stage<R, radix, true>}
#define FERRULE_ALL(stage)                                                                                      \
  {                                                                                                             \
    {}, {}, FERRULE_BOTH(stage, 2), FERRULE_BOTH(stage, 3), FERRULE_BOTH(stage, 4), FERRULE_BOTH(stage, 5), {}, \
        FERRULE_BOTH(stage, 7), FERRULE_BOTH(stage, 8)                                                          \
  }
  return {
      {nullptr, nullptr, Stage<R, 2>, Stage<R, 3>, Stage<R, 4>, Stage<R, 5>, nullptr, Stage<R, 7>, Stage<R, 8>},
      FERRULE_ALL(First),
      FERRULE_ALL(Last),
      FERRULE_ALL(FirstOfLines),
      FERRULE_ALL(LastOfLines),
      AnyStage<R>,
      AnyRealFirst<R>,
      AnyRealLast<R>,
      Scale<R>,
      {ScaleRow<R, false>, ScaleRow<R, true>},
      Order<R>,
      ToLanes<R>,
      ToRows<R>,
      Turn<R>,
#if FERRULE_VECTOR_BYTES >= 32
      {ShortRows<R, 4, 4>(), ShortRows<R, 4, 8>(), ShortRows<R, 8, 8>(), ShortRows<R, 8, 16>(), ShortRows<R, 16, 16>()},
#else
      {},
#endif
      Split<R>,
      Join<R>,
      Unfold<R>,
      Fold<R>,
  };
}

#undef FERRULE_ALL
#undef FERRULE_BOTH
#undef FERRULE_ALWAYS

}  // namespace FERRULE_ISA
}  // namespace ferrule

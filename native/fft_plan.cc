#include "fft_plan.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#pragma GCC optimize("O3")

namespace ferrule {

std::pair<double, double> RootOfUnity(int64_t k, int64_t n) {
  k %= n;
  // Use the symmetry of the circle: angles up to an eighth of it are the accurate ones.
  double angle = 2 * std::numbers::pi * static_cast<double>(k) / static_cast<double>(n);
  if (8 * k < n) return {std::cos(angle), -std::sin(angle)};
  if (8 * k < 3 * n) {
    double rest = 2 * std::numbers::pi * (static_cast<double>(4 * k - n) / (4.0 * static_cast<double>(n)));
    return {-std::sin(rest), -std::cos(rest)};
  }
  if (8 * k < 5 * n) {
    double rest = 2 * std::numbers::pi * (static_cast<double>(2 * k - n) / (2.0 * static_cast<double>(n)));
    return {-std::cos(rest), std::sin(rest)};
  }
  if (8 * k < 7 * n) {
    double rest = 2 * std::numbers::pi * (static_cast<double>(4 * k - 3 * n) / (4.0 * static_cast<double>(n)));
    return {std::sin(rest), std::cos(rest)};
  }
  double rest = 2 * std::numbers::pi * (static_cast<double>(k - n) / static_cast<double>(n));
  return {std::cos(rest), -std::sin(rest)};
}

namespace {

constexpr int64_t kLargestRadix = 31;

// One stage: for each j, the radix-point transforms of x[j + rest * t], multiplied by powers of the j-th root, go to
// y[radix * j + r]. `span` consecutive numbers (lanes and what earlier stages sorted) are treated alike.
template <class R, int kRadix>
void Butterflies(const R* __restrict xr, const R* __restrict xi, R* __restrict yr, R* __restrict yi, int64_t rest,
                 int64_t span, const R* twiddle) {
  for (int64_t j = 0; j < rest; ++j) {
    const R* w = twiddle + j * 2 * (kRadix - 1);
    const R *ar = xr + j * span, *ai = xi + j * span;
    R *br = yr + kRadix * j * span, *bi = yi + kRadix * j * span;
    int64_t step = rest * span;
#pragma GCC ivdep
    for (int64_t t = 0; t < span; ++t) {
      R re[kRadix], im[kRadix], sr[kRadix], si[kRadix];
      for (int r = 0; r < kRadix; ++r) {
        re[r] = ar[t + r * step];
        im[r] = ai[t + r * step];
      }
      if constexpr (kRadix == 2) {
        sr[0] = re[0] + re[1], si[0] = im[0] + im[1];
        sr[1] = re[0] - re[1], si[1] = im[0] - im[1];
      } else if constexpr (kRadix == 3) {
        constexpr R kSin = static_cast<R>(0.866025403784438646763723170752936183);
        R tr = re[1] + re[2], ti = im[1] + im[2];
        R ur = (re[1] - re[2]) * kSin, ui = (im[1] - im[2]) * kSin;
        R mr = re[0] - tr / 2, mi = im[0] - ti / 2;
        sr[0] = re[0] + tr, si[0] = im[0] + ti;
        sr[1] = mr + ui, si[1] = mi - ur;
        sr[2] = mr - ui, si[2] = mi + ur;
      } else if constexpr (kRadix == 4) {
        R pr = re[0] + re[2], pi = im[0] + im[2], qr = re[0] - re[2], qi = im[0] - im[2];
        R ur = re[1] + re[3], ui = im[1] + im[3], vr = re[1] - re[3], vi = im[1] - im[3];
        sr[0] = pr + ur, si[0] = pi + ui;
        sr[1] = qr + vi, si[1] = qi - vr;
        sr[2] = pr - ur, si[2] = pi - ui;
        sr[3] = qr - vi, si[3] = qi + vr;
      } else {
        static_assert(kRadix == 5);
        constexpr R c1 = static_cast<R>(0.309016994374947424102293417182819059);
        constexpr R c2 = static_cast<R>(-0.809016994374947424102293417182819059);
        constexpr R s1 = static_cast<R>(0.951056516295153572116439333379382143);
        constexpr R s2 = static_cast<R>(0.587785252292473129168705954639072769);
        R pr = re[1] + re[4], pi = im[1] + im[4], qr = re[1] - re[4], qi = im[1] - im[4];
        R ur = re[2] + re[3], ui = im[2] + im[3], vr = re[2] - re[3], vi = im[2] - im[3];
        R ar1 = re[0] + c1 * pr + c2 * ur, ai1 = im[0] + c1 * pi + c2 * ui;
        R ar2 = re[0] + c2 * pr + c1 * ur, ai2 = im[0] + c2 * pi + c1 * ui;
        R br1 = s1 * qr + s2 * vr, bi1 = s1 * qi + s2 * vi;
        R br2 = s2 * qr - s1 * vr, bi2 = s2 * qi - s1 * vi;
        sr[0] = re[0] + pr + ur, si[0] = im[0] + pi + ui;
        sr[1] = ar1 + bi1, si[1] = ai1 - br1;
        sr[4] = ar1 - bi1, si[4] = ai1 + br1;
        sr[2] = ar2 + bi2, si[2] = ai2 - br2;
        sr[3] = ar2 - bi2, si[3] = ai2 + br2;
      }
      br[t] = sr[0];
      bi[t] = si[0];
      for (int r = 1; r < kRadix; ++r) {
        R wr = w[2 * (r - 1)], wi = w[2 * (r - 1) + 1];
        br[t + r * span] = sr[r] * wr - si[r] * wi;
        bi[t + r * span] = sr[r] * wi + si[r] * wr;
      }
    }
  }
}

// The same for any radix, with radix^2 multiplications.
template <class R>
void GeneralButterflies(int64_t radix, const R* roots, const R* __restrict xr, const R* __restrict xi, R* __restrict yr,
                        R* __restrict yi, int64_t rest, int64_t span, const R* twiddle) {
  int64_t step = rest * span;
  for (int64_t j = 0; j < rest; ++j) {
    for (int64_t r = 0; r < radix; ++r) {
      R* br = yr + (radix * j + r) * span;
      R* bi = yi + (radix * j + r) * span;
      std::copy_n(xr + j * span, span, br);
      std::copy_n(xi + j * span, span, bi);
      for (int64_t u = 1; u < radix; ++u) {
        R wr = roots[2 * (r * u % radix)], wi = roots[2 * (r * u % radix) + 1];
        const R *ar = xr + j * span + u * step, *ai = xi + j * span + u * step;
        for (int64_t t = 0; t < span; ++t) {
          br[t] += ar[t] * wr - ai[t] * wi;
          bi[t] += ar[t] * wi + ai[t] * wr;
        }
      }
      if (r == 0) continue;
      R wr = twiddle[(j * (radix - 1) + r - 1) * 2], wi = twiddle[(j * (radix - 1) + r - 1) * 2 + 1];
      for (int64_t t = 0; t < span; ++t) {
        R re = br[t] * wr - bi[t] * wi;
        bi[t] = br[t] * wi + bi[t] * wr;
        br[t] = re;
      }
    }
  }
}

}  // namespace

template <class R>
FftPlan<R>::FftPlan(int64_t n) : n_(n) {
  std::vector<int64_t> factors;
  int64_t rest = n;
  while (rest % 4 == 0) factors.push_back(4), rest /= 4;
  for (int64_t p = 2; p <= kLargestRadix; ++p) {
    while (rest % p == 0) factors.push_back(p), rest /= p;
  }
  if (rest > 1) {
    // X[k] = chirp[k] * sum over j of (x[j] chirp[j]) conj(chirp[k - j]), chirp[k] = exp(-pi i k^2 / n).
    int64_t m = 1;
    while (m < 2 * n - 1) m *= 2;
    inner_ = std::make_unique<FftPlan>(m);
    chirp_.resize(2 * n);
    filter_.assign(2 * m, R(0));
    for (int64_t k = 0; k < n; ++k) {
      // k^2 mod 2n without overflow for any practical length.
      int64_t square = static_cast<int64_t>(static_cast<unsigned __int128>(k) * k % (2 * n));
      auto [re, im] = RootOfUnity(square, 2 * n);
      chirp_[2 * k] = static_cast<R>(re), chirp_[2 * k + 1] = static_cast<R>(im);
      for (int64_t at : {k, (m - k) % m}) {
        filter_[at] = static_cast<R>(re / m), filter_[m + at] = static_cast<R>(-im / m);
      }
    }
    std::vector<R> scratch(inner_->ScratchPerLane());
    inner_->Transform(filter_.data(), filter_.data() + m, scratch.data(), 1);
    return;
  }
  int64_t length = n;
  for (int64_t radix : factors) {
    Stage stage{radix, length / radix, {}, {}};
    stage.twiddle.reserve(2 * stage.rest * (radix - 1));
    for (int64_t j = 0; j < stage.rest; ++j) {
      for (int64_t r = 1; r < radix; ++r) {
        auto [re, im] = RootOfUnity(j * r, length);
        stage.twiddle.push_back(static_cast<R>(re));
        stage.twiddle.push_back(static_cast<R>(im));
      }
    }
    if (radix > 5) {
      for (int64_t r = 0; r < radix; ++r) {
        auto [re, im] = RootOfUnity(r, radix);
        stage.roots.push_back(static_cast<R>(re));
        stage.roots.push_back(static_cast<R>(im));
      }
    }
    stages_.push_back(std::move(stage));
    length /= radix;
  }
}

template <class R>
int64_t FftPlan<R>::ScratchPerLane() const {
  return inner_ ? 2 * inner_->size() + inner_->ScratchPerLane() : 2 * n_;
}

template <class R>
void FftPlan<R>::Transform(R* re, R* im, R* scratch, int64_t lanes) const {
  if (inner_) {
    Bluestein(re, im, scratch, lanes);
  } else {
    Stockham(re, im, scratch, lanes);
  }
}

template <class R>
void FftPlan<R>::Stockham(R* re, R* im, R* scratch, int64_t lanes) const {
  R *xr = re, *xi = im, *yr = scratch, *yi = scratch + n_ * lanes;
  int64_t span = lanes;
  for (const Stage& s : stages_) {
    switch (s.radix) {
      case 2:
        Butterflies<R, 2>(xr, xi, yr, yi, s.rest, span, s.twiddle.data());
        break;
      case 3:
        Butterflies<R, 3>(xr, xi, yr, yi, s.rest, span, s.twiddle.data());
        break;
      case 4:
        Butterflies<R, 4>(xr, xi, yr, yi, s.rest, span, s.twiddle.data());
        break;
      case 5:
        Butterflies<R, 5>(xr, xi, yr, yi, s.rest, span, s.twiddle.data());
        break;
      default:
        GeneralButterflies(s.radix, s.roots.data(), xr, xi, yr, yi, s.rest, span, s.twiddle.data());
    }
    std::swap(xr, yr);
    std::swap(xi, yi);
    span *= s.radix;
  }
  if (xr != re) {
    std::copy_n(xr, n_ * lanes, re);
    std::copy_n(xi, n_ * lanes, im);
  }
}

template <class R>
void FftPlan<R>::Bluestein(R* re, R* im, R* scratch, int64_t lanes) const {
  int64_t m = inner_->size();
  R *ar = scratch, *ai = scratch + m * lanes, *more = scratch + 2 * m * lanes;
  auto times_chirp = [&](const R* xr, const R* xi, R* yr, R* yi) {
    for (int64_t k = 0; k < n_; ++k) {
      R wr = chirp_[2 * k], wi = chirp_[2 * k + 1];
      for (int64_t t = k * lanes; t < (k + 1) * lanes; ++t) {
        R x = xr[t], y = xi[t];
        yr[t] = x * wr - y * wi;
        yi[t] = x * wi + y * wr;
      }
    }
  };
  times_chirp(re, im, ar, ai);
  std::fill(ar + n_ * lanes, ar + m * lanes, R(0));
  std::fill(ai + n_ * lanes, ai + m * lanes, R(0));
  inner_->Transform(ar, ai, more, lanes);
  for (int64_t k = 0; k < m; ++k) {
    R wr = filter_[k], wi = filter_[m + k];
    for (int64_t t = k * lanes; t < (k + 1) * lanes; ++t) {
      R x = ar[t], y = ai[t];
      ar[t] = x * wr - y * wi;
      ai[t] = x * wi + y * wr;
    }
  }
  inner_->Transform(ai, ar, more, lanes);  // the inverse; 1/m is in the filter
  times_chirp(ar, ai, re, im);
}

template class FftPlan<float>;
template class FftPlan<double>;

}  // namespace ferrule

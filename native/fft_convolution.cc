#include "fft_convolution.h"

#include <algorithm>
#include <limits>

#include "aligned_scratch.h"
#include "fft_plan.h"

namespace ferrule {
namespace {

// What the stages of `n` points cost, relative to one in eights; infinitely much where there are others than 2, 3, 4, 5
// and 8. Measured on Zen 3, f32.
double Cost(int64_t n) {
  int64_t rest = n, twos = 0;
  double cost = 0.3;  // to multiply
  for (; rest % 2 == 0; rest /= 2) ++twos;
  if (twos < 3 || twos == 4) return std::numeric_limits<double>::infinity();  // in eights first: full vectors of f32
  for (; twos >= 3 && twos != 4; twos -= 3) cost += 1;
  for (; twos >= 2; twos -= 2) cost += 0.75;
  if (twos) cost += 0.7;
  for (; rest % 3 == 0; rest /= 3) cost += 0.8;
  for (; rest % 5 == 0; rest /= 5) cost += 1;
  return rest == 1 ? cost * static_cast<double>(n) : std::numeric_limits<double>::infinity();
}

}  // namespace

template <class R>
FftConvolution<R>::FftConvolution(int64_t n) : n_(n), size_(0) {
  double best = std::numeric_limits<double>::infinity();
  // The next power of two is among them.
  for (int64_t m = (2 * n + 6) / 8 * 8; m < 4 * n; m += 8) {
    double cost = Cost(m);
    if (cost < best) best = cost, size_ = m;
  }
  const int64_t m = size_;
  RootsOfUnity roots(2 * n);
  chirp_.resize(2 * n);
  filter_.assign(2 * m, R(0));
  for (int64_t k = 0; k < n; ++k) {
    // k^2 mod 2n without overflow for any practical length.
    int64_t square = static_cast<int64_t>(static_cast<unsigned __int128>(k) * k % (2 * n));
    auto [re, im] = roots(square);
    chirp_[2 * k] = static_cast<R>(re), chirp_[2 * k + 1] = static_cast<R>(im);
    for (int64_t at : {k, (m - k) % m}) {
      filter_[2 * at] = static_cast<R>(re / m), filter_[2 * at + 1] = static_cast<R>(-im / m);
    }
  }
  // The scale is in the filter already.
  AlignedScratch memory;
  plan_ = std::make_unique<FftPlan<R>>(m);
  plan_->TransformRow(filter_.data(), filter_.data(), memory.Get<R>(4 * m), false, R(1));
}

template <class R>
FftConvolution<R>::~FftConvolution() = default;

template <class R>
void FftConvolution<R>::Row(const R* from, R* to, bool inverse, R scale) const {
  static thread_local AlignedScratch memory;
  const auto& scale_row = FftLoops<R>().scale_row;
  R *z = memory.Get<R>(6 * size_), *scratch = z + 2 * size_;
  scale_row[inverse](from, chirp_.data(), z, n_, R(1));
  std::fill(z + 2 * n_, z + 2 * size_, R(0));
  plan_->TransformRow(z, z, scratch, false, R(1));
  scale_row[0](z, filter_.data(), z, size_, R(1));
  plan_->TransformRow(z, z, scratch, true, R(1));
  scale_row[0](z, chirp_.data(), to, n_, scale);
  for (int64_t k = 0; inverse && k < n_; ++k) std::swap(to[2 * k], to[2 * k + 1]);
}

template <class R>
void FftConvolution<R>::Lanes(const R* xr, const R* xi, int64_t step, R* yr, R* yi, int64_t to_step,
                              int64_t lanes) const {
  static thread_local AlignedScratch memory;
  const auto& scale = FftLoops<R>().scale;
  const int64_t numbers = size_ * lanes;
  R *ar = memory.Get<R>(4 * numbers), *ai = ar + numbers, *more = ai + numbers;
  scale(xr, xi, step, chirp_.data(), ar, ai, lanes, n_, lanes);
  std::fill(ar + n_ * lanes, ai, R(0));
  std::fill(ai + n_ * lanes, more, R(0));
  const auto [br, bi] = plan_->Transform(ar, ai, more, lanes);
  scale(br, bi, lanes, filter_.data(), br, bi, lanes, size_, lanes);
  const auto [ci, cr] = plan_->Transform(bi, br, br == ar ? more : ar, lanes);  // the inverse
  scale(cr, ci, lanes, chirp_.data(), yr, yi, to_step, n_, lanes);
}

template <class R>
void FftConvolution<R>::Stage(const R* xr, const R* xi, R* yr, R* yi, int64_t rest, int64_t span,
                              const R* twiddle) const {
  // More points are better transformed one signal after the other: the signals of a vector do not stay in a cache.
  constexpr int64_t kVector = 32 / sizeof(R), kBeside = 256;
  static thread_local AlignedScratch memory;
  const FftStages<R>& loops = FftLoops<R>();
  const int64_t step = rest * span;
  const int64_t lanes = std::min((size_ <= kBeside ? 2 : 1) * kVector, span / kVector * kVector);
  for (int64_t j = 0; j < rest; ++j, xr += span, xi += span, yr += n_ * span, yi += n_ * span) {
    for (int64_t t = 0; lanes && t < span; t += lanes) {
      t = std::min(t, span - lanes);  // some once more in place of some alone
      if (size_ <= kBeside) {
        Lanes(xr + t, xi + t, step, yr + t, yi + t, span, lanes);
        continue;
      }
      R* rows = memory.Get<R>(2 * n_ * lanes);
      loops.to_rows(xr + t, xi + t, step, nullptr, rows, 2 * n_, n_, lanes, R(1));
      for (int64_t l = 0; l < lanes; ++l) Row(rows + 2 * n_ * l, rows + 2 * n_ * l, false, R(1));
      loops.to_lanes(rows, 2 * n_, n_, yr + t, yi + t, span, lanes);
    }
    for (int64_t t = 0; !lanes && t < span; ++t) {
      R* row = memory.Get<R>(2 * n_);
      for (int64_t k = 0; k < n_; ++k) row[2 * k] = xr[k * step + t], row[2 * k + 1] = xi[k * step + t];
      Row(row, row, false, R(1));
      for (int64_t k = 0; k < n_; ++k) yr[k * span + t] = row[2 * k], yi[k * span + t] = row[2 * k + 1];
    }
    if (rest == 1) continue;
    R *br = yr + span, *bi = yi + span;
    loops.scale(br, bi, span, twiddle + 2 * j * (n_ - 1), br, bi, span, n_ - 1, span);
  }
}

template class FftConvolution<float>;
template class FftConvolution<double>;

}  // namespace ferrule

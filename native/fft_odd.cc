#include "fft_odd.h"

#include <algorithm>

namespace ferrule {

template <class R>
int64_t OddFft<R>::Radix(int64_t n) {
  int64_t largest = 1;
  for (int64_t p = 3; p * p <= n; p += 2) {
    for (; n % p == 0; n /= p) largest = std::max(largest, p <= kLargestRadix ? p : 1);
  }
  return std::max(largest, n <= kLargestRadix ? n : 1);
}

template <class R>
OddFft<R>::OddFft(int64_t n)
    : radix_(Radix(n)), rest_(n / radix_), half_(radix_ / 2), plan_(Shared<FftPlan<R>>(rest_)) {
  const RootsOfUnity roots(n);
  const auto put = [&](std::vector<R>& to, int64_t k) {
    auto [re, im] = roots(k);
    to.push_back(static_cast<R>(re)), to.push_back(static_cast<R>(im));
  };
  for (int64_t r = 0; r < radix_; ++r) put(roots_, r * rest_);
  for (int64_t j = 0; j < rest_; ++j) {
    for (int64_t r = 1; r <= half_; ++r) put(twiddle_, j * r);
  }
  for (int64_t k = 0; k <= n / 2; ++k) {
    const int64_t q = k / radix_, r = k % radix_;
    const int64_t place = r <= half_ ? q * (half_ + 1) + r : ~((rest_ - 1 - q) * (half_ + 1) + radix_ - r);
    spectrum_.push_back(static_cast<int32_t>(place));
  }
  for (int64_t q = 0; q < rest_; ++q) {
    for (int64_t k = radix_ * q; k <= radix_ * q + half_; ++k) {
      parts_.push_back(static_cast<int32_t>(k <= n / 2 ? k : ~(n - k)));
    }
  }
}

template <class R>
typename OddFft<R>::Spectrum OddFft<R>::Forward(const R* x, R* scratch) const {
  const int64_t numbers = rest_ * (half_ + 1) * kLine<R>;
  R *re = scratch, *im = re + numbers;
  FftLoops<R>().real_first(radix_, roots_.data(), x, re, im, rest_, twiddle_.data());
  const auto [yr, yi] = plan_->Transform(re, im, im + numbers, (half_ + 1) * kLine<R>);
  return {yr, yi, spectrum_.data()};
}

template <class R>
const R* OddFft<R>::Inverse(const R* re, const R* im, R* scratch) const {
  const int64_t numbers = rest_ * (half_ + 1) * kLine<R>;
  R* x = scratch;
  if (rest_ > 1) {
    R *parts_re = scratch, *parts_im = parts_re + numbers, *more = parts_im + numbers;
    FftLoops<R>().order(parts_.data(), rest_ * (half_ + 1), re, im, parts_re, parts_im);
    const auto [yi, yr] = plan_->Transform(parts_im, parts_re, more, (half_ + 1) * kLine<R>);
    re = yr, im = yi, x = yr == parts_re ? more : parts_re;
  }
  FftLoops<R>().real_last(radix_, roots_.data(), re, im, x, rest_, twiddle_.data());
  return x;
}

template class OddFft<float>;
template class OddFft<double>;

}  // namespace ferrule

#include "fft_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numbers>
#include <utility>

#include "cpu_features.h"

#pragma GCC optimize("O3")

namespace ferrule {
namespace {

// exp(-2 pi i k / n), 0 <= k < n.
std::pair<double, double> RootOfUnity(int64_t k, int64_t n) {
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

}  // namespace

RootsOfUnity::RootsOfUnity(int64_t n) : n_(n) {
  if (n % 8) return;
  cos_.resize(n / 8 + 1), sin_.resize(n / 8 + 1);
  for (int64_t k = 0; k <= n / 8; ++k) {
    double angle = 2 * std::numbers::pi * static_cast<double>(k) / static_cast<double>(n);
    cos_[k] = std::cos(angle), sin_[k] = std::sin(angle);
  }
}

std::pair<double, double> RootsOfUnity::operator()(int64_t k) const {
  if (cos_.empty()) return RootOfUnity(k, n_);
  // From the nearest quarter of the circle it is at most an eighth, forwards or back.
  int quarter = (8 * k >= n_) + (8 * k >= 3 * n_) + (8 * k >= 5 * n_) + (8 * k >= 7 * n_);
  int64_t rest = k - quarter * (n_ / 4);
  double c = cos_[std::abs(rest)], s = rest < 0 ? -sin_[-rest] : sin_[rest];
  switch (quarter) {
    case 1:
      return {-s, -c};
    case 2:
      return {-c, s};
    case 3:
      return {s, c};
    default:
      return {c, -s};
  }
}

namespace {

const FftKernels& Chosen() {
#if defined(__x86_64__)
  if (ChosenIsa() == Isa::kAvx512) return kAvx512Fft;
  if (ChosenIsa() == Isa::kAvx2) return kAvx2Fft;
#endif
  return kBaselineFft;
}

// The radices of a length's stages. Powers of two go in eights, and in fours where that leaves no two alone, or only
// fours before odd ones, which would fill but half of a vector. The larger ones come last, when there are many points
// beside each other to make vectors of.
std::vector<int64_t> Radices(int64_t n) {
  std::vector<int64_t> radices;
  int64_t twos = 0, rest = n;
  for (; rest % 2 == 0; rest /= 2) ++twos;
  for (; twos >= 3 && (twos != 4 || (radices.empty() && rest > 1)); twos -= 3) radices.push_back(8);
  for (; twos >= 2; twos -= 2) radices.push_back(4);
  if (twos) radices.push_back(2);
  for (int64_t p = 3; p * p <= rest; p += 2) {
    while (rest % p == 0) radices.push_back(p), rest /= p;
  }
  if (rest > 1) radices.push_back(rest);
  return radices;
}

// Bytes that stay in a core's nearest cache, beside what is read and written once.
constexpr int64_t kNearest = 1 << 15;

// From this radix on a convolution is better where points beside each other do not fill a vector.
constexpr int64_t kConvolved = 37;

template <class R>
bool Known(int64_t radix) {
  return radix <= 8 && FftLoops<R>().stage[radix];
}

}  // namespace

template <>
const FftStages<float>& FftLoops() {
  return Chosen().f32;
}

template <>
const FftStages<double>& FftLoops() {
  return Chosen().f64;
}

template <class R>
bool FftPlan<R>::ByLines(int64_t n) {
  std::vector<int64_t> radices = Radices(n);
  return radices.size() > 1 && Known<R>(radices[0]) && Known<R>(radices.back());
}

template <class R>
FftPlan<R>::FftPlan(int64_t n) : n_(n), by_lines_(ByLines(n)) {
  std::vector<int64_t> factors = Radices(n);
  RootsOfUnity roots(n);
  int64_t length = n;
  for (int64_t radix : factors) {
    Stage stage{radix, length / radix, {}, {}, nullptr};
    if (radix >= kConvolved) stage.convolution = std::make_unique<FftConvolution<R>>(radix);
    const bool none = radix > kLargestRadix && stage.rest == 1;  // of the factors, which are ones, is needed
    if (!none) stage.twiddle.resize(2 * stage.rest * (radix - 1));
    R* to = stage.twiddle.data();
    for (int64_t j = 0; !none && j < stage.rest; ++j) {
      for (int64_t r = 1; r < radix; ++r, to += 2) {
        auto [re, im] = roots(j * r * (n / length));
        to[0] = static_cast<R>(re), to[1] = static_cast<R>(im);
      }
    }
    if (!Known<R>(radix) && radix <= kLargestRadix) {
      for (int64_t r = 0; r < radix; ++r) {
        auto [re, im] = RootOfUnity(r, radix);
        stage.roots.push_back(static_cast<R>(re));
        stage.roots.push_back(static_cast<R>(im));
      }
    }
    stages_.push_back(std::move(stage));
    length /= radix;
  }
  for (const ShortFft<R>& known : FftLoops<R>().short_ffts) {
    if (known.rows * known.columns != n) continue;
    short_ = &known;
    const int64_t of_line = std::min(known.columns, known.lanes);
    short_twiddle_.resize(2 * (known.rows - 1) * std::max(known.columns, known.lanes));
    R* to = short_twiddle_.data();
    for (int64_t first = 0; first < known.columns; first += of_line) {
      for (int64_t r = 1; r < known.rows; ++r, to += 2 * known.lanes) {
        for (int64_t l = 0; l < known.lanes; ++l) {
          auto [re, im] = roots((first + l % of_line) * r);
          to[l] = static_cast<R>(re), to[known.lanes + l] = static_cast<R>(im);
        }
      }
    }
  }
  // What the first stage sorts is the length of the next one's vectors.
  if (factors.size() < 2 || factors[0] < 4 || !Known<R>(factors[0])) return;
  const Stage& stage = stages_[0];
  int64_t parts = 2 * (stage.radix - 1);
  first_.resize(stage.twiddle.size());
  for (int64_t j = 0; j < stage.rest; ++j) {
    for (int64_t part = 0; part < parts; ++part) first_[part * stage.rest + j] = stage.twiddle[j * parts + part];
  }
}

template <class R>
bool FftPlan<R>::better_as_lanes() const {
  if (alone()) return false;
  if (stages_[0].radix % 4 != 0) return n_ <= 1 << 14;  // longer ones leave a thread's caches
  // Four numbers f64 are a vector of 32 bytes, and rows are soon as fast.
  const bool known = Known<R>(stages_.back().radix), narrow = sizeof(R) == 4;
  return n_ < (known ? narrow ? 128 : 33 : narrow ? 513 : 65);
}

template <class R>
void FftPlan<R>::Run(const Stage& s, const R* xr, const R* xi, R* yr, R* yi, int64_t span) const {
  if (Known<R>(s.radix)) {
    FftLoops<R>().stage[s.radix](xr, xi, yr, yi, s.rest, span, span, s.twiddle.data());
  } else if (s.convolution && (s.roots.empty() || s.rest * span < kLine<R> / 2)) {
    s.convolution->Stage(xr, xi, yr, yi, s.rest, span, s.twiddle.data());
  } else {
    FftLoops<R>().any(s.radix, s.roots.data(), xr, xi, yr, yi, s.rest, span, s.twiddle.data());
  }
}

template <class R>
R* FftPlan<R>::RunSome(size_t first, size_t end, R* x, R* y, int64_t lanes, const RowAhead& ahead) const {
  int64_t span = n_ / (stages_[first].radix * stages_[first].rest) * lanes;
  for (; first < end; ++first) {
    ahead.Ask(first, stages_.size());
    Run(stages_[first], x, x + n_ * lanes, y, y + n_ * lanes, span);
    std::swap(x, y);
    span *= stages_[first].radix;
  }
  return x;
}

template <class R>
std::pair<R*, R*> FftPlan<R>::Transform(R* re, R* im, R* scratch, int64_t lanes) const {
  R *xr = re, *xi = im, *yr = scratch, *yi = scratch + n_ * lanes;
  int64_t span = lanes;
  for (const Stage& s : stages_) {
    Run(s, xr, xi, yr, yi, span);
    std::swap(xr, yr);
    std::swap(xi, yi);
    span *= s.radix;
  }
  return {xr, xi};
}

template <class R>
void FftPlan<R>::TransformRow(const R* from, R* to, R* scratch, bool inverse, R scale, const RowAhead& ahead) const {
  const Stage &first = stages_[0], &last = stages_.back();
  ahead.Ask(0, stages_.size());
  if (alone()) return first.convolution->Row(from, to, inverse, scale);
  FftLoops<R>().first[first.radix][inverse](from, scratch, scratch + n_, first.rest, first_.data());
  if (!Known<R>(last.radix)) {
    const R* x = RunSome(1, stages_.size(), scratch, scratch + 2 * n_, 1, ahead);
    return FftLoops<R>().join(x + inverse * n_, x + !inverse * n_, to, n_, scale);
  }
  const R* x = RunSome(1, stages_.size() - 1, scratch, scratch + 2 * n_, 1, ahead);
  ahead.Ask(stages_.size() - 1, stages_.size());
  FftLoops<R>().last[last.radix][inverse](x, x + n_, to, n_ / last.radix, scale);
}

template <class R>
void FftPlan<R>::TransformShort(const R* from, R* to, int64_t count, R* scratch, bool inverse, R scale) const {
  if (count == short_->signals) return short_->run[inverse](from, to, scratch, short_twiddle_.data(), scale);
  for (int64_t i = 0; i < 2 * n_ * count; i += 2 * n_) TransformRow(from + i, to + i, scratch, inverse, scale);
}

template <class R>
void FftPlan<R>::FirstOfLines(const R* from, int64_t stride, R* scratch, bool inverse) const {
  const Stage& s = stages_[0];
  R* im = scratch + n_ * kLine<R>;
  FftLoops<R>().first_of_lines[s.radix][inverse](from, stride, scratch, im, s.rest, s.twiddle.data());
}

template <class R>
void FftPlan<R>::RestOfLines(R* to, int64_t stride, R* scratch, bool inverse, R scale) const {
  const R* re = RunSome(1, stages_.size() - 1, scratch, scratch + 2 * n_ * kLine<R>, kLine<R>);
  int64_t radix = stages_.back().radix;
  FftLoops<R>().last_of_lines[radix][inverse](re, re + n_ * kLine<R>, to, stride, n_ / radix, scale);
}

template <class R>
void FftPlan<R>::PartOfLines(size_t at, const R* re, int64_t all, int64_t apart, R* scratch, R* to, int64_t stride,
                             bool inverse, R scale) const {
  const Stage& s = stages_[at];
  const int64_t points = s.radix * s.rest;
  R* im = scratch + points * kLine<R>;
  FftLoops<R>().stage[s.radix](re, re + all * kLine<R>, scratch, im, s.rest, kLine<R>, apart * kLine<R>,
                               s.twiddle.data());
  if (at + 2 == stages_.size()) {
    int64_t radix = stages_.back().radix;
    FftLoops<R>().last_of_lines[radix][inverse](scratch, im, to, stride, points / radix, scale);
    return;
  }
  for (int64_t r = 0; r < s.radix; ++r) {
    PartOfLines(at + 1, scratch + r * kLine<R>, points, s.radix, im + points * kLine<R>, to + 2 * r * stride,
                s.radix * stride, inverse, scale);
  }
}

template <class R>
void FftPlan<R>::TransformLines(const R* from, R* to, int64_t stride, R* scratch, bool inverse, R scale) const {
  FirstOfLines(from, stride, scratch, inverse);
  if (stages_.size() == 2 || 4 * n_ * kLine<R> * static_cast<int64_t>(sizeof(R)) <= kNearest) {
    return RestOfLines(to, stride, scratch, inverse, scale);
  }
  const int64_t radix = stages_[0].radix;
  for (int64_t r = 0; r < radix; ++r) {
    PartOfLines(1, scratch + r * kLine<R>, n_, radix, scratch + 2 * n_ * kLine<R>, to + 2 * r * stride, radix * stride,
                inverse, scale);
  }
}

template <class R>
const R* FftPlan<R>::LinesToParts(const R* from, int64_t stride, R* scratch, bool inverse) const {
  FirstOfLines(from, stride, scratch, inverse);
  return RunSome(1, stages_.size(), scratch, scratch + 2 * n_ * kLine<R>, kLine<R>);
}

template <class R>
void FftPlan<R>::PartsToLines(const R* from, R* to, int64_t stride, R* scratch, bool inverse, R scale) const {
  const Stage& s = stages_[0];
  FftLoops<R>().stage[s.radix](from, from + kLine<R>, scratch, scratch + n_ * kLine<R>, s.rest, kLine<R>, 2 * kLine<R>,
                               s.twiddle.data());
  RestOfLines(to, stride, scratch, inverse, scale);
}

template class FftPlan<float>;
template class FftPlan<double>;

}  // namespace ferrule

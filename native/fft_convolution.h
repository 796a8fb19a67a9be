// Transforms of a length with no small factors as a convolution (Bluestein's algorithm):
// X[k] = chirp[k] * sum over j of (x[j] chirp[j]) conj(chirp[k - j]), chirp[k] = exp(-pi i k^2 / n).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fft_tables.h"

namespace ferrule {

template <class R>
class FftPlan;

template <class R>
class FftConvolution {
 public:
  explicit FftConvolution(int64_t n);
  ~FftConvolution();

  // One signal of interleaved parts, times `scale`; `from` may be `to`.
  void Row(const R* from, R* to, bool inverse, R scale) const;
  // As FftStages::stage, with n as the radix.
  void Stage(const R* xr, const R* xi, R* yr, R* yi, int64_t rest, int64_t span, const R* twiddle) const;

 private:
  void Lanes(const R* xr, const R* xi, int64_t step, R* yr, R* yi, int64_t to_step, int64_t lanes) const;

  int64_t n_, size_;  // the signal's and the convolution's points
  std::unique_ptr<FftPlan<R>> plan_;
  std::vector<R> chirp_, filter_;  // the chirp and the transformed conjugate chirp over size_: re and im
};

extern template class FftConvolution<float>;
extern template class FftConvolution<double>;

}  // namespace ferrule

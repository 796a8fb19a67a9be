// Fourier transforms of real signals of odd length, with about half the work of complex ones.
//
// With an odd factor p of n = p m, X[p q + r] is the transform over j of w_n^(j r) times the sum over u of
// x[j + m u] w_p^(u r), as in any first stage of radix p. The spectrum's second half is the first one's conjugate, so
// that r = 0 … (p - 1) / 2 are enough: of p transforms of m points (p + 1) / 2 remain.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fft_plan.h"

namespace ferrule {

template <class R>
class OddFft {
 public:
  // Are signals of n points better done so than as complex ones, where there are at least kLine<R> / 2 of them?
  static bool Better(int64_t n) { return n % 2 == 1 && n <= 1 << 14 && Radix(n) > 1; }
  explicit OddFft(int64_t n);

  // What Forward makes of coefficients 0 … n / 2: the places of lines of kLine<R> numbers in `re` and `im`. ~place: the
  // conjugate of what is there.
  struct Spectrum {
    const R *re, *im;
    const int32_t* places;
  };
  // kLine<R> signals beside each other: point i of signal l is x[i * kLine<R> + l]. The results lie in `scratch`, which
  // has 3 n - 1 numbers for each.
  Spectrum Forward(const R* x, R* scratch) const;
  // The way back, unscaled; where in `scratch` the points are. The first coefficient's imaginary part must be 0.
  const R* Inverse(const R* re, const R* im, R* scratch) const;

 private:
  // The largest prime factor whose stage is not a convolution, else 1.
  static int64_t Radix(int64_t n);

  int64_t radix_, rest_, half_;
  std::vector<R> roots_, twiddle_;         // of the radix; for each j and r in 1 … radix / 2
  std::vector<int32_t> spectrum_, parts_;  // where coefficient k is, and which one each part is of
  std::shared_ptr<const FftPlan<R>> plan_;
};

extern template class OddFft<float>;
extern template class OddFft<double>;

}  // namespace ferrule

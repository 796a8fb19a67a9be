// Discrete Fourier transforms of one length: Stockham's self-sorting algorithm in radices 8, 4, 2, 3, 5, 7 and other
// small primes; large prime factors by convolutions.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "fft_convolution.h"
#include "fft_tables.h"

namespace ferrule {

// The n-th roots of one; where n is a multiple of eight, from a table of an eighth of the circle.
class RootsOfUnity {
 public:
  explicit RootsOfUnity(int64_t n);
  // exp(-2 pi i k / n), 0 <= k < n.
  std::pair<double, double> operator()(int64_t k) const;

 private:
  int64_t n_;
  std::vector<double> cos_, sin_;
};

// The T of a number, which everybody in the process who needs it at the same time shares.
template <class T>
std::shared_ptr<const T> Shared(int64_t n) {
  static std::mutex mutex;
  static std::map<int64_t, std::weak_ptr<const T>> known;
  std::lock_guard lock(mutex);
  std::weak_ptr<const T>& kept = known[n];
  if (auto found = kept.lock()) return found;
  auto made = std::make_shared<const T>(n);
  kept = made;
  return made;
}

// The loops for this machine.
template <class R>
const FftStages<R>& FftLoops();

// Memory that will be read and written soon: short rows are less than what processors foresee, and their first stage
// reads parts of one far from each other. A part of it is asked for before each stage of a transform: all at once would
// be more than a core has under way, and would be waited for.
struct RowAhead {
  const void* read = nullptr;
  int64_t read_bytes = 0;
  void* written = nullptr;
  int64_t written_bytes = 0;

  // Inlined: GCC drops calls of what does nothing but ask.
  __attribute__((always_inline)) void Ask(size_t part, size_t parts) const {
    constexpr size_t kLine = 64;
    const auto border = [&](int64_t bytes, size_t i) { return static_cast<size_t>(bytes) * i / parts / kLine * kLine; };
    for (size_t at = border(read_bytes, part); at < border(read_bytes, part + 1); at += kLine) {
      __builtin_prefetch(static_cast<const char*>(read) + at, 0);
    }
    for (size_t at = border(written_bytes, part); at < border(written_bytes, part + 1); at += kLine) {
      __builtin_prefetch(static_cast<char*>(written) + at, 1);
    }
  }
};

template <class R>
class FftPlan {
 public:
  explicit FftPlan(int64_t n);

  int64_t size() const { return n_; }

  // Transforms `lanes` interleaved signals, forward and unscaled: element i of signal l is re[i * lanes + l] + i im[i *
  // lanes + l]; `scratch` has 2 size() numbers for each. Returns where the real and the imaginary parts of the results
  // are: in re and im or, one part behind the other, in scratch. For the inverse transform exchange re and im.
  std::pair<R*, R*> Transform(R* re, R* im, R* scratch, int64_t lanes) const;

  // Can one signal be transformed by itself with full vectors? Then nothing has to be interleaved with others.
  bool by_rows() const { return !first_.empty() || alone(); }
  // And yet, is that slower than kLine<R> of them as lanes? What precedes the loops of short ones takes longer than the
  // loops, and the parts of what an odd radix sorts fill no vector.
  bool better_as_lanes() const;
  // One signal of interleaved real and imaginary parts, times `scale`; `scratch` has 4 size() numbers. `from` may be
  // `to`.
  void TransformRow(const R* from, R* to, R* scratch, bool inverse, R scale, const RowAhead& ahead = {}) const;

  // How many rows TransformShort takes together; 0 where it cannot do this length.
  int64_t short_rows() const { return short_ ? short_->signals : 0; }
  // `count` rows, up to as many, one behind the other, as TransformRow does one; `scratch` has 2 size() numbers for
  // each of short_rows(), and at least two of them.
  void TransformShort(const R* from, R* to, int64_t count, R* scratch, bool inverse, R scale) const;

  // Can neighbouring signals be transformed without a copy of them as lanes?
  static bool ByLines(int64_t n);
  bool by_lines() const { return by_lines_; }
  // kLine<R> signals of interleaved parts, point i of signal l at i * stride + l of `from` and of `to`, which may be
  // the same; `scratch` has 4 size() kLine<R> numbers.
  void TransformLines(const R* from, R* to, int64_t stride, R* scratch, bool inverse, R scale) const;
  // The halves of it for LargeFft: to parts that lie apart, all real ones, then all imaginary ones; returns where.
  const R* LinesToParts(const R* from, int64_t stride, R* scratch, bool inverse) const;
  // From kLine<R> real parts and as many imaginary ones for each point.
  void PartsToLines(const R* from, R* to, int64_t stride, R* scratch, bool inverse, R scale) const;

 private:
  struct Stage {
    int64_t radix, rest;     // the sub-length before the stage is radix * rest
    std::vector<R> twiddle;  // for each j < rest and r in 1 … radix - 1: re, im
    std::vector<R> roots;    // re, im of the radix-th roots of one, for FftStages::any
    std::unique_ptr<FftConvolution<R>> convolution;
  };
  // Is it one convolution?
  bool alone() const { return stages_.size() == 1 && stages_[0].radix > kLargestRadix; }
  void Run(const Stage& stage, const R* xr, const R* xi, R* yr, R* yi, int64_t span) const;
  // The stages from `first` to before `end`, between x and y, each of which has all real parts, then all imaginary
  // ones; returns where the results are.
  R* RunSome(size_t first, size_t end, R* x, R* y, int64_t lanes, const RowAhead& ahead = {}) const;
  void FirstOfLines(const R* from, int64_t stride, R* scratch, bool inverse) const;
  void RestOfLines(R* to, int64_t stride, R* scratch, bool inverse, R scale) const;
  // The stages from number `at` on for every apart-th of `all` points, whose results are every radix-th of all; then
  // most of what a stage leaves to the next is still in the nearest cache.
  void PartOfLines(size_t at, const R* re, int64_t all, int64_t apart, R* scratch, R* to, int64_t stride, bool inverse,
                   R scale) const;

  int64_t n_;
  bool by_lines_;
  std::vector<Stage> stages_;
  const ShortFft<R>* short_ = nullptr;
  std::vector<R> short_twiddle_;
  std::vector<R> first_;  // by_rows: the first stage's twiddle factors as FftStages::first wants them
};

template <>
const FftStages<float>& FftLoops();
template <>
const FftStages<double>& FftLoops();
extern template class FftPlan<float>;
extern template class FftPlan<double>;

}  // namespace ferrule

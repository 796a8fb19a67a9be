// Library call "fft": FFT, IFFT, RFFT and IRFFT over the last one to three dimensions.
#include <algorithm>
#include <complex>
#include <memory>
#include <string>
#include <vector>

#include "aligned_scratch.h"
#include "attributes.h"
#include "calls.h"
#include "element.h"
#include "fft_large.h"
#include "fft_odd.h"
#include "fft_plan.h"
#include "large_copy.h"
#include "program.h"
#include "thread_pool.h"

namespace ferrule {
namespace {

enum class Kind { kForward, kInverse, kRealToComplex, kComplexToReal };

// exp(-2 pi i k / n) for an even n and 0 <= k <= n / 2: real and imaginary parts.
template <class R>
struct HalfCircle {
  explicit HalfCircle(int64_t n) : values(n + 2) {
    RootsOfUnity roots(n);
    for (int64_t k = 0; k <= n / 2; ++k) {
      auto [re, im] = roots(k);
      values[2 * k] = static_cast<R>(re), values[2 * k + 1] = static_cast<R>(im);
    }
  }
  std::vector<R> values;
};

template <class R>
class Fft : public Prepared {
 public:
  using C = std::complex<R>;

  // `outer` is the number of transforms, `lengths` those of the signal (of the real one for the real kinds).
  Fft(Kind kind, int64_t outer, std::vector<int64_t> lengths)
      : kind_(kind), outer_(outer), lengths_(std::move(lengths)) {
    bool half = kind_ == Kind::kRealToComplex || kind_ == Kind::kComplexToReal;
    int64_t last = lengths_.back();
    columns_ = half ? last / 2 + 1 : last;
    bool folded = half && last % 2 == 0;
    if (folded) roots_ = Shared<HalfCircle<R>>(last);
    points_ = folded ? last / 2 : last;
    for (size_t d = 0; d + 1 < lengths_.size(); ++d) plans_.push_back(Shared<FftPlan<R>>(lengths_[d]));
    if (half && OddFft<R>::Better(last) && Rows(outer_) >= kLanes / 2) odd_ = Shared<OddFft<R>>(last);
    bool large = points_ >= kLarge || (points_ >= kShared && Rows(outer_) == 1);
    if (large && LargeFft<R>::Sides(points_).first) {
      large_ = Shared<LargeFft<R>>(points_);
    } else if (!odd_) {
      plans_.push_back(Shared<FftPlan<R>>(points_));
    }
    scale_ = R(1);
    if (kind_ == Kind::kInverse || kind_ == Kind::kComplexToReal) {
      double total = 1;
      for (int64_t n : lengths_) total *= static_cast<double>(n);
      scale_ = static_cast<R>(1 / total);
    }
  }

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    ThreadPool& pool = *context.pool;
    C *scratch = nullptr, *middle = nullptr;
    auto allocate = [&](C** memory, int64_t count) {
      *memory = static_cast<C*>(context.allocate(context.allocate_self, count * sizeof(C)));
      if (*memory) return Status();
      return OutOfMemory("no memory for " + std::to_string(count) + " coefficients of a Fourier transform");
    };
    if (kind_ == Kind::kComplexToReal && lengths_.size() > 1) {
      // The operand must stay as it is: leading dimensions go through scratch memory.
      FERRULE_RETURN_IF_ERROR(allocate(&scratch, outer_ * Coefficients()));
    }
    // For the turn, and behind it for the half spectrum of a real signal, folded.
    if (large_) FERRULE_RETURN_IF_ERROR(allocate(&middle, (Folded() ? 2 : 1) * points_));
    int64_t threads = pool.threads();
    bool shared = lengths_.size() > 1 && !large_ && outer_ > 1 && Coefficients() * sizeof(C) <= kNearBytes;
    if (shared && (outer_ >= 4 * threads || outer_ % threads == 0)) {
      // All dimensions of one signal while it lies in a thread's own cache.
      pool.For(outer_, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) Signals(operands[0], results[0], scratch, middle, i, 1, pool);
      });
    } else {
      Signals(operands[0], results[0], scratch, middle, 0, outer_, pool);
    }
    return Status();
  }

 private:
  static constexpr int64_t kLanes = kLine<R>;
  static constexpr int64_t kNearBytes = 1 << 19;
  // From so many points on a signal is transformed in four steps: always, and where other threads have nothing else to
  // do. (131072 points, one by each thread, are as fast either way; four of 262144 faster as rows.)
  static constexpr int64_t kLarge = 1 << 20, kShared = 1 << 14;
  static constexpr int64_t kGrain = 4096;
  static constexpr int64_t kRowGrain = 1 << 14;  // points: 25 us with AVX-512

  // The complex coefficients of one signal.
  int64_t Coefficients() const {
    int64_t product = columns_;
    for (size_t d = 0; d + 1 < lengths_.size(); ++d) product *= lengths_[d];
    return product;
  }

  // The transforms of `count` signals from the given one on.
  void Signals(const void* operand, void* result, C* scratch, C* middle, int64_t first, int64_t count,
               ThreadPool& pool) const {
    int64_t last = static_cast<int64_t>(lengths_.size()) - 1, complex = first * Coefficients();
    int64_t real = first * (Coefficients() / columns_) * lengths_.back();
    bool inverse = kind_ == Kind::kInverse || kind_ == Kind::kComplexToReal;
    if (kind_ == Kind::kComplexToReal) {
      const C* from = static_cast<const C*>(operand) + complex;
      for (int64_t d = 0; d < last; ++d, from = scratch + complex) {
        Along(d, from, scratch + complex, count, true, R(1), pool);
      }
      ComplexToReal(from, static_cast<R*>(result) + real, middle, count, pool);
      return;
    }
    C* to = static_cast<C*>(result) + complex;
    if (kind_ == Kind::kRealToComplex) {
      RealToComplex(static_cast<const R*>(operand) + real, to, middle, count, pool);
    } else {
      const C* from = static_cast<const C*>(operand) + complex;
      R scale = last == 0 ? scale_ : R(1);
      for (int64_t row = 0; large_ && row < Rows(count); ++row) {
        const C* x = from + row * points_;
        large_->Transform(Parts(x), Parts(to + row * points_), Parts(middle), inverse, scale, pool);
      }
      if (!large_) Along(last, from, to, count, inverse, scale, pool);
    }
    for (int64_t d = last - 1; d >= 0; --d) Along(d, to, to, count, inverse, d == 0 ? scale_ : R(1), pool);
  }
  const FftStages<R>& loops_ = FftLoops<R>();

  // A real signal of even length is transformed as a complex one of half the length.
  bool Folded() const { return points_ != lengths_.back(); }

  // Runs `some(re, im, scratch, line, lanes)` for groups of at most kLanes lines of n points; `scratch` has twice as
  // many numbers as each part.
  template <class F>
  static void ForLines(int64_t n, int64_t lines, ThreadPool& pool, F&& some) {
    int64_t groups = (lines + kLanes - 1) / kLanes;
    pool.For(groups, std::max<int64_t>(1, 4096 / (n * kLanes + 1)), [&](int64_t begin, int64_t end) {
      static thread_local AlignedScratch memory;
      R* re = memory.Get<R>(4 * n * kLanes);
      for (int64_t g = begin; g < end; ++g) {
        int64_t lanes = std::min(kLanes, lines - g * kLanes);
        some(re, re + n * kLanes, re + 2 * n * kLanes, g * kLanes, lanes);
      }
    });
  }

  // Runs `some(y, ahead)`, which writes the `count` numbers of a row to y: `to`, or a place nearby from where they go
  // past the caches. The next row has `next_count` numbers. Longer rows are not asked for: they would not leave a
  // stage's numbers in the nearest cache.
  template <class F>
  static void WriteRow(R* to, int64_t count, bool past, R* nearby, const R* next, int64_t next_count, F&& some) {
    constexpr int64_t kAskedFor = 8 << 10, kSize = sizeof(R);
    RowAhead ahead;
    if (next_count * kSize <= kAskedFor) ahead.read = next, ahead.read_bytes = next_count * kSize;
    if (!past && count * kSize <= kAskedFor) ahead.written = to, ahead.written_bytes = count * kSize;
    some(past ? nearby : to, ahead);
    if (past) CopyPastCaches(to, nearby, count * kSize);
  }

  // Do rows of so many numbers in all go past the caches? Not where the next dimension's transforms read them again.
  bool Past(int64_t numbers) const {
    return lengths_.size() == 1 && PastCaches(numbers * static_cast<int64_t>(sizeof(R)));
  }

  // Runs `some(scratch, row)` for rows that FftPlan::TransformRow does; `scratch` has 6 plan.size() numbers.
  template <class F>
  void ForRows(const FftPlan<R>& plan, int64_t rows, ThreadPool& pool, F&& some) const {
    pool.For(rows, std::max<int64_t>(1, kRowGrain / plan.size()), [&](int64_t begin, int64_t end) {
      static thread_local AlignedScratch memory;
      R* scratch = memory.Get<R>(6 * plan.size());
      for (int64_t row = begin; row < end; ++row) some(scratch, row);
    });
  }

  // Runs `some(y, z, scratch, row, count)`, which writes `numbers` numbers for each of `count` rows to y: `to`, or a
  // place nearby from where they go past the caches. They are as many rows as FftPlan::TransformShort takes; z is
  // memory for that many, `scratch` what it asks for.
  template <class F>
  void ForShort(const FftPlan<R>& plan, int64_t rows, R* to, int64_t numbers, ThreadPool& pool, F&& some) const {
    const int64_t most = plan.short_rows(), of_z = 2 * most * plan.size(), scratch_numbers = of_z + 2 * plan.size();
    const bool past = Past(rows * numbers);
    pool.For((rows + most - 1) / most, std::max<int64_t>(1, kRowGrain / (most * plan.size())),
             [&](int64_t begin, int64_t end) {
               static thread_local AlignedScratch memory;
               R* scratch = memory.Get<R>(scratch_numbers + of_z + most * numbers);
               R *z = scratch + scratch_numbers, *y = z + of_z;
               for (int64_t row = begin * most; row < std::min(rows, end * most); row += most) {
                 const int64_t count = std::min(most, rows - row);
                 R* there = to + row * numbers;
                 some(past ? y : there, z, scratch, row, count);
                 if (past) CopyPastCaches(there, y, count * numbers * static_cast<int64_t>(sizeof(R)));
               }
             });
  }

  // Are rows transformed some together?
  static bool ByShort(const FftPlan<R>& plan, int64_t rows) { return plan.short_rows() && rows >= plan.short_rows(); }

  // Complex transforms of `count` signals along dimension d.
  void Along(int64_t d, const C* from, C* to, int64_t count, bool inverse, R scale, ThreadPool& pool) const {
    const FftPlan<R>& plan = *plans_[d];
    int64_t last = static_cast<int64_t>(lengths_.size()) - 1;
    int64_t n = d == last ? columns_ : lengths_[d], inner = 1, outer = count;
    for (int64_t i = d + 1; i <= last; ++i) inner *= i == last ? columns_ : lengths_[i];
    for (int64_t i = 0; i < d; ++i) outer *= lengths_[i];
    if (inner == 1 && ByShort(plan, outer)) {
      ForShort(plan, outer, Parts(to), 2 * n, pool, [&](R* y, R*, R* scratch, int64_t row, int64_t rows) {
        plan.TransformShort(Parts(from + row * n), y, rows, scratch, inverse, scale);
      });
      return;
    }
    if (inner == 1 && ByRows(plan, outer)) {
      const bool past = Past(2 * outer * n);
      ForRows(plan, outer, pool, [&](R* scratch, int64_t row) {
        const C* x = from + row * n;
        WriteRow(Parts(to + row * n), 2 * n, past, scratch + 4 * n, Parts(x + n), 2 * n,
                 [&](R* y, const RowAhead& ahead) { plan.TransformRow(Parts(x), y, scratch, inverse, scale, ahead); });
      });
      return;
    }
    ForLines(plan.size(), outer * inner, pool, [&](R* re, R* im, R* scratch, int64_t line, int64_t lanes) {
      if (inner == 1) {
        ToLanes(Parts(from + line * n), n, re, im, lanes, lanes);
        const auto [yr, yi] = Ordered(plan, re, im, scratch, lanes, inverse);
        ToRows(yr, yi, lanes, lanes, Parts(to + line * n), n, scale);
        return;
      }
      int64_t start[kLanes] = {};
      for (int64_t l = 0; l < lanes; ++l) start[l] = (line + l) / inner * n * inner + (line + l) % inner;
      bool together = start[lanes - 1] - start[0] == lanes - 1;  // the lines are neighbours in memory
      if (together && lanes == kLanes && plan.by_lines()) {
        plan.TransformLines(Parts(from + start[0]), Parts(to + start[0]), inner, re, inverse, scale);
        return;
      }
      for (int64_t i = 0; i < n; ++i) {
        if (together) {
          loops_.split(Parts(from + start[0] + i * inner), re + i * lanes, im + i * lanes, lanes);
          continue;
        }
        for (int64_t l = 0; l < lanes; ++l) {
          C x = from[start[l] + i * inner];
          re[i * lanes + l] = x.real();
          im[i * lanes + l] = x.imag();
        }
      }
      const auto [yr, yi] = Ordered(plan, re, im, scratch, lanes, inverse);
      for (int64_t i = 0; i < n; ++i) {
        if (together) {
          loops_.join(yr + i * lanes, yi + i * lanes, Parts(to + start[0] + i * inner), lanes, scale);
          continue;
        }
        for (int64_t l = 0; l < lanes; ++l) {
          to[start[l] + i * inner] = C(yr[i * lanes + l] * scale, yi[i * lanes + l] * scale);
        }
      }
    });
  }

  // FftPlan::Transform of lanes, either way; where their real and imaginary parts are then.
  static std::pair<R*, R*> Ordered(const FftPlan<R>& plan, R* re, R* im, R* scratch, int64_t lanes, bool inverse) {
    if (!inverse) return plan.Transform(re, im, scratch, lanes);
    const auto [yi, yr] = plan.Transform(im, re, scratch, lanes);
    return {yr, yi};
  }

  // Are rows transformed one by one? Else as lanes beside each other.
  static bool ByRows(const FftPlan<R>& plan, int64_t rows) {
    return plan.by_rows() && !(rows >= kLanes && plan.better_as_lanes());
  }

  // Rows of n points, one after the other, to lanes beside each other and back; points of one lie `apart` numbers from
  // each other.
  void ToLanes(const R* x, int64_t n, R* re, R* im, int64_t lanes, int64_t apart) const {
    if (lanes == kLanes) return loops_.to_lanes(x, 2 * n, n, re, im, apart, lanes);
    for (int64_t l = 0; l < lanes; ++l, x += 2 * n) {
      for (int64_t i = 0; i < n; ++i) re[i * apart + l] = x[2 * i], im[i * apart + l] = x[2 * i + 1];
    }
  }
  void ToRows(const R* re, const R* im, int64_t lanes, int64_t apart, R* x, int64_t n, R scale,
              const int32_t* places = nullptr) const {
    if (lanes == kLanes) return loops_.to_rows(re, im, apart, places, x, 2 * n, n, lanes, scale);
    for (int64_t l = 0; l < lanes; ++l, x += 2 * n) {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t place = places ? places[i] : i, from = (place < 0 ? ~place : place) * apart + l;
        x[2 * i] = re[from] * scale, x[2 * i + 1] = im[from] * (place < 0 ? -scale : scale);
      }
    }
  }

  // The same of n real numbers, pair by pair, and the last one or, with fewer lanes, all alone.
  void RealToLanes(const R* x, int64_t n, R* re, int64_t lanes, int64_t apart) const {
    const int64_t pairs = lanes == kLanes ? n / 2 : 0;
    if (pairs > 0) loops_.to_lanes(x, n, pairs, re, re + apart, 2 * apart, lanes);
    for (int64_t l = 0; l < lanes; ++l, x += n) {
      for (int64_t i = 2 * pairs; i < n; ++i) re[i * apart + l] = x[i];
    }
  }
  void LanesToReal(const R* re, int64_t lanes, int64_t apart, R* x, int64_t n, R scale) const {
    const int64_t pairs = lanes == kLanes ? n / 2 : 0;
    if (pairs > 0) loops_.to_rows(re, re + apart, 2 * apart, nullptr, x, n, pairs, lanes, scale);
    for (int64_t l = 0; l < lanes; ++l, x += n) {
      for (int64_t i = 2 * pairs; i < n; ++i) x[i] = re[i * apart + l] * scale;
    }
  }

  // Transforms between real rows and their half spectra. A row of even length is treated as a complex signal of half
  // the length, z[i] = x[2i] + i x[2i+1], and X[k] = (Z[k] + Z'[h-k]) / 2 - i w^k (Z[k] - Z'[h-k]) / 2 (' conjugates).
  // (Two rows as one complex signal would be as fast, but a NaN or a large value in one would spoil the other.)
  void RealToComplex(const R* from, C* to, C* middle, int64_t count, ThreadPool& pool) const {
    int64_t n = lengths_.back(), h = points_;
    bool even = Folded();
    if (large_) {
      R* z = Parts(middle + h);
      for (int64_t row = 0; row < Rows(count); ++row) {
        large_->Transform(from + row * n, z, Parts(middle), false, R(1), pool);
        pool.For(h, kGrain, [&](int64_t begin, int64_t end) {
          loops_.unfold(z, roots_->values.data(), Parts(to + row * columns_), h, begin, end);
        });
      }
      return;
    }
    if (odd_) {
      ForLines(n, Rows(count), pool, [&](R* x, R* scratch, R*, int64_t line, int64_t lanes) {
        if (lanes < kLanes) std::fill_n(x, n * kLanes, R(0));  // denormals in what is not used would take time
        RealToLanes(from + line * n, n, x, lanes, kLanes);
        const auto [re, im, places] = odd_->Forward(x, scratch);
        ToRows(re, im, lanes, kLanes, Parts(to + line * columns_), columns_, R(1), places);
      });
      return;
    }
    const FftPlan<R>& plan = *plans_.back();
    if (even && ByShort(plan, Rows(count))) {
      ForShort(plan, Rows(count), Parts(to), 2 * columns_, pool,
               [&](R* y, R* z, R* scratch, int64_t row, int64_t rows) {
                 plan.TransformShort(from + row * n, z, rows, scratch, false, R(1));
                 for (int64_t i = 0; i < rows; ++i) {
                   loops_.unfold(z + i * n, roots_->values.data(), y + 2 * i * columns_, h, 0, h);
                 }
               });
      return;
    }
    if (ByRows(plan, Rows(count))) {
      const bool past = Past(2 * Rows(count) * columns_);
      ForRows(plan, Rows(count), pool, [&](R* scratch, int64_t row) {
        const R* x = from + row * n;
        R* z = scratch + 4 * h;
        for (int64_t i = 0; !even && i < n; ++i) z[2 * i] = x[i], z[2 * i + 1] = 0;
        R* y_row = Parts(to + row * columns_);
        WriteRow(y_row, 2 * columns_, past, scratch, x + n, n, [&](R* y, const RowAhead& ahead) {
          plan.TransformRow(even ? x : z, z, scratch, false, R(1), ahead);
          if (even) return loops_.unfold(z, roots_->values.data(), y, h, 0, h);
          std::copy_n(z, 2 * columns_, y);
        });
      });
      return;
    }
    ForLines(plan.size(), Rows(count), pool, [&](R* re, R* im, R* scratch, int64_t line, int64_t lanes) {
      if (even) {
        ToLanes(from + line * n, h, re, im, lanes, lanes);
        const auto [yr, yi] = plan.Transform(re, im, scratch, lanes);
        R* z = yr == re ? scratch : re;
        ToRows(yr, yi, lanes, lanes, z, h, R(1));
        for (int64_t l = 0; l < lanes; ++l) {
          loops_.unfold(z + l * n, roots_->values.data(), Parts(to + (line + l) * columns_), h, 0, h);
        }
        return;
      }
      RealToLanes(from + line * n, n, re, lanes, lanes);
      std::fill_n(im, n * lanes, R(0));
      const auto [yr, yi] = plan.Transform(re, im, scratch, lanes);
      ToRows(yr, yi, lanes, lanes, Parts(to + line * columns_), columns_, R(1));
    });
  }

  void ComplexToReal(const C* from, R* to, C* middle, int64_t count, ThreadPool& pool) const {
    int64_t n = lengths_.back(), h = points_;
    bool even = Folded();
    if (large_) {
      R* z = Parts(middle + h);
      for (int64_t row = 0; row < Rows(count); ++row) {
        pool.For(h, kGrain, [&](int64_t begin, int64_t end) {
          loops_.fold(Parts(from + row * columns_), roots_->values.data(), z, h, begin, end);
        });
        large_->Transform(z, to + row * n, Parts(middle), true, scale_, pool);
      }
      return;
    }
    if (odd_) {
      ForLines(n, Rows(count), pool, [&](R* re, R*, R*, int64_t line, int64_t lanes) {
        R *im = re + columns_ * kLanes, *scratch = im + columns_ * kLanes;
        if (lanes < kLanes) std::fill_n(re, 2 * columns_ * kLanes, R(0));
        ToLanes(Parts(from + line * columns_), columns_, re, im, lanes, kLanes);
        std::fill_n(im, kLanes, R(0));  // the imaginary part of a real signal's first coefficient does not count
        LanesToReal(odd_->Inverse(re, im, scratch), lanes, kLanes, to + line * n, n, scale_);
      });
      return;
    }
    const FftPlan<R>& plan = *plans_.back();
    if (even && ByShort(plan, Rows(count))) {
      ForShort(plan, Rows(count), to, n, pool, [&](R* y, R* z, R* scratch, int64_t row, int64_t rows) {
        for (int64_t i = 0; i < rows; ++i) {
          loops_.fold(Parts(from + (row + i) * columns_), roots_->values.data(), z + i * n, h, 0, h);
        }
        plan.TransformShort(z, y, rows, scratch, true, scale_);
      });
      return;
    }
    const bool past = Past(Rows(count) * n);
    if (ByRows(plan, Rows(count)) && !even) {
      ForRows(plan, Rows(count), pool, [&](R* scratch, int64_t row) {
        const C* x = from + row * columns_;
        R* z = scratch + 4 * h;
        z[0] = x[0].real(), z[1] = 0;
        for (int64_t k = 1; k < columns_; ++k) {
          z[2 * k] = z[2 * (n - k)] = x[k].real();
          z[2 * k + 1] = x[k].imag(), z[2 * (n - k) + 1] = -x[k].imag();
        }
        const R* next = Parts(x + columns_);
        WriteRow(to + row * n, n, past, scratch, next, 2 * columns_, [&](R* y, const RowAhead& ahead) {
          plan.TransformRow(z, z, scratch, true, scale_, ahead);
          for (int64_t i = 0; i < n; ++i) y[i] = z[2 * i];
        });
      });
      return;
    }
    if (ByRows(plan, Rows(count))) {
      ForRows(plan, Rows(count), pool, [&](R* scratch, int64_t row) {
        const C* x = from + row * columns_;
        R* z = scratch + 4 * h;
        loops_.fold(Parts(x), roots_->values.data(), z, h, 0, h);
        const R* next = Parts(x + columns_);
        WriteRow(to + row * n, n, past, z, next, 2 * columns_,
                 [&](R* y, const RowAhead& ahead) { plan.TransformRow(z, y, scratch, true, scale_, ahead); });
      });
      return;
    }
    ForLines(plan.size(), Rows(count), pool, [&](R* re, R* im, R* scratch, int64_t line, int64_t lanes) {
      if (even) {
        for (int64_t l = 0; l < lanes; ++l) {
          loops_.fold(Parts(from + (line + l) * columns_), roots_->values.data(), scratch + l * n, h, 0, h);
        }
        ToLanes(scratch, h, re, im, lanes, lanes);
        const auto [yi, yr] = plan.Transform(im, re, scratch, lanes);
        ToRows(yr, yi, lanes, lanes, to + line * n, h, scale_);
        return;
      }
      ToLanes(Parts(from + line * columns_), columns_, re, im, lanes, lanes);
      std::fill_n(im, lanes, R(0));  // the imaginary part of a real signal's first coefficient does not count
      for (int64_t k = columns_; k < n; ++k) {
        const int64_t at = k * lanes, other = (n - k) * lanes;
        for (int64_t l = 0; l < lanes; ++l) re[at + l] = re[other + l], im[at + l] = -im[other + l];
      }
      const R* y = plan.Transform(im, re, scratch, lanes).second;
      LanesToReal(y, lanes, lanes, to + line * n, n, scale_);
    });
  }

  static const R* Parts(const C* x) { return reinterpret_cast<const R*>(x); }
  static R* Parts(C* x) { return reinterpret_cast<R*>(x); }

  int64_t Rows(int64_t count) const {
    int64_t rows = count;
    for (size_t i = 0; i + 1 < lengths_.size(); ++i) rows *= lengths_[i];
    return rows;
  }

  Kind kind_;
  int64_t outer_;
  std::vector<int64_t> lengths_;
  int64_t columns_;  // complex numbers in a row
  int64_t points_;   // of the transforms of the last dimension
  R scale_;
  std::shared_ptr<const HalfCircle<R>> roots_;            // for a real signal of even length
  std::vector<std::shared_ptr<const FftPlan<R>>> plans_;  // of each dimension; not of the last one where there is
  std::shared_ptr<const LargeFft<R>> large_;
  std::shared_ptr<const OddFft<R>> odd_;  // for real signals of odd length
};

Result<std::unique_ptr<Prepared>> PrepareFft(const CallDesc& call) {
  Attributes attributes(call);
  attributes.Expect(1, 1);
  std::string type = attributes.String("type", "FFT");
  std::vector<int64_t> lengths = attributes.Ints("length");
  FERRULE_RETURN_IF_ERROR(attributes.status());
  Kind kind = Kind::kForward;
  if (type == "IFFT") {
    kind = Kind::kInverse;
  } else if (type == "RFFT") {
    kind = Kind::kRealToComplex;
  } else if (type == "IRFFT") {
    kind = Kind::kComplexToReal;
  } else if (type != "FFT") {
    attributes.Fail("there is no transform `" + type + "`");
  }
  const Shape &from = call.operands[0], &to = call.results[0];
  const auto& signal = kind == Kind::kComplexToReal ? to.dims : from.dims;
  size_t rank = signal.size(), count = lengths.size();
  if (count < 1 || count > rank || !std::equal(lengths.begin(), lengths.end(), signal.end() - count)) {
    attributes.Fail("the lengths are not the signal's last dimensions");
  }
  bool wide = from.dtype == static_cast<int>(Element::kC128) || from.dtype == static_cast<int>(Element::kF64);
  Element complex = wide ? Element::kC128 : Element::kC64, real = wide ? Element::kF64 : Element::kF32;
  if (ElementOf(from) != (kind == Kind::kRealToComplex ? real : complex) ||
      ElementOf(to) != (kind == Kind::kComplexToReal ? real : complex)) {
    attributes.Fail("there is no transform " + type + " from " + NameOf(ElementOf(from)) + " to " +
                    NameOf(ElementOf(to)));
  }
  FERRULE_RETURN_IF_ERROR(attributes.status());
  int64_t outer = 1;
  for (size_t i = 0; i < rank - count; ++i) outer *= signal[i];
  bool empty = std::find(lengths.begin(), lengths.end(), 0) != lengths.end();
  if (empty || outer == 0) {
    if (to.elements() != 0) attributes.Fail("a transform of no elements has no coefficients");
    FERRULE_RETURN_IF_ERROR(attributes.status());
    outer = 0;
    lengths.assign(1, 1);
  }
  if (wide) return std::unique_ptr<Prepared>(new Fft<double>(kind, outer, std::move(lengths)));
  return std::unique_ptr<Prepared>(new Fft<float>(kind, outer, std::move(lengths)));
}

[[maybe_unused]] const bool registered = RegisterCall("fft", &PrepareFft);

}  // namespace
}  // namespace ferrule

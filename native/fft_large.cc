#include "fft_large.h"

#include <tuple>

#include "aligned_scratch.h"

namespace ferrule {

template <class R>
std::pair<int64_t, int64_t> LargeFft<R>::Sides(int64_t n) {
  std::pair<int64_t, int64_t> best{0, 0};
  for (int64_t rows = kLine<R>; rows * rows <= n; rows += kLine<R>) {
    int64_t columns = n / rows;
    if (n % rows || columns % kLine<R> || !FftPlan<R>::ByLines(rows) || !FftPlan<R>::ByLines(columns)) continue;
    best = {rows, columns};
  }
  return best;
}

template <class R>
LargeFft<R>::LargeFft(int64_t n) {
  std::tie(rows_, columns_) = Sides(n);
  of_columns_ = Shared<FftPlan<R>>(rows_), of_rows_ = Shared<FftPlan<R>>(columns_);
  RootsOfUnity roots(n);
  auto put = [&](R* re, R* im, int64_t power) {
    auto [a, b] = roots(power);
    *re = static_cast<R>(a), *im = static_cast<R>(b);
  };
  near_.resize(2 * rows_ * kLine<R>), far_.resize(2 * rows_ * (columns_ / kLine<R>));
  for (int64_t k = 0; k < rows_; ++k) {
    R* near = near_.data() + 2 * kLine<R> * k;
    for (int64_t j = 0; j < kLine<R>; ++j) put(near + j, near + kLine<R> + j, j * k);
    for (int64_t line = 0; line < columns_ / kLine<R>; ++line) {
      R* far = far_.data() + 2 * (line * rows_ + k);
      put(far, far + 1, line * kLine<R> * k);
    }
  }
}

template <class R>
void LargeFft<R>::Transform(const R* from, R* to, R* middle, bool inverse, R scale, ThreadPool& pool) const {
  // `middle` holds, for each kLine rows, all columns of them: kLine real parts, kLine imaginary ones.
  const int64_t line = 2 * kLine<R>, block = columns_ * line;
  static thread_local AlignedScratch memory;
  pool.For(columns_ / kLine<R>, 1, [&](int64_t begin, int64_t end) {
    R* scratch = memory.Get<R>(2 * line * rows_);
    for (int64_t g = begin; g < end; ++g) {
      const R* x = of_columns_->LinesToParts(from + g * line, columns_, scratch, inverse);
      FftLoops<R>().turn(x, x + rows_ * kLine<R>, rows_, near_.data(), far_.data() + 2 * rows_ * g,
                         middle + g * kLine<R> * line, block);
    }
  });
  pool.For(rows_ / kLine<R>, 1, [&](int64_t begin, int64_t end) {
    R* scratch = memory.Get<R>(2 * line * columns_);
    for (int64_t g = begin; g < end; ++g) {
      of_rows_->PartsToLines(middle + g * block, to + g * line, rows_, scratch, inverse, scale);
    }
  });
}

template class LargeFft<float>;
template class LargeFft<double>;

}  // namespace ferrule

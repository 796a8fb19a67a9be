// Transforms of one long signal by all threads: its n = rows * columns points as a matrix, the transforms of the
// columns times powers of the n-th root, and those of the rows (Bailey's four steps). Also better than one transform
// where the signal does not fit into a thread's own cache.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "fft_plan.h"
#include "thread_pool.h"

namespace ferrule {

template <class R>
class LargeFft {
 public:
  // Rows and columns for a signal of n points, as alike as they can be; zeros where there are none.
  static std::pair<int64_t, int64_t> Sides(int64_t n);

  explicit LargeFft(int64_t n);  // Sides(n) must exist

  // Interleaved real and imaginary parts, times `scale`. `middle` has 2 n numbers; `from` may be `to`.
  void Transform(const R* from, R* to, R* middle, bool inverse, R scale, ThreadPool& pool) const;

 private:
  int64_t rows_, columns_;
  std::shared_ptr<const FftPlan<R>> of_columns_, of_rows_;  // of `rows_` and of `columns_` points
  // The factor of row k and column j is near[k][j % kLine] * far[j / kLine][k]: re and im of kLine columns, then of
  // each row.
  std::vector<R> near_, far_;
};

extern template class LargeFft<float>;
extern template class LargeFft<double>;

}  // namespace ferrule

// Products whose sums are formed in parts, for threads to share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "epilogue.h"
#include "gemm_blocked.h"
#include "gemm_spread.h"

namespace ferrule {
namespace gemm {

// Adds up the sums of `parts` parts of each product, `numbers` in a part, whose rows and columns are `row` and `column`
// numbers apart; then comes the epilogue.
template <class T>
void AddParts(const GemmShape& s, int64_t parts, const T* all, int64_t numbers, int64_t row, int64_t column, T* d,
              ThreadPool* pool, const Epilogue* epilogue) {
  Spread(pool, s.batch * s.m, std::max<int64_t>(1, kWorthAdding / (s.n * parts)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* to = d + i / s.m * s.d_batch + i % s.m * s.d_row;
      const T* from = all + i / s.m * parts * numbers + i % s.m * row;
      for (int64_t j = 0; j < s.n; ++j) to[j] = from[j * column];
      for (int64_t p = 1; p < parts; ++p) {
        from += numbers;
        if (column == 1) {
          for (int64_t j = 0; j < s.n; ++j) to[j] += from[j];
        } else {
          for (int64_t j = 0; j < s.n; ++j) to[j] += from[j * column];
        }
      }
    }
    if (epilogue) (*epilogue)(begin, end - begin, 0, s.n);
  });
}

}  // namespace gemm
}  // namespace ferrule

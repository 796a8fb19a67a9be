// Cutting a matrix product into pieces for the thread pool.
#pragma once

#include <algorithm>
#include <cstdint>

#include "thread_pool.h"

namespace ferrule {
namespace gemm {

// Splits [0, n) into `parts` pieces whose borders are multiples of `unit`.
inline int64_t Border(int64_t n, int64_t parts, int64_t unit, int64_t i) {
  int64_t units = (n + unit - 1) / unit;
  return std::min(n, units * i / parts * unit);
}

// So many sums of parts to be added up are worth a thread: they come line by line from the caches of those that formed
// them.
constexpr int64_t kWorthAdding = 1 << 13;

template <class F>
void Spread(ThreadPool* pool, int64_t n, int64_t grain, F&& f) {
  if (pool && n > grain) {
    pool->For(n, grain, f);
  } else if (n > 0) {
    f(0, n);
  }
}

}  // namespace gemm
}  // namespace ferrule

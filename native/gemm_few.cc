#include "gemm_few.h"

#include <algorithm>

#include "epilogue.h"
#include "few_sums.h"
#include "gemm_block.h"
#include "gemm_spread.h"

namespace ferrule {

using namespace gemm;

template <class T>
bool FewColumnsProduct(const GemmShape& s, const void* a, const void* b, void* d, ThreadPool* pool,
                       const Epilogue* epilogue) {
  const FewFunctions<T>& functions = ChosenFew<T>();
  if (!IsDirect<T>(s.a_type) || !IsDirect<T>(s.b_type) || !IsDirect<T>(s.d_type) || s.add) return false;
  if (s.n < 2 || s.n > kFewOutputs || s.a_col != 1 || s.d_row != s.n || s.k < functions.lanes) return false;
  // The right side is laid out anew for each run.
  constexpr int64_t kLeastRows = 64, kMostWeights = (256 << 10) / sizeof(T), kUnit = 48, kWorthSharing = 1 << 17;
  const int64_t row = FewRow(s.k, functions.lanes), weights_each = s.n * row;
  if (s.m < kLeastRows || s.batch * weights_each > kMostWeights) return false;
  T* weights = ThreadScratch().b.template Get<T>(s.batch * weights_each + s.k);
  T* column = weights + s.batch * weights_each;
  for (int64_t i = 0; i < s.batch * s.n; ++i) {
    const T* from = static_cast<const T*>(b) + i / s.n * s.b_batch + i % s.n * s.b_col;
    for (int64_t p = 0; p < s.k; ++p) column[p] = from[p * s.b_row];
    FewWeights(column, s.k, functions.lanes, weights + i * row);
  }
  const int64_t units = (s.m + kUnit - 1) / kUnit;
  Spread(pool, s.batch * units, std::max<int64_t>(1, kWorthSharing / (kUnit * weights_each)),
         [&](int64_t begin, int64_t end) {
           while (begin < end) {
             const int64_t batch = begin / units, first = begin % units, last = std::min(units, first + end - begin);
             const int64_t from = first * kUnit, rows = std::min(s.m, last * kUnit) - from;
             const T* x = static_cast<const T*>(a) + batch * s.a_batch + from * s.a_row;
             const T* y = weights + batch * weights_each;
             functions.outputs[s.n - 1](
                 {&x, &y, 1, s.k, s.a_row, static_cast<T*>(d) + batch * s.d_batch + from * s.n, rows});
             if (epilogue) (*epilogue)(batch* s.m + from, rows, 0, s.n);
             begin += last - first;
           }
         });
  return true;
}

template bool FewColumnsProduct<float>(const GemmShape&, const void*, const void*, void*, ThreadPool*, const Epilogue*);
template bool FewColumnsProduct<double>(const GemmShape&, const void*, const void*, void*, ThreadPool*,
                                        const Epilogue*);

}  // namespace ferrule

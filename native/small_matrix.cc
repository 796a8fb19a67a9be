// The functions of small matrices for this processor, and the library call "ferrule.lu_permutation": what the exchanges
// of rows that a factorization made come to.
#include <algorithm>
#include <numeric>
#include <type_traits>

#include "attributes.h"
#include "calls.h"
#include "cpu_features.h"
#include "element.h"
#include "program.h"
#include "small_matrix_tables.h"
#include "thread_pool.h"

namespace ferrule {
namespace {

const SmallMatrixKernels& Kernels() {
#if defined(__x86_64__)
  if (ChosenIsa() == Isa::kAvx512) return kAvx512SmallMatrix;
  if (ChosenIsa() == Isa::kAvx2) return kAvx2SmallMatrix;
#endif
  return kBaselineSmallMatrix;
}

constexpr int64_t kThreadWork = 1 << 16;  // multiply-adds that are worth a thread: some microseconds

// The exchanges are counted from zero, or from the end where they are negative; none outside of the rows is made.
class LuPermutation : public Prepared {
 public:
  LuPermutation(int64_t batch, int64_t steps, int64_t rows) : batch_(batch), steps_(steps), rows_(rows) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    const auto* pivots = static_cast<const int32_t*>(operands[0]);
    auto* permutations = static_cast<int32_t*>(results[0]);
    context.pool->For(batch_, kThreadWork / (rows_ + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        int32_t* rows = permutations + b * rows_;
        std::iota(rows, rows + rows_, 0);
        for (int64_t i = 0; i < steps_; ++i) {
          int64_t other = pivots[b * steps_ + i];
          if (other < 0) other += rows_;
          if (other >= 0 && other < rows_) std::swap(rows[i], rows[other]);
        }
      }
    });
    return Status();
  }

 private:
  int64_t batch_, steps_, rows_;
};

Result<std::unique_ptr<Prepared>> PreparePermutation(const CallDesc& call) {
  Attributes attributes(call);
  attributes.Expect(1, 1);
  FERRULE_RETURN_IF_ERROR(attributes.status());
  const auto &from = call.operands[0].dims, &to = call.results[0].dims;
  const bool fit = !from.empty() && from.size() == to.size() && std::equal(from.begin(), from.end() - 1, to.begin()) &&
                   from.back() <= to.back();
  if (!fit || ElementOf(call.operands[0]) != Element::kS32 || ElementOf(call.results[0]) != Element::kS32) {
    attributes.Fail("the exchanges and the rows are not arrays of i32 that fit each other");
    return attributes.status();
  }
  const int64_t batch = std::accumulate(from.begin(), from.end() - 1, int64_t{1}, std::multiplies<>());
  return std::unique_ptr<Prepared>(new LuPermutation(batch, from.back(), to.back()));
}

[[maybe_unused]] const bool registered = RegisterCall("ferrule.lu_permutation", &PreparePermutation);

}  // namespace

template <>
const SmallMatrixFunctions<float>& SmallMatrix() {
  return Kernels().f32;
}
template <>
const SmallMatrixFunctions<double>& SmallMatrix() {
  return Kernels().f64;
}

}  // namespace ferrule

// The right side of a product that is computed where it is packed: compiled code, which is told what part of it is
// wanted (src/ferrule/passes/made_sides.py, codegen/block_kernel.py).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "calls.h"
#include "epilogue.h"
#include "gemm_blocked.h"
#include "status.h"

namespace ferrule {

// One run's right side, in f32. It has rows as memory would: those of B, or of its transpose.
class MadeRight {
 public:
  using Function = void (*)(void** pointers, int64_t row, int64_t rows_end, int64_t column, int64_t columns_end,
                            int64_t step);
  // Columns begin at a multiple of so many.
  static constexpr int64_t kUnit = kEpilogueUnit;

  MadeRight(Function function, void* const* sources, size_t count)
      : function_(function), sources_(sources), count_(count) {}

  // Writes these rows and columns to `to`, its rows `step` elements apart.
  void operator()(float* to, int64_t step, int64_t row, int64_t rows, int64_t column, int64_t columns) const {
    void* pointers[EpilogueCall::kMost];
    *std::copy_n(sources_, count_, pointers) = to;
    function_(pointers, row, row + rows, column, column + columns, step);
  }

 private:
  Function function_;
  void* const* sources_;
  size_t count_;
};

// What a call says of it: attribute `made`, and its last operands, which are not the product's.
class MadeRightCall {
 public:
  // Takes it out of the call, whose operand 1 is then the side that is computed. None where the call has none.
  static Result<MadeRightCall> Of(CallDesc* call);
  explicit operator bool() const { return function_ != nullptr; }

  MadeRight In(void* const* operands) const { return {function_, operands + first_, count_}; }

 private:
  MadeRight::Function function_ = nullptr;
  size_t first_ = 0, count_ = 0;
};

// A product with few rows, as dot products with rows of the transposed right side. False when the case is another one.
bool DotsWithMade(const GemmShape& shape, const void* a, void* d, ThreadPool* pool, const GemmExtras& extras);

}  // namespace ferrule

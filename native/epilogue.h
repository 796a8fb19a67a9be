// What follows a matrix product or a convolution elementwise: compiled code that runs on blocks of the product while
// they are in the cache (src/ferrule/passes/finish.py, codegen/block_kernel.py).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "attributes.h"
#include "calls.h"

namespace ferrule {

// Blocks of columns begin at a multiple of so many columns. They end at one, too, or with the row.
constexpr int64_t kEpilogueUnit = 64;
// Results of so many bytes are in a near cache when they are finished; the more of a row, the better for what else is
// read.
constexpr int64_t kEpilogueBytes = 256 << 10;

// Computes these rows (numbered through all of a batch's matrices) and columns of the results.
using BlockFunction = void (*)(void** pointers, int64_t row, int64_t rows_end, int64_t column, int64_t columns_end);

// One run's epilogue.
struct Epilogue {
  BlockFunction function = nullptr;
  void** pointers = nullptr;
  void operator()(int64_t row, int64_t rows, int64_t column, int64_t columns) const {
    function(pointers, row, row + rows, column, column + columns);
  }
};

// A call's epilogue: operands 2, 3, … are what the function reads besides the product.
class EpilogueCall {
 public:
  static constexpr size_t kMost = 25;  // pointers

  EpilogueCall() = default;  // none
  // Reads the call's attributes; leaves the failure there when they do not fit.
  EpilogueCall(const CallDesc& call, Attributes* attributes);
  explicit operator bool() const { return function_ != nullptr; }

  // The number of the call's result in whose memory the product is formed.
  size_t home() const { return home_; }
  // The fewest rows that are worth a thread of their own.
  int64_t grain() const { return grain_; }

 private:
  friend class EpilogueRun;

  BlockFunction function_ = nullptr;
  size_t place_ = 0, home_ = 0, reads_ = 0, writes_ = 0;
  bool kept_ = false;  // the first result is the product itself, which the function does not write
  int64_t grain_ = 1;
};

// A call's epilogue in one run; it must not be moved while it is in use.
class EpilogueRun {
 public:
  EpilogueRun(const EpilogueCall& call, void* const* operands, void* const* results) {
    if (!call) return;
    void** to = std::copy_n(operands + 2, call.place_, pointers_);
    *to++ = results[call.home_];
    to = std::copy_n(operands + 2 + call.place_, call.reads_ - call.place_, to);
    std::copy_n(results + call.kept_, call.writes_, to);
    epilogue_ = {call.function_, pointers_};
  }
  EpilogueRun(const EpilogueRun&) = delete;
  EpilogueRun& operator=(const EpilogueRun&) = delete;

  // Null where the call has none.
  const Epilogue* get() const { return epilogue_.function ? &epilogue_ : nullptr; }

 private:
  void* pointers_[EpilogueCall::kMost];
  Epilogue epilogue_;
};

// A call that knows nothing of epilogues, and then the epilogue over all of its result.
std::unique_ptr<Prepared> ThenEpilogue(std::unique_ptr<Prepared> call, int64_t rows, int64_t columns,
                                       const EpilogueCall& epilogue);

}  // namespace ferrule

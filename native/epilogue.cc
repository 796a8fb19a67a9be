#include "epilogue.h"

#include <utility>

#include "program.h"
#include "thread_pool.h"

namespace ferrule {

EpilogueCall::EpilogueCall(const CallDesc& call, Attributes* attributes) {
  // The number of its arguments is a function's own affair; Python makes it and the call together.
  function_ = reinterpret_cast<BlockFunction>(reinterpret_cast<void*>(attributes->Function("epilogue")));
  if (!function_) {
    attributes->Expect(2, 1);
    return;
  }
  int64_t place = attributes->Int("place"), home = attributes->Int("home");
  kept_ = attributes->Bool("kept", false);
  grain_ = std::max<int64_t>(1, attributes->Int("grain", 1));
  auto operands = static_cast<int64_t>(call.operands.size()), results = static_cast<int64_t>(call.results.size());
  if (operands < 2 || place < 0 || place > operands - 2 || home < 0 || home >= results - (kept_ && home > 0) ||
      results <= kept_ || operands - 1 + results > static_cast<int64_t>(kMost)) {
    attributes->Fail("the epilogue's operands and results do not fit");
    function_ = nullptr;
    return;
  }
  place_ = static_cast<size_t>(place), home_ = static_cast<size_t>(home);
  reads_ = static_cast<size_t>(operands - 2), writes_ = static_cast<size_t>(results - kept_);
}

namespace {

// The call, and then the epilogue over all of its result.
class Both : public Prepared {
 public:
  Both(std::unique_ptr<Prepared> call, int64_t rows, int64_t columns, const EpilogueCall& epilogue)
      : call_(std::move(call)), rows_(rows), columns_(columns), epilogue_(epilogue) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    FERRULE_RETURN_IF_ERROR(call_->Run(operands, results + epilogue_.home(), context));
    const EpilogueRun run(epilogue_, operands, results);
    const Epilogue& epilogue = *run.get();
    context.pool->For(rows_, epilogue_.grain(),
                      [&](int64_t begin, int64_t end) { epilogue(begin, end - begin, 0, columns_); });
    return Status();
  }

 private:
  std::unique_ptr<Prepared> call_;
  int64_t rows_, columns_;
  EpilogueCall epilogue_;
};

}  // namespace

std::unique_ptr<Prepared> ThenEpilogue(std::unique_ptr<Prepared> call, int64_t rows, int64_t columns,
                                       const EpilogueCall& epilogue) {
  return std::make_unique<Both>(std::move(call), rows, columns, epilogue);
}

}  // namespace ferrule

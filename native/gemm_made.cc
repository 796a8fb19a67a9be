#include "gemm_made.h"

#include "attributes.h"

namespace ferrule {

Result<MadeRightCall> MadeRightCall::Of(CallDesc* call) {
  MadeRightCall made;
  Attributes attributes(*call);
  const CompiledFn function = attributes.Function("made");
  FERRULE_RETURN_IF_ERROR(attributes.status());
  if (!function) return made;
  const int64_t count = attributes.Int("made_of"), operands = static_cast<int64_t>(call->operands.size());
  FERRULE_RETURN_IF_ERROR(attributes.status());
  if (count < 1 || count > operands - 2 || count >= static_cast<int64_t>(EpilogueCall::kMost)) {
    attributes.Fail("what the right side is made of does not fit the operands");
    return attributes.status();
  }
  made.function_ = reinterpret_cast<MadeRight::Function>(reinterpret_cast<void*>(function));
  made.count_ = static_cast<size_t>(count), made.first_ = static_cast<size_t>(operands - count);
  call->operands.resize(made.first_);
  call->operands[1].dtype = static_cast<int>(Element::kF32);
  if (!call->sources.empty()) {
    call->sources.resize(made.first_);
    call->sources[1] = {};
  }
  return made;
}

}  // namespace ferrule

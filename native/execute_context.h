// What a caller attaches to an execution: user data for FFI handlers. Running programs keep it alive.
#pragma once

#include "ffi.h"
#include "pjrt_abi.h"
#include "ref.h"

namespace ferrule {

class ExecuteContext : public RefCounted {
 public:
  FfiUserData user_data;
};

inline ExecuteContext* From(PJRT_ExecuteContext* context) { return reinterpret_cast<ExecuteContext*>(context); }
inline PJRT_ExecuteContext* To(ExecuteContext* context) { return reinterpret_cast<PJRT_ExecuteContext*>(context); }

}  // namespace ferrule

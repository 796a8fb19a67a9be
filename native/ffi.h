// XLA FFI: runs handlers that are compiled against XLA's typed foreign-function interface (jaxlib's LAPACK kernels,
// users' own), by the table and structures of the generated pjrt_abi.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "calls.h"
#include "pjrt_abi.h"
#include "status.h"

namespace ferrule {

struct FfiHandler {
  // XLA_FFI_Handler*s per stage; only execute is compulsory.
  void* instantiate = nullptr;
  void* prepare = nullptr;
  void* initialize = nullptr;
  void* execute = nullptr;
  uint32_t traits = 0;
};

// Registers a handler for a platform ("cpu", case-insensitive; "Host" and the platform's own name mean the same). The
// handler is asked for its metadata first; one made for another major version of the interface is refused. Registering
// the same name again with other functions is an error, with the same ones is not.
Status RegisterFfiHandler(const std::string& name, const std::string& platform, const FfiHandler& handler);

// XLA's number of a PJRT element type; XLA_FFI_DataType_INVALID for those that XLA's interfaces do not name.
XLA_FFI_DataType XlaType(int dtype);

// Registers a type whose objects are handed to handlers as user data or state. `*id` is 0 for a fresh number, which is
// written back, or a number that the caller has chosen already.
Status RegisterFfiType(const std::string& name, int64_t* id, void (*deleter)(void* object));

// User data of one execution, by type; made by the FFI extension and passed as ExecContext::ffi_context. The owner
// destroys it.
class FfiUserData {
 public:
  FfiUserData();
  ~FfiUserData();  // destroys what it owns by the types' deleters
  Status Add(int64_t type_id, void* data);
  void* Get(int64_t type_id) const;

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

// Makes a CALL step with api = 1 ready: finds its handler (NOT_FOUND with similar names when there is none), encodes
// the attributes and runs the handler's instantiate stage.
Result<std::unique_ptr<Prepared>> PrepareFfiCall(const CallDesc& desc);

}  // namespace ferrule

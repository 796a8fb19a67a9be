// Ferrule's side of the XLA FFI's opaque types, and the table of functions that handlers call.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "ffi.h"
#include "pjrt_abi.h"
#include "program.h"
#include "status.h"

// The ABI's handles, whose names are fixed.

struct XLA_FFI_Error {
  ferrule::Status status;
};

// Completion of a handler that works asynchronously.
struct XLA_FFI_Future {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  ferrule::Status status;

  void Complete(ferrule::Status result) {
    std::lock_guard lock(mutex);
    done = true;
    status = std::move(result);
    changed.notify_all();
  }
  ferrule::Status Await() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return done; });
    return status;
  }
};

namespace ferrule::ffi {

// An object that a handler made in one stage for the later ones; destroyed by its type's deleter.
struct State {
  int64_t type_id = 0;
  void* object = nullptr;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();
};

}  // namespace ferrule::ffi

// What the functions of the table find behind the `ctx` of a call frame.
struct XLA_FFI_ExecutionContext {
  ferrule::ExecContext* run = nullptr;  // null in the instantiate stage, which belongs to no execution
  // The handler runs in all threads already: tasks that it schedules, and may wait for, are done at once.
  bool one_thread = false;
  ferrule::ffi::State* states[3] = {};  // by stage: instantiate, prepare, initialize
  std::vector<void*> allocations;

  XLA_FFI_ExecutionContext() = default;
  XLA_FFI_ExecutionContext(const XLA_FFI_ExecutionContext&) = delete;
  XLA_FFI_ExecutionContext& operator=(const XLA_FFI_ExecutionContext&) = delete;
  ~XLA_FFI_ExecutionContext();
};

namespace ferrule::ffi {

const XLA_FFI_Api& TheApi();

// The status that a handler's answer stands for; frees the error.
Status TakeError(XLA_FFI_Error* error);

// The registered type's deleter; null when there is none, false when the type is unknown.
bool FindType(int64_t id, void (**deleter)(void*));

// The handler for this platform ("cpu"), or NOT_FOUND with names that look similar.
Result<FfiHandler> FindHandler(const std::string& name);

}  // namespace ferrule::ffi

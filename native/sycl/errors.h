// Errors inside the driver are exceptions; at the border they become a PJRT_Error_Code and a message.
#pragma once

#include <exception>
#include <string>
#include <utility>

namespace ferrule_sycl {

// PJRT_Error_Code.
enum Code : int {
  kOk = 0,
  kInvalidArgument = 3,
  kNotFound = 5,
  kResourceExhausted = 8,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
};

struct Error {
  int code = kOk;
  std::string message;
};

// What SYCL, the C++ library or this driver threw, as an Error. `what` says what was being done.
Error Describe(std::exception_ptr thrown, const std::string& what);

// Keeps the message for the calling thread and returns the code.
int Fail(Error error);
const char* LastError();

// Runs `function`, which throws Error or anything else; `what` is called only when it did.
template <class What, class Function>
int Guard(What&& what, Function&& function) noexcept {
  try {
    try {
      function();
      return kOk;
    } catch (...) {
      return Fail(Describe(std::current_exception(), what()));
    }
  } catch (...) {
    return kResourceExhausted;  // no memory even for the message
  }
}

// A line on stderr when FERRULE_DEBUG is at least `level`.
int DebugLevel();
void Say(int level, const std::string& text);

}  // namespace ferrule_sycl

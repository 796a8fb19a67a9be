// Status and Result: how every native function reports failure. No exception ever leaves a Ferrule function.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace ferrule {

// The PJRT (absl) status codes.
enum class Code : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

// Success costs one null pointer; a failure carries a code and a message for the user. Cheap to copy.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : rep_(std::make_shared<const Rep>(Rep{code, std::move(message)})) {}

  bool ok() const { return rep_ == nullptr; }
  Code code() const { return rep_ ? rep_->code : Code::kOk; }
  const std::string& message() const {
    static const std::string empty;
    return rep_ ? rep_->message : empty;
  }

 private:
  struct Rep {
    Code code;
    std::string message;
  };
  std::shared_ptr<const Rep> rep_;
};

inline Status InvalidArgument(std::string m) { return {Code::kInvalidArgument, std::move(m)}; }
inline Status FailedPrecondition(std::string m) { return {Code::kFailedPrecondition, std::move(m)}; }
inline Status Unimplemented(std::string m) { return {Code::kUnimplemented, std::move(m)}; }
inline Status NotFound(std::string m) { return {Code::kNotFound, std::move(m)}; }
inline Status Internal(std::string m) { return {Code::kInternal, std::move(m)}; }
inline Status OutOfMemory(std::string m) { return {Code::kResourceExhausted, std::move(m)}; }

// A value or the reason why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : data_(std::move(value)) {}
  Result(Status status) : data_(std::move(status)) {}

  bool ok() const { return data_.index() == 0; }
  T& value() { return std::get<0>(data_); }
  const T& value() const { return std::get<0>(data_); }
  Status status() const { return ok() ? Status() : std::get<1>(data_); }
  T* operator->() { return &value(); }
  T& operator*() { return value(); }

 private:
  std::variant<T, Status> data_;
};

}  // namespace ferrule

// Returns from the enclosing function when `expr` (a Status) failed.
#define FERRULE_RETURN_IF_ERROR(expr)                       \
  do {                                                      \
    if (::ferrule::Status s_ = (expr); !s_.ok()) return s_; \
  } while (0)

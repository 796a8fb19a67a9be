// The one gate through which every call of the C API passes.
//
// A handler is `Status PJRT_Name(PJRT_Name_Args& args)` in namespace ferrule::api. Entry<> turns it into the C
// function:
//   * callers built for an older minor version pass a shorter struct: the handler then works on a copy that is extended
//     with zeros, and only the caller's part is copied back. So no handler tests struct_size, missing inputs read as
//     zero, and a late output is never written past the caller's end;
//   * a struct too short even for the oldest version is an INVALID_ARGUMENT;
//   * the handle the function is about must not be null, except for Destroy, where null is a no-op;
//   * no exception leaves.
#pragma once

#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "error.h"
#include "pjrt_abi.h"
#include "status.h"

namespace ferrule {

// The text of a pointer and a length that may be (null, 0).
inline std::string_view Text(const char* data, size_t size) {
  return data == nullptr ? std::string_view() : std::string_view(data, size);
}

template <class Args>
Status StructTooShort(size_t size) {
  return InvalidArgument(std::string(abi::Traits<Args>::kName) + ": the argument struct has " + std::to_string(size) +
                         " bytes, at least " + std::to_string(abi::Traits<Args>::kOldest) +
                         " are needed; the caller was built for a PJRT version that Ferrule does not serve");
}

// A struct that the caller points to from inside an argument struct, extended with zeros to today's size.
template <class T>
class Widened {
 public:
  explicit Widened(const T* caller) {
    if (caller == nullptr) return;
    std::memcpy(&copy_, caller, std::min<size_t>(caller->struct_size, abi::Traits<T>::kSize));
  }
  const T* operator->() const { return &copy_; }
  const T& operator*() const { return copy_; }

 private:
  T copy_{};
};

template <class Args, Status (*handler)(Args&)>
struct Entry {
  using T = abi::Traits<Args>;

  static PJRT_Error* Call(Args* args) noexcept {
    if (args == nullptr) return NewError(InvalidArgument(std::string(T::kName) + ": the argument struct is null"));
    if (args->struct_size >= T::kSize) [[likely]]
      return Run(*args);
    if (args->struct_size < T::kOldest) return NewError(StructTooShort<Args>(args->struct_size));
    const size_t size = args->struct_size;
    Args wide{};
    std::memcpy(&wide, args, size);
    PJRT_Error* error = Run(wide);
    if (error == nullptr) std::memcpy(args, &wide, size);
    return error;
  }

 private:
  static PJRT_Error* Run(Args& args) noexcept {
    if constexpr (T::kSubject != 0) {
      void* subject;
      std::memcpy(&subject, reinterpret_cast<const char*>(&args) + T::kSubject, sizeof subject);
      if (subject == nullptr) [[unlikely]] {
        if (std::string_view(T::kName).ends_with("_Destroy")) return nullptr;
        return NewError(InvalidArgument(std::string(T::kName) + ": `" + T::kSubjectName + "` is null"));
      }
    }
    try {
      Status status = handler(args);
      if (status.ok()) [[likely]]
        return nullptr;
      return NewError(std::move(status));
    } catch (const std::bad_alloc&) {
      return NewError(OutOfMemory(std::string(T::kName) + ": the host ran out of memory"));
    } catch (const std::exception& e) {
      return NewError(Internal(std::string(T::kName) + ": " + e.what()));
    } catch (...) {
      return NewError(Internal(std::string(T::kName) + ": an unknown exception"));
    }
  }
};

namespace api {
#define FERRULE_DECLARE(name) Status name(name##_Args& args);
FERRULE_PJRT_FUNCTIONS(FERRULE_DECLARE)
#undef FERRULE_DECLARE
}  // namespace api

}  // namespace ferrule

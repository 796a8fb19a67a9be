#include "error.h"

#include <new>
#include <string>

#include "entry.h"

namespace ferrule {
namespace {

struct Error : PJRT_Error {
  Status status;
};

const Error* From(const PJRT_Error* error) { return static_cast<const Error*>(error); }

void Destroy(PJRT_Error* error);
void Message(const PJRT_Error* error, const char** message, size_t* size) {
  *message = From(error)->status.message().c_str();
  *size = From(error)->status.message().size();
}
PJRT_Error_Code GetCode(const PJRT_Error* error) { return static_cast<PJRT_Error_Code>(From(error)->status.code()); }
// Ferrule's errors carry no payloads: what there is to say is in the message.
void ForEachPayload(const PJRT_Error*, PJRT_Error_PayloadVisitor, void*) {}

constexpr PJRT_Error_FunctionTable kTable = {
    .struct_size = PJRT_Error_FunctionTable_STRUCT_SIZE,
    .instance_size = sizeof(PJRT_Error),
    .extension_start = nullptr,
    .destroy = Destroy,
    .message = Message,
    .get_code = GetCode,
    .for_each_payload = ForEachPayload,
};

// Given out when not even an error object can be allocated; never freed.
Error& NoMemory() {
  static Error& error = *new Error{{&kTable}, OutOfMemory("the host ran out of memory")};
  return error;
}

void Destroy(PJRT_Error* error) {
  if (error != nullptr && error != &NoMemory()) delete static_cast<Error*>(error);
}

}  // namespace

PJRT_Error* NewError(Status status) noexcept {
  if (status.ok()) return nullptr;
  auto* error = new (std::nothrow) Error{{&kTable}, std::move(status)};
  return error != nullptr ? error : &NoMemory();
}

Status StatusOf(const PJRT_Error* error) { return error == nullptr ? Status() : From(error)->status; }

Status StatusFrom(int code, std::string_view message) {
  const bool known = code > 0 && code <= static_cast<int>(Code::kUnauthenticated);
  return {known ? static_cast<Code>(code) : Code::kUnknown, std::string(message)};
}

void ErrorDestroy(PJRT_Error_Destroy_Args* args) noexcept {
  if (args != nullptr) Destroy(args->error);
}

void ErrorMessage(PJRT_Error_Message_Args* args) noexcept {
  if (args == nullptr) return;
  args->message = "";
  args->message_size = 0;
  if (args->error != nullptr) Message(args->error, &args->message, &args->message_size);
}

namespace api {

Status PJRT_Error_GetCode(PJRT_Error_GetCode_Args& args) {
  args.code = GetCode(args.error);
  return {};
}

Status PJRT_Error_ForEachPayload(PJRT_Error_ForEachPayload_Args& args) {
  ForEachPayload(args.error, args.visitor, args.user_arg);
  return {};
}

}  // namespace api
}  // namespace ferrule

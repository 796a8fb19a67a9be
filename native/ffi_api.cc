// The functions that FFI handlers call back.
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "ffi_abi.h"
#include "ffi_context.h"
#include "thread_pool.h"

namespace ferrule::ffi {
namespace {

Error* MakeError(Status status) { return status.ok() ? nullptr : new Error{std::move(status)}; }

std::string Text(const ByteSpan& span) { return span.ptr ? std::string(span.ptr, span.len) : std::string(); }

Error* CreateError(Error_Create_Args* args) {
  auto code = args->errc >= 1 && args->errc <= 16 ? static_cast<Code>(args->errc) : Code::kUnknown;
  return new Error{Status(code, args->message ? args->message : "")};
}

// Since version 0.4 the caller may want the code, too.
struct ErrorDetailsArgs {
  Error_GetMessage_Args message;
  int32_t errc;
};

void GetErrorMessage(Error_GetMessage_Args* args) {
  args->message = args->error->status.message().c_str();
  if (args->struct_size >= offsetof(ErrorDetailsArgs, errc) + sizeof(int32_t))
    reinterpret_cast<ErrorDetailsArgs*>(args)->errc = static_cast<int32_t>(args->error->status.code());
}

void DestroyError(Error_Destroy_Args* args) { delete args->error; }

Error* RegisterHandler(Handler_Register_Args* args) {
  const Handler_Bundle& bundle = args->bundle;
  // Version 0.4 put a fifth function (for command buffers, which a CPU has not) between the bundle and the traits.
  uint32_t traits = args->traits;
  if (args->struct_size >= offsetof(Handler_Register_Args, traits) + sizeof(void*) + sizeof traits)
    std::memcpy(&traits, reinterpret_cast<char*>(&args->traits) + sizeof(void*), sizeof traits);
  FfiHandler handler{reinterpret_cast<void*>(bundle.instantiate), reinterpret_cast<void*>(bundle.prepare),
                     reinterpret_cast<void*>(bundle.initialize), reinterpret_cast<void*>(bundle.execute), traits};
  return MakeError(RegisterFfiHandler(Text(args->name), Text(args->platform), handler));
}

Error* GetStream(Stream_Get_Args* args) {
  args->stream = nullptr;
  return MakeError(Unimplemented("a CPU device has no stream; the handler must work on the calling thread"));
}

Error* RegisterType(Type_Register_Args* args) {
  return MakeError(
      RegisterFfiType(Text(args->name), &args->type_id->type_id, args->type_info ? args->type_info->deleter : nullptr));
}

Error* GetUserData(ExecutionContext_Get_Args* args) {
  args->data = nullptr;
  const auto* data =
      args->ctx && args->ctx->run ? static_cast<const FfiUserData*>(args->ctx->run->ffi_context) : nullptr;
  if (data) args->data = data->Get(args->type_id->type_id);
  if (args->data) return nullptr;
  return MakeError(
      NotFound("the execution has no user data of the FFI type " + std::to_string(args->type_id->type_id)));
}

// Handlers of interface versions before 0.3 know one state only and leave out the stage.
struct OldStateArgs {
  size_t struct_size;
  Extension_Base* extension_start;
  ExecutionContext* ctx;
  TypeId* type_id;
  void* state;
};
static_assert(sizeof(OldStateArgs) == 40);

Error* SetState(ExecutionContext* context, int32_t stage, int64_t type_id, void* object) {
  void (*deleter)(void*) = nullptr;
  if (!FindType(type_id, &deleter))
    return MakeError(
        NotFound("a handler sets a state of the FFI type " + std::to_string(type_id) + ", which is not registered"));
  State* state = stage >= 0 && stage < 3 ? context->states[stage] : nullptr;
  if (!state) return MakeError(FailedPrecondition("a handler sets a state in a stage that keeps none"));
  if (state->object) return MakeError(FailedPrecondition("a handler sets the state of one stage twice"));
  state->type_id = type_id;
  state->object = object;
  return nullptr;
}

Error* GetState(ExecutionContext* context, int32_t stage, int64_t type_id, void** object) {
  *object = nullptr;
  const State* state = stage >= 0 && stage < 3 ? context->states[stage] : nullptr;
  if (!state || !state->object) return MakeError(NotFound("a handler asks for a state that no earlier stage has set"));
  if (state->type_id != type_id)
    return MakeError(InvalidArgument("a handler asks for a state of the FFI type " + std::to_string(type_id) +
                                     ", but the type " + std::to_string(state->type_id) + " was set"));
  *object = state->object;
  return nullptr;
}

Error* StateSet(State_Set_Args* args) {
  if (args->struct_size >= sizeof(State_Set_Args))
    return SetState(args->ctx, args->stage, args->type_id->type_id, args->state);
  auto* old = reinterpret_cast<OldStateArgs*>(args);
  return SetState(old->ctx, kStageInstantiate, old->type_id->type_id, old->state);
}

Error* StateGet(State_Get_Args* args) {
  if (args->struct_size >= sizeof(State_Get_Args))
    return GetState(args->ctx, args->stage, args->type_id->type_id, &args->state);
  auto* old = reinterpret_cast<OldStateArgs*>(args);
  return GetState(old->ctx, kStageInstantiate, old->type_id->type_id, &old->state);
}

Error* Allocate(DeviceMemory_Allocate_Args* args) {
  args->data = nullptr;
  size_t alignment = std::max<size_t>(args->alignment, 64);
  if (alignment & (alignment - 1)) return MakeError(InvalidArgument("an alignment must be a power of two"));
  size_t size = std::max<size_t>(args->size, 1);
  if (size <= SIZE_MAX - alignment)
    args->data = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (!args->data)
    return MakeError(
        OutOfMemory("no memory for " + std::to_string(args->size) + " bytes that an FFI handler asks for"));
  args->ctx->allocations.push_back(args->data);
  return nullptr;
}

Error* Free(DeviceMemory_Free_Args* args) {
  auto& list = args->ctx->allocations;
  auto found = std::find(list.begin(), list.end(), args->data);
  if (found == list.end())
    return args->data ? MakeError(InvalidArgument("an FFI handler frees memory that it did not allocate")) : nullptr;
  std::free(*found);
  list.erase(found);
  return nullptr;
}

Error* Schedule(ThreadPool_Schedule_Args* args) {
  ThreadPool& pool = args->ctx->run && args->ctx->run->pool ? *args->ctx->run->pool : ThreadPool::Global();
  pool.Schedule(args->task, args->data);
  return nullptr;
}

Error* NumThreads(ThreadPool_NumThreads_Args* args) {
  ThreadPool& pool = args->ctx->run && args->ctx->run->pool ? *args->ctx->run->pool : ThreadPool::Global();
  *args->num_threads = pool.threads();
  return nullptr;
}

Error* CreateFuture(Future_Create_Args* args) {
  args->future = new Future;
  return nullptr;
}

Error* SetAvailable(Future_SetAvailable_Args* args) {
  args->future->Complete({});
  return nullptr;
}

Error* SetError(Future_SetError_Args* args) {
  Status status = TakeError(args->error);
  args->future->Complete(status.ok() ? Internal("an asynchronous FFI handler failed without a reason") : status);
  return nullptr;
}

Error* GetRunId(RunId_Get_Args* args) {
  args->run_id = args->ctx->run ? args->ctx->run->run_id : 0;
  return nullptr;
}

Error* GetDeviceOrdinal(DeviceOrdinal_Get_Args* args) {
  args->device_ordinal = args->ctx->run ? args->ctx->run->device_ordinal : 0;
  return nullptr;
}

// No extensions and no options of one execution are offered: the answers are "none".
Error* FindExtension(FindExtension_Args* args) {
  args->extension = nullptr;
  return nullptr;
}

Error* GetCustomOptions(CustomOptions_Get_Args* args) {
  static const Attrs none = {kAttrsSize, nullptr, 0, nullptr, nullptr, nullptr};
  args->attrs = &none;
  return nullptr;
}

}  // namespace

State::~State() {
  void (*deleter)(void*) = nullptr;
  if (object && FindType(type_id, &deleter) && deleter) deleter(object);
}

ExecutionContext::~ExecutionContext() {
  for (void* block : allocations) std::free(block);
}

Status TakeError(Error* error) {
  if (!error) return {};
  Status status = std::move(error->status);
  delete error;
  return status;
}

const Api& TheApi() {
  static const Api api = {
      .struct_size = kApiSize,
      .extension_start = nullptr,
      .api_version = {sizeof(Api_Version), nullptr, kApiMajor, kApiMinor},
      .internal_api = nullptr,  // for handlers that are part of XLA itself
      .Error_Create = CreateError,
      .Error_GetMessage = GetErrorMessage,
      .Error_Destroy = DestroyError,
      .Handler_Register = RegisterHandler,
      .Stream_Get = GetStream,
      .Type_Register = RegisterType,
      .ExecutionContext_Get = GetUserData,
      .State_Set = StateSet,
      .State_Get = StateGet,
      .DeviceMemory_Allocate = Allocate,
      .DeviceMemory_Free = Free,
      .ThreadPool_Schedule = Schedule,
      .ThreadPool_NumThreads = NumThreads,
      .Future_Create = CreateFuture,
      .Future_SetAvailable = SetAvailable,
      .Future_SetError = SetError,
      .RunId_Get = GetRunId,
      .DeviceOrdinal_Get = GetDeviceOrdinal,
      .InvokeContext_FindExtension = FindExtension,
      .CustomOptions_Get = GetCustomOptions,
  };
  return api;
}

}  // namespace ferrule::ffi

// The functions that FFI handlers call back.
#include <algorithm>
#include <cstdlib>
#include <string>

#include "ffi_context.h"
#include "thread_pool.h"

namespace ferrule::ffi {
namespace {

XLA_FFI_Error* MakeError(Status status) { return status.ok() ? nullptr : new XLA_FFI_Error{std::move(status)}; }

std::string Text(const XLA_FFI_ByteSpan& span) { return span.ptr ? std::string(span.ptr, span.len) : std::string(); }

XLA_FFI_Error* CreateError(XLA_FFI_Error_Create_Args* args) {
  auto code = args->errc >= 1 && args->errc <= 16 ? static_cast<Code>(args->errc) : Code::kUnknown;
  return new XLA_FFI_Error{Status(code, args->message ? args->message : "")};
}

void GetErrorMessage(XLA_FFI_Error_GetMessage_Args* args) {
  args->message = args->error->status.message().c_str();
  // Since version 0.4 the caller may want the code, too.
  if (args->struct_size >= XLA_FFI_Error_GetMessage_Args_STRUCT_SIZE)
    args->errc = static_cast<XLA_FFI_Error_Code>(args->error->status.code());
}

void DestroyError(XLA_FFI_Error_Destroy_Args* args) { delete args->error; }

XLA_FFI_Error* RegisterHandler(XLA_FFI_Handler_Register_Args* args) {
  const XLA_FFI_Handler_Bundle& bundle = args->bundle;
  // Version 0.4 put a fifth function (for command buffers, which a CPU has not) between the others and the traits.
  bool newest = args->struct_size >= XLA_FFI_Handler_Register_Args_STRUCT_SIZE;
  uint32_t traits = newest ? args->traits : reinterpret_cast<XLA_FFI_Handler_Register_Args_0_3*>(args)->traits;
  FfiHandler handler{reinterpret_cast<void*>(bundle.instantiate), reinterpret_cast<void*>(bundle.prepare),
                     reinterpret_cast<void*>(bundle.initialize), reinterpret_cast<void*>(bundle.execute), traits};
  return MakeError(RegisterFfiHandler(Text(args->name), Text(args->platform), handler));
}

XLA_FFI_Error* GetStream(XLA_FFI_Stream_Get_Args* args) {
  args->stream = nullptr;
  return MakeError(Unimplemented("a CPU device has no stream; the handler must work on the calling thread"));
}

XLA_FFI_Error* RegisterType(XLA_FFI_Type_Register_Args* args) {
  return MakeError(
      RegisterFfiType(Text(args->name), &args->type_id->type_id, args->type_info ? args->type_info->deleter : nullptr));
}

XLA_FFI_Error* GetUserData(XLA_FFI_ExecutionContext_Get_Args* args) {
  args->data = nullptr;
  const auto* data =
      args->ctx && args->ctx->run ? static_cast<const FfiUserData*>(args->ctx->run->ffi_context) : nullptr;
  if (data) args->data = data->Get(args->type_id->type_id);
  if (args->data) return nullptr;
  return MakeError(
      NotFound("the execution has no user data of the FFI type " + std::to_string(args->type_id->type_id)));
}

XLA_FFI_Error* SetState(XLA_FFI_ExecutionContext* context, int32_t stage, int64_t type_id, void* object) {
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

XLA_FFI_Error* GetState(XLA_FFI_ExecutionContext* context, int32_t stage, int64_t type_id, void** object) {
  *object = nullptr;
  const State* state = stage >= 0 && stage < 3 ? context->states[stage] : nullptr;
  if (!state || !state->object) return MakeError(NotFound("a handler asks for a state that no earlier stage has set"));
  if (state->type_id != type_id)
    return MakeError(InvalidArgument("a handler asks for a state of the FFI type " + std::to_string(type_id) +
                                     ", but the type " + std::to_string(state->type_id) + " was set"));
  *object = state->object;
  return nullptr;
}

XLA_FFI_Error* StateSet(XLA_FFI_State_Set_Args* args) {
  // Handlers of versions before 0.3 know one state only and leave out the stage.
  if (args->struct_size >= XLA_FFI_State_Set_Args_STRUCT_SIZE)
    return SetState(args->ctx, args->stage, args->type_id->type_id, args->state);
  auto* old = reinterpret_cast<XLA_FFI_State_Set_Args_0_2*>(args);
  return SetState(old->ctx, XLA_FFI_ExecutionStage_INSTANTIATE, old->type_id->type_id, old->state);
}

XLA_FFI_Error* StateGet(XLA_FFI_State_Get_Args* args) {
  if (args->struct_size >= XLA_FFI_State_Get_Args_STRUCT_SIZE)
    return GetState(args->ctx, args->stage, args->type_id->type_id, &args->state);
  auto* old = reinterpret_cast<XLA_FFI_State_Get_Args_0_2*>(args);
  return GetState(old->ctx, XLA_FFI_ExecutionStage_INSTANTIATE, old->type_id->type_id, &old->state);
}

XLA_FFI_Error* Allocate(XLA_FFI_DeviceMemory_Allocate_Args* args) {
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

XLA_FFI_Error* Free(XLA_FFI_DeviceMemory_Free_Args* args) {
  auto& list = args->ctx->allocations;
  auto found = std::find(list.begin(), list.end(), args->data);
  if (found == list.end())
    return args->data ? MakeError(InvalidArgument("an FFI handler frees memory that it did not allocate")) : nullptr;
  std::free(*found);
  list.erase(found);
  return nullptr;
}

XLA_FFI_Error* Schedule(XLA_FFI_ThreadPool_Schedule_Args* args) {
  if (args->ctx->one_thread) {
    args->task(args->data);
    return nullptr;
  }
  ThreadPool& pool = args->ctx->run && args->ctx->run->pool ? *args->ctx->run->pool : ThreadPool::Global();
  pool.Schedule(args->task, args->data);
  return nullptr;
}

XLA_FFI_Error* NumThreads(XLA_FFI_ThreadPool_NumThreads_Args* args) {
  ThreadPool& pool = args->ctx->run && args->ctx->run->pool ? *args->ctx->run->pool : ThreadPool::Global();
  *args->num_threads = args->ctx->one_thread ? 1 : pool.threads();
  return nullptr;
}

XLA_FFI_Error* CreateFuture(XLA_FFI_Future_Create_Args* args) {
  args->future = new XLA_FFI_Future;
  return nullptr;
}

XLA_FFI_Error* SetAvailable(XLA_FFI_Future_SetAvailable_Args* args) {
  args->future->Complete({});
  return nullptr;
}

XLA_FFI_Error* SetError(XLA_FFI_Future_SetError_Args* args) {
  Status status = TakeError(args->error);
  args->future->Complete(status.ok() ? Internal("an asynchronous FFI handler failed without a reason") : status);
  return nullptr;
}

XLA_FFI_Error* GetRunId(XLA_FFI_RunId_Get_Args* args) {
  args->run_id = args->ctx->run ? args->ctx->run->run_id : 0;
  return nullptr;
}

XLA_FFI_Error* GetDeviceOrdinal(XLA_FFI_DeviceOrdinal_Get_Args* args) {
  args->device_ordinal = args->ctx->run ? args->ctx->run->device_ordinal : 0;
  return nullptr;
}

// No extensions and no options of one execution are offered: the answers are "none".
XLA_FFI_Error* FindExtension(XLA_FFI_InvokeContext_FindExtension_Args* args) {
  args->extension = nullptr;
  return nullptr;
}

XLA_FFI_Error* GetCustomOptions(XLA_FFI_CustomOptions_Get_Args* args) {
  static const XLA_FFI_Attrs none = {XLA_FFI_Attrs_STRUCT_SIZE, nullptr, 0, nullptr, nullptr, nullptr};
  args->attrs = &none;
  return nullptr;
}

}  // namespace

State::~State() {
  void (*deleter)(void*) = nullptr;
  if (object && FindType(type_id, &deleter) && deleter) deleter(object);
}

Status TakeError(XLA_FFI_Error* error) {
  if (!error) return {};
  Status status = std::move(error->status);
  delete error;
  return status;
}

const XLA_FFI_Api& TheApi() {
  static const XLA_FFI_Api api = {
      .struct_size = XLA_FFI_Api_STRUCT_SIZE,
      .extension_start = nullptr,
      .api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR},
      .internal_api = nullptr,  // for handlers that are part of XLA itself
      .XLA_FFI_Error_Create = CreateError,
      .XLA_FFI_Error_GetMessage = GetErrorMessage,
      .XLA_FFI_Error_Destroy = DestroyError,
      .XLA_FFI_Handler_Register = RegisterHandler,
      .XLA_FFI_Stream_Get = GetStream,
      .XLA_FFI_Type_Register = RegisterType,
      .XLA_FFI_ExecutionContext_Get = GetUserData,
      .XLA_FFI_State_Set = StateSet,
      .XLA_FFI_State_Get = StateGet,
      .XLA_FFI_DeviceMemory_Allocate = Allocate,
      .XLA_FFI_DeviceMemory_Free = Free,
      .XLA_FFI_ThreadPool_Schedule = Schedule,
      .XLA_FFI_ThreadPool_NumThreads = NumThreads,
      .XLA_FFI_Future_Create = CreateFuture,
      .XLA_FFI_Future_SetAvailable = SetAvailable,
      .XLA_FFI_Future_SetError = SetError,
      .XLA_FFI_RunId_Get = GetRunId,
      .XLA_FFI_DeviceOrdinal_Get = GetDeviceOrdinal,
      .XLA_FFI_InvokeContext_FindExtension = FindExtension,
      .XLA_FFI_CustomOptions_Get = GetCustomOptions,
  };
  return api;
}

}  // namespace ferrule::ffi

XLA_FFI_ExecutionContext::~XLA_FFI_ExecutionContext() {
  for (void* block : allocations) std::free(block);
}

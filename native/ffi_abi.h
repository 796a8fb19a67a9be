// The XLA FFI ABI (versions 0.3 of jaxlib 0.10 to 0.5 of jaxlib 0.12; each appends to the one before): structures that
// handlers compiled against XLA's own header expect, field by field as published in XLA's ffi/api/c_api.h. The static
// assertions hold the layout.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ferrule::ffi {

inline constexpr int kApiMajor = 0, kApiMinor = 5;

enum DataType : int32_t {
  kTypeINVALID = 0,
  kTypePRED = 1,
  kTypeS1 = 30,
  kTypeS2 = 26,
  kTypeS4 = 21,
  kTypeS8 = 2,
  kTypeS16 = 3,
  kTypeS32 = 4,
  kTypeS64 = 5,
  kTypeU1 = 31,
  kTypeU2 = 27,
  kTypeU4 = 22,
  kTypeU8 = 6,
  kTypeU16 = 7,
  kTypeU32 = 8,
  kTypeU64 = 9,
  kTypeF16 = 10,
  kTypeF32 = 11,
  kTypeF64 = 12,
  kTypeBF16 = 16,
  kTypeC64 = 15,
  kTypeC128 = 18,
  kTypeTOKEN = 17,
  kTypeF8E5M2 = 19,
  kTypeF8E3M4 = 29,
  kTypeF8E4M3 = 28,
  kTypeF8E4M3FN = 20,
  kTypeF8E4M3B11FNUZ = 23,
  kTypeF8E5M2FNUZ = 24,
  kTypeF8E4M3FNUZ = 25,
  kTypeF4E2M1FN = 32,
  kTypeF8E8M0FNU = 33,
};

enum ArgType : int32_t {
  kArgBuffer = 1,
};

enum RetType : int32_t {
  kRetBuffer = 1,
};

enum AttrType : int32_t {
  kAttrArray = 1,
  kAttrDictionary = 2,
  kAttrScalar = 3,
  kAttrString = 4,
};

enum ExecutionStage : int32_t {
  kStageInstantiate = 0,
  kStagePrepare = 1,
  kStageInitialize = 2,
  kStageExecute = 3,
};

inline constexpr int32_t kMetadataExtension = 1;
inline constexpr uint32_t kCommandBufferCompatible = 1;

// Opaque to handlers; defined in ffi.cc.
struct Error;
struct Future;
struct ExecutionContext;
struct InternalApi;

struct Api;
struct CallFrame;
using Handler = Error*(CallFrame*);
using Task = void(void* data);

struct Extension_Base {
  size_t struct_size;
  int32_t type;
  Extension_Base* next;
};
static_assert(sizeof(Extension_Base) == 24);
inline constexpr size_t kExtensionBaseSize = 24;

struct Api_Version {
  size_t struct_size;
  Extension_Base* extension_start;
  int major_version;
  int minor_version;
};
static_assert(sizeof(Api_Version) == 24);
inline constexpr size_t kApiVersionSize = 24;

struct ByteSpan {
  const char* ptr;
  size_t len;
};
static_assert(sizeof(ByteSpan) == 16);

struct Scalar {
  DataType dtype;
  void* value;
};
static_assert(sizeof(Scalar) == 16);

struct Array {
  DataType dtype;
  size_t size;
  void* data;
};
static_assert(sizeof(Array) == 24);

struct TypeId {
  int64_t type_id;
};
static_assert(sizeof(TypeId) == 8);

struct TypeInfo {
  size_t struct_size;
  Extension_Base* extension_start;
  void (*deleter)(void*);
};
static_assert(sizeof(TypeInfo) == 24);
inline constexpr size_t kTypeInfoSize = 24;

struct Buffer {
  size_t struct_size;
  Extension_Base* extension_start;
  DataType dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};
static_assert(sizeof(Buffer) == 48);
inline constexpr size_t kBufferSize = 48;

struct Args {
  size_t struct_size;
  Extension_Base* extension_start;
  int64_t size;
  ArgType* types;
  void** args;
};
static_assert(sizeof(Args) == 40);
inline constexpr size_t kArgsSize = 40;

struct Rets {
  size_t struct_size;
  Extension_Base* extension_start;
  int64_t size;
  RetType* types;
  void** rets;
};
static_assert(sizeof(Rets) == 40);
inline constexpr size_t kRetsSize = 40;

struct Attrs {
  size_t struct_size;
  Extension_Base* extension_start;
  int64_t size;
  AttrType* types;
  ByteSpan** names;
  void** attrs;
};
static_assert(sizeof(Attrs) == 48);
inline constexpr size_t kAttrsSize = 48;

struct CallFrame {
  size_t struct_size;
  Extension_Base* extension_start;
  const Api* api;
  ExecutionContext* ctx;
  ExecutionStage stage;
  Args args;
  Rets rets;
  Attrs attrs;
  Future* future;
};
static_assert(sizeof(CallFrame) == 176);
inline constexpr size_t kCallFrameSize = 168;

struct Handler_Bundle {
  Handler* instantiate;
  Handler* prepare;
  Handler* initialize;
  Handler* execute;
};
static_assert(sizeof(Handler_Bundle) == 32);

struct Error_Create_Args {
  size_t struct_size;
  Extension_Base* extension_start;
  const char* message;
  int32_t errc;
};
static_assert(sizeof(Error_Create_Args) == 32);
inline constexpr size_t kErrorCreateArgsSize = 28;

struct Error_GetMessage_Args {
  size_t struct_size;
  Extension_Base* extension_start;
  Error* error;
  const char* message;
};
static_assert(sizeof(Error_GetMessage_Args) == 32);
inline constexpr size_t kErrorGetMessageArgsSize = 32;

struct Error_Destroy_Args {
  size_t struct_size;
  Extension_Base* extension_start;
  Error* error;
};
static_assert(sizeof(Error_Destroy_Args) == 24);
inline constexpr size_t kErrorDestroyArgsSize = 24;

struct Future_Create_Args {
  size_t struct_size;
  Extension_Base* extension_start;
  Future* future;
};
static_assert(sizeof(Future_Create_Args) == 24);
inline constexpr size_t kFutureCreateArgsSize = 16;

struct Future_SetAvailable_Args {
  size_t struct_size;
  Extension_Base* extension_start;
  Future* future;
};
static_assert(sizeof(Future_SetAvailable_Args) == 24);
inline constexpr size_t kFutureSetAvailableArgsSize = 24;

struct Future_SetError_Args {
  size_t struct_size;
  Extension_Base* extension_start;
  Future* future;
  Error* error;
};
static_assert(sizeof(Future_SetError_Args) == 32);
inline constexpr size_t kFutureSetErrorArgsSize = 32;

struct Handler_Register_Args {
  size_t struct_size;
  Extension_Base* extension_start;
  ByteSpan name;
  ByteSpan platform;
  Handler_Bundle bundle;
  uint32_t traits;
};
static_assert(sizeof(Handler_Register_Args) == 88);
inline constexpr size_t kHandlerRegisterArgsSize = 84;

struct Type_Register_Args {
  size_t struct_size;
  Extension_Base* extension_start;
  ByteSpan name;
  TypeId* type_id;
  const TypeInfo* type_info;
};
static_assert(sizeof(Type_Register_Args) == 48);
inline constexpr size_t kTypeRegisterArgsSize = 40;

struct ExecutionContext_Get_Args {
  size_t struct_size;
  Extension_Base* extension_start;
  ExecutionContext* ctx;
  TypeId* type_id;
  void* data;
};
static_assert(sizeof(ExecutionContext_Get_Args) == 40);
inline constexpr size_t kExecutionContextGetArgsSize = 40;

struct State_Set_Args {
  size_t struct_size;
  Extension_Base* extension_start;
  ExecutionContext* ctx;
  ExecutionStage stage;
  TypeId* type_id;
  void* state;
};
static_assert(sizeof(State_Set_Args) == 48);
inline constexpr size_t kStateSetArgsSize = 48;

struct State_Get_Args {
  size_t struct_size;
  Extension_Base* extension_start;
  ExecutionContext* ctx;
  ExecutionStage stage;
  TypeId* type_id;
  void* state;
};
static_assert(sizeof(State_Get_Args) == 48);
inline constexpr size_t kStateGetArgsSize = 48;

struct Stream_Get_Args {
  size_t struct_size;
  Extension_Base* extension_start;
  ExecutionContext* ctx;
  void* stream;
};
static_assert(sizeof(Stream_Get_Args) == 32);
inline constexpr size_t kStreamGetArgsSize = 32;

struct DeviceMemory_Allocate_Args {
  size_t struct_size;
  Extension_Base* extension_start;
  ExecutionContext* ctx;
  size_t size;
  size_t alignment;
  void* data;
};
static_assert(sizeof(DeviceMemory_Allocate_Args) == 48);
inline constexpr size_t kDeviceMemoryAllocateArgsSize = 48;

struct DeviceMemory_Free_Args {
  size_t struct_size;
  Extension_Base* extension_start;
  ExecutionContext* ctx;
  size_t size;
  void* data;
};
static_assert(sizeof(DeviceMemory_Free_Args) == 40);
inline constexpr size_t kDeviceMemoryFreeArgsSize = 40;

struct ThreadPool_Schedule_Args {
  size_t struct_size;
  Extension_Base* extension_start;
  ExecutionContext* ctx;
  Task* task;
  void* data;
};
static_assert(sizeof(ThreadPool_Schedule_Args) == 40);
inline constexpr size_t kThreadPoolScheduleArgsSize = 40;

struct ThreadPool_NumThreads_Args {
  size_t struct_size;
  Extension_Base* extension_start;
  ExecutionContext* ctx;
  int64_t* num_threads;
};
static_assert(sizeof(ThreadPool_NumThreads_Args) == 32);
inline constexpr size_t kThreadPoolNumThreadsArgsSize = 32;

struct RunId_Get_Args {
  size_t struct_size;
  Extension_Base* extension_start;
  ExecutionContext* ctx;
  int64_t run_id;
};
static_assert(sizeof(RunId_Get_Args) == 32);
inline constexpr size_t kRunIdGetArgsSize = 32;

struct DeviceOrdinal_Get_Args {
  size_t struct_size;
  Extension_Base* extension_start;
  ExecutionContext* ctx;
  int32_t device_ordinal;
};
static_assert(sizeof(DeviceOrdinal_Get_Args) == 32);
inline constexpr size_t kDeviceOrdinalGetArgsSize = 28;

struct FindExtension_Args {
  size_t struct_size;
  Extension_Base* extension_start;
  ExecutionContext* ctx;
  int64_t extension_type;
  const void* extension;
};
static_assert(sizeof(FindExtension_Args) == 40);

struct CustomOptions_Get_Args {
  size_t struct_size;
  Extension_Base* extension_start;
  ExecutionContext* ctx;
  const Attrs* attrs;
};
static_assert(sizeof(CustomOptions_Get_Args) == 32);

struct Metadata {
  size_t struct_size;
  Api_Version api_version;
  uint32_t traits;
  TypeId state_type_id;
};
static_assert(sizeof(Metadata) == 48);
inline constexpr size_t kMetadataSize = 36;

struct MetadataExtension {
  Extension_Base extension_base;
  Metadata* metadata;
};
static_assert(sizeof(MetadataExtension) == 32);
inline constexpr size_t kMetadataExtensionSize = 32;

struct Api {
  size_t struct_size;
  Extension_Base* extension_start;
  Api_Version api_version;
  const InternalApi* internal_api;
  Error* (*Error_Create)(Error_Create_Args* args);
  void (*Error_GetMessage)(Error_GetMessage_Args* args);
  void (*Error_Destroy)(Error_Destroy_Args* args);
  Error* (*Handler_Register)(Handler_Register_Args* args);
  Error* (*Stream_Get)(Stream_Get_Args* args);
  Error* (*Type_Register)(Type_Register_Args* args);
  Error* (*ExecutionContext_Get)(ExecutionContext_Get_Args* args);
  Error* (*State_Set)(State_Set_Args* args);
  Error* (*State_Get)(State_Get_Args* args);
  Error* (*DeviceMemory_Allocate)(DeviceMemory_Allocate_Args* args);
  Error* (*DeviceMemory_Free)(DeviceMemory_Free_Args* args);
  Error* (*ThreadPool_Schedule)(ThreadPool_Schedule_Args* args);
  Error* (*ThreadPool_NumThreads)(ThreadPool_NumThreads_Args* args);
  Error* (*Future_Create)(Future_Create_Args* args);
  Error* (*Future_SetAvailable)(Future_SetAvailable_Args* args);
  Error* (*Future_SetError)(Future_SetError_Args* args);
  Error* (*RunId_Get)(RunId_Get_Args* args);
  Error* (*DeviceOrdinal_Get)(DeviceOrdinal_Get_Args* args);
  Error* (*InvokeContext_FindExtension)(FindExtension_Args* args);  // since 0.4
  Error* (*CustomOptions_Get)(CustomOptions_Get_Args* args);        // since 0.5
};
static_assert(sizeof(Api) == 208);
inline constexpr size_t kApiSize = 208;

}  // namespace ferrule::ffi

// The FFI extension and execute contexts: handlers, types and user data go to the registry of ffi.h.
#include "entry.h"
#include "execute_context.h"
#include "extensions.h"
#include "ffi.h"

namespace ferrule {
namespace {

Status RegisterType(PJRT_FFI_Type_Register_Args& args) {
  void (*deleter)(void*) = args.type_info != nullptr ? args.type_info->deleter : nullptr;
  return RegisterFfiType(std::string(Text(args.type_name, args.type_name_size)), &args.type_id, deleter);
}

Status AddUserData(PJRT_FFI_UserData_Add_Args& args) {
  return From(args.context)->user_data.Add(args.user_data.type_id, args.user_data.data);
}

Status RegisterHandler(PJRT_FFI_Register_Handler_Args& args) {
  FfiHandler handler;
  handler.execute = args.handler;
  handler.traits = static_cast<uint32_t>(args.traits);
  return RegisterFfiHandler(std::string(Text(args.target_name, args.target_name_size)),
                            std::string(Text(args.platform_name, args.platform_name_size)), handler);
}

}  // namespace

PJRT_Extension_Base* FfiExtension() {
  static PJRT_FFI_Extension extension = {
      {PJRT_FFI_Extension_STRUCT_SIZE, PJRT_Extension_Type_FFI, nullptr},
      Entry<PJRT_FFI_Type_Register_Args, RegisterType>::Call,
      Entry<PJRT_FFI_UserData_Add_Args, AddUserData>::Call,
      Entry<PJRT_FFI_Register_Handler_Args, RegisterHandler>::Call,
  };
  return &extension.base;
}

namespace api {

Status PJRT_ExecuteContext_Create(PJRT_ExecuteContext_Create_Args& args) {
  args.context = To(new ExecuteContext);
  return {};
}

Status PJRT_ExecuteContext_Destroy(PJRT_ExecuteContext_Destroy_Args& args) {
  From(args.context)->Release();
  return {};
}

}  // namespace api
}  // namespace ferrule

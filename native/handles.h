// The C API's opaque handles and the objects behind them.
#pragma once

#include "pjrt_abi.h"

namespace ferrule {

#define FERRULE_HANDLE(Handle, Object)                                                                \
  class Object;                                                                                       \
  inline Object* From(Handle* handle) { return reinterpret_cast<Object*>(handle); }                   \
  inline const Object* From(const Handle* handle) { return reinterpret_cast<const Object*>(handle); } \
  inline Handle* To(Object* object) { return reinterpret_cast<Handle*>(object); }

FERRULE_HANDLE(PJRT_Event, Event)
FERRULE_HANDLE(PJRT_Client, Client)
FERRULE_HANDLE(PJRT_Device, Device)
FERRULE_HANDLE(PJRT_DeviceDescription, DeviceDescription)
FERRULE_HANDLE(PJRT_TopologyDescription, Topology)
FERRULE_HANDLE(PJRT_Buffer, Buffer)
FERRULE_HANDLE(PJRT_Executable, Executable)
FERRULE_HANDLE(PJRT_LoadedExecutable, LoadedExecutable)
FERRULE_HANDLE(PJRT_AsyncHostToDeviceTransferManager, TransferManager)

#undef FERRULE_HANDLE

}  // namespace ferrule

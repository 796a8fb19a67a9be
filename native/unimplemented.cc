// Entries that this version does not offer; each says what is missing and what to do instead.
#include "device.h"
#include "entry.h"

namespace ferrule::api {

// Streams for recv callbacks; the programs that would use them do not compile (send and recv ops).
#define FERRULE_NO_STREAM(name)                                                                         \
  Status name(name##_Args&) {                                                                           \
    return Unimplemented(                                                                               \
        #name                                                                                           \
        ": Ferrule makes no copy-to-device streams, because send and recv ops are not supported; pass " \
        "data as arguments, or use a host callback");                                                   \
  }
FERRULE_NO_STREAM(PJRT_CopyToDeviceStream_AddChunk)
FERRULE_NO_STREAM(PJRT_CopyToDeviceStream_TotalBytes)
FERRULE_NO_STREAM(PJRT_CopyToDeviceStream_GranuleSize)
FERRULE_NO_STREAM(PJRT_CopyToDeviceStream_CurrentBytes)
#undef FERRULE_NO_STREAM

// Destroying what cannot exist: only null arrives here, and Entry<> answers that.
Status PJRT_CopyToDeviceStream_Destroy(PJRT_CopyToDeviceStream_Destroy_Args&) {
  return Unimplemented("PJRT_CopyToDeviceStream_Destroy: Ferrule makes no copy-to-device streams");
}

Status PJRT_Device_PoisonExecution(PJRT_Device_PoisonExecution_Args& args) {
  if (From(args.device)->queue.Idle()) {  // then no launch is left that could fail
    args.poisoned = false;
    return {};
  }
  return Unimplemented(
      "PJRT_Device_PoisonExecution: a queued execution cannot be made to fail from outside; let it finish, and delete "
      "its "
      "outputs");
}

}  // namespace ferrule::api

// The MemoryDescriptions extension: the kinds of memory of a device that need not be present.
#include <cstring>

#include "entry.h"
#include "extensions.h"
#include "topology.h"

namespace ferrule {
namespace {

// A description is the address of its name in kMemoryKinds.
Status OfDevice(PJRT_DeviceDescription_MemoryDescriptions_Args& args) {
  static const PJRT_MemoryDescription* const descriptions[] = {
      reinterpret_cast<const PJRT_MemoryDescription*>(&kMemoryKinds[0]),
      reinterpret_cast<const PJRT_MemoryDescription*>(&kMemoryKinds[1]),
      reinterpret_cast<const PJRT_MemoryDescription*>(&kMemoryKinds[2]),
  };
  args.memory_descriptions = descriptions;
  args.num_memory_descriptions = kNumMemoryKinds;
  args.default_memory_index = 0;
  return {};
}

Status Kind(PJRT_MemoryDescription_Kind_Args& args) {
  const auto* name = reinterpret_cast<const char* const*>(args.memory_description);
  args.kind = *name;
  args.kind_size = std::strlen(*name);
  args.kind_id = static_cast<int>(name - kMemoryKinds);
  return {};
}

}  // namespace

PJRT_Extension_Base* MemoryDescriptionsExtension() {
  static PJRT_MemoryDescriptions_Extension extension = {
      {PJRT_MemoryDescriptions_Extension_STRUCT_SIZE, PJRT_Extension_Type_MemoryDescriptions, nullptr},
      Entry<PJRT_DeviceDescription_MemoryDescriptions_Args, OfDevice>::Call,
      Entry<PJRT_MemoryDescription_Kind_Args, Kind>::Call,
  };
  return &extension.base;
}

}  // namespace ferrule

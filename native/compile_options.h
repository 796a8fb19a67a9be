// The little that the runtime reads of a serialized CompileOptionsProto, and the device assignment it writes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "status.h"

namespace ferrule {

// Which device runs which replica and partition; `devices` is replica-major. No devices = portable.
struct DeviceAssignment {
  int64_t replicas = 1, partitions = 1;
  std::vector<int64_t> devices;

  // A serialized xla.DeviceAssignmentProto; no bytes when portable.
  std::string Serialize() const;
};

struct CompileOptions {
  std::optional<DeviceAssignment> assignment;
  int64_t device_ordinal = -1;  // used without an assignment; -1 = the default device
};

// INVALID_ARGUMENT for bytes that are no protocol buffer.
Result<CompileOptions> ParseCompileOptions(std::string_view bytes);

}  // namespace ferrule

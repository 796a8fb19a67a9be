// What devices there are, without the devices: descriptions, and the topology that lists them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "handles.h"
#include "named_value.h"
#include "ref.h"
#include "status.h"

namespace ferrule {

// The kinds of memory that every device has, in the order of their kind ids; the first is the default.
inline constexpr const char* kMemoryKinds[] = {"device", "pinned_host", "unpinned_host"};
inline constexpr int kNumMemoryKinds = 3;

// What a device of a driver shows of itself: its kind, and attributes. Empty for the host's processor.
struct DeviceFacts {
  std::string kind;  // as the vendor calls it
  std::vector<std::pair<std::string, std::string>> texts;
  std::vector<std::pair<std::string, int64_t>> numbers;

  std::string Serialize() const;  // one line
  static Result<DeviceFacts> Deserialize(std::string_view line);
};

class DeviceDescription {
 public:
  DeviceDescription(int id, int process_index, const std::string& target, const DeviceFacts& facts);

  const int id, process_index;
  const std::string kind, text;  // text: what people see
  const Attributes& attributes() const { return attributes_; }

 private:
  Attributes attributes_;
};

class Topology : public RefCounted {
 public:
  // `compiler_target`: the target's name, for a driver's device with what the compiler has to know of it behind a
  // colon.
  Topology(std::string platform_name, std::string platform_version, std::string compiler_target, int num_devices,
           std::vector<DeviceFacts> facts = {});

  const std::string platform_name, platform_version, compiler_target, target;
  const std::vector<DeviceDescription*>& devices() const { return pointers_; }
  const Attributes& attributes() const { return attributes_; }

  std::string Serialize() const;
  static Result<Ref<Topology>> Deserialize(std::string_view bytes);
  // Equal for topologies for which the same code is made.
  uint64_t Fingerprint() const;

 private:
  ~Topology() override;

  const std::vector<DeviceFacts> facts_;  // device i has number i modulo their count
  std::vector<DeviceDescription*> pointers_;
  Attributes attributes_;
};

// 64-bit FNV-1a; `seed` chains.
uint64_t Hash(std::string_view bytes, uint64_t seed = 0xcbf29ce484222325u);

}  // namespace ferrule

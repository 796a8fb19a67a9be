#include "client.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "accelerator.h"
#include "driver_library.h"
#include "entry.h"
#include "platform.h"

namespace ferrule {
namespace {

// What this process may use at most: the machine's memory, or the container's share of it.
int64_t MachineMemory() {
  int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  int64_t share = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> share && share > 0) bytes = std::min(bytes, share);
  return bytes;
}

// An environment variable as a number, `fallback` when unset or empty.
Result<int64_t> Environment(const char* name, int64_t fallback) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == 0) return fallback;
  return ParseNumber(text, std::string("the environment variable ") + name);
}

}  // namespace

Result<Ref<Client>> Client::Create(const PJRT_NamedValue* values, size_t count) {
  auto options = Options::Parse(
      values, count, {"platform_name", "target", "num_devices", "memory_limit_bytes", "node_id", "num_nodes"},
      "PJRT_Client_Create");
  if (!options.ok()) return options.status();
  auto nodes = options->Int("num_nodes", 1);
  if (!nodes.ok()) return nodes.status();
  if (*nodes > 1) {
    return Unimplemented(
        "jobs of several processes (num_nodes > 1) are not in this version of Ferrule; run one process, with several "
        "devices by the option `num_devices` or FERRULE_NUM_DEVICES");
  }
  auto platform = options->String("platform_name", PlatformName());
  if (!platform.ok()) return platform.status();
  auto wanted = options->String("target", "");
  if (!wanted.ok()) return wanted.status();
  auto target = ChooseTarget(*wanted, *platform);
  if (!target.ok()) return target.status();
  auto devices = Environment("FERRULE_NUM_DEVICES", 0);  // 0: as many as there are
  if (devices.ok()) devices = options->Int("num_devices", *devices == 0 ? -1 : *devices);
  if (!devices.ok()) return devices.status();
  if (*devices != -1) FERRULE_RETURN_IF_ERROR(CheckDeviceCount(*devices));
  auto limit = Environment("FERRULE_MEMORY_LIMIT", 0);
  if (limit.ok()) limit = options->Int("memory_limit_bytes", *limit);
  if (!limit.ok()) return limit.status();
  if (*target != "cpu") return CreateForDriver(*platform, *target, *devices, *limit);
  if (*limit <= 0) *limit = MachineMemory();
  const int shown = *devices == -1 ? 1 : static_cast<int>(*devices);
  return Ref<Client>::Make(Ref<Topology>::Make(*platform, PlatformVersion(), *target, shown), *limit,
                           std::vector<Ref<Accelerator>>());
}

Result<Ref<Client>> Client::CreateForDriver(const std::string& platform, const std::string& target, int64_t devices,
                                            int64_t memory_limit) {
  if (target.find(':') != std::string::npos) {
    return InvalidArgument("`" + target + "` is a target to compile for without the device; programs run on `" +
                           target.substr(0, target.find(':')) + "`");
  }
  auto found = FindDevices(target);
  if (!found.ok()) return found.status();
  const size_t physical = found->devices.size();
  const size_t count = devices == -1 ? physical : static_cast<size_t>(devices);
  auto topology = DriverTopology(platform, *found, static_cast<int>(count));
  // More devices than there are: several logical ones, each with a queue of its own, share a device and its memory.
  std::vector<Ref<Accelerator>> accelerators;
  for (size_t i = 0; i < count; ++i) {
    const DriverDevice& device = found->devices[i % physical];
    auto opened = Accelerator::Open(found->driver, device.index, device.info, topology->devices()[i]->text);
    if (!opened.ok()) return opened.status();
    accelerators.push_back(std::move(*opened));
  }
  const auto sharing = static_cast<int64_t>((count + physical - 1) / physical);
  if (memory_limit <= 0) memory_limit = found->devices.front().info->memory_bytes / sharing;
  return Ref<Client>::Make(std::move(topology), memory_limit, std::move(accelerators));
}

Client::Client(Ref<Topology> topology, int64_t memory_limit, std::vector<Ref<Accelerator>> accelerators)
    : topology_(std::move(topology)) {
  std::unique_ptr<MemorySource> source;
  if (!accelerators.empty()) source = std::make_unique<AcceleratorMemory>(accelerators[0], FERRULE_MEMORY_HOST);
  auto host =
      Ref<Allocator>::Make("the host memory of " + topology_->platform_name, MachineMemory(), std::move(source));
  for (DeviceDescription* description : topology_->devices()) {
    const auto id = static_cast<size_t>(description->id);
    devices_.push_back(std::make_unique<Device>(this, description, description->id, memory_limit, host,
                                                accelerators.empty() ? nullptr : accelerators[id]));
    pointers_.push_back(devices_.back().get());
    for (Memory* memory : pointers_.back()->memories()) memories_.push_back(memory);
  }
}

Client::~Client() { Stop(); }

void Client::Stop() {
  for (Device* device : pointers_) device->queue.Stop();
  for (Device* device : pointers_) device->in_flight.Stop();
}

Device* Client::FindDevice(int64_t id) const {
  return id >= 0 && id < static_cast<int64_t>(pointers_.size()) ? pointers_[id] : nullptr;
}

Result<Memory*> ChooseMemory(Client* client, PJRT_Memory* memory, PJRT_Device* device, const char* where) {
  Memory* chosen = memory != nullptr ? From(memory) : device != nullptr ? From(device)->default_memory() : nullptr;
  if (chosen == nullptr) return InvalidArgument(std::string(where) + ": neither a memory nor a device was given");
  if (chosen->device->client != client) {
    return InvalidArgument(std::string(where) + ": " + chosen->debug_text + " belongs to another client");
  }
  return chosen;
}

namespace api {

Status PJRT_Client_Create(PJRT_Client_Create_Args& args) {
  auto client = Client::Create(args.create_options, args.num_options);
  if (!client.ok()) return client.status();
  args.client = To(client->release());
  return {};
}

Status PJRT_Client_Destroy(PJRT_Client_Destroy_Args& args) {
  From(args.client)->Stop();
  From(args.client)->Release();
  return {};
}

Status PJRT_Client_PlatformName(PJRT_Client_PlatformName_Args& args) {
  const std::string& name = From(args.client)->topology().platform_name;
  args.platform_name = name.c_str();
  args.platform_name_size = name.size();
  return {};
}

Status PJRT_Client_ProcessIndex(PJRT_Client_ProcessIndex_Args& args) {
  args.process_index = 0;
  return {};
}

Status PJRT_Client_PlatformVersion(PJRT_Client_PlatformVersion_Args& args) {
  const std::string& version = From(args.client)->topology().platform_version;
  args.platform_version = version.c_str();
  args.platform_version_size = version.size();
  return {};
}

Status PJRT_Client_TopologyDescription(PJRT_Client_TopologyDescription_Args& args) {
  args.topology = To(From(args.client)->mutable_topology());
  return {};
}

Status PJRT_Client_Devices(PJRT_Client_Devices_Args& args) {
  const auto& devices = From(args.client)->devices();
  args.devices = reinterpret_cast<PJRT_Device* const*>(devices.data());
  args.num_devices = devices.size();
  return {};
}

Status PJRT_Client_AddressableDevices(PJRT_Client_AddressableDevices_Args& args) {
  const auto& devices = From(args.client)->devices();
  args.addressable_devices = reinterpret_cast<PJRT_Device* const*>(devices.data());
  args.num_addressable_devices = devices.size();
  return {};
}

Status PJRT_Client_LookupDevice(PJRT_Client_LookupDevice_Args& args) {
  Device* device = From(args.client)->FindDevice(args.id);
  if (device == nullptr) {
    return InvalidArgument("there is no device with id " + std::to_string(args.id) + "; this client has " +
                           std::to_string(From(args.client)->devices().size()) + " (ids from 0)");
  }
  args.device = To(device);
  return {};
}

Status PJRT_Client_LookupAddressableDevice(PJRT_Client_LookupAddressableDevice_Args& args) {
  Device* device = From(args.client)->FindDevice(args.local_hardware_id);
  if (device == nullptr) {
    return InvalidArgument("there is no device with local hardware id " + std::to_string(args.local_hardware_id) +
                           "; this client has " + std::to_string(From(args.client)->devices().size()) +
                           " (ids from 0)");
  }
  args.addressable_device = To(device);
  return {};
}

// Only jobs of several processes have news here.
Status PJRT_Client_UpdateGlobalProcessInfo(PJRT_Client_UpdateGlobalProcessInfo_Args&) { return {}; }

Status PJRT_Client_AddressableMemories(PJRT_Client_AddressableMemories_Args& args) {
  const auto& memories = From(args.client)->memories();
  args.addressable_memories = reinterpret_cast<PJRT_Memory* const*>(memories.data());
  args.num_addressable_memories = memories.size();
  return {};
}

Status PJRT_Client_DefaultDeviceAssignment(PJRT_Client_DefaultDeviceAssignment_Args& args) {
  const int64_t replicas = args.num_replicas, partitions = args.num_partitions;
  const int64_t devices = static_cast<int64_t>(From(args.client)->devices().size());
  if (replicas < 1 || partitions < 1) {
    return InvalidArgument("a device assignment needs at least one replica and one partition, got " +
                           std::to_string(replicas) + " and " + std::to_string(partitions));
  }
  if (replicas > devices || partitions > devices || replicas * partitions > devices) {
    return InvalidArgument(std::to_string(replicas) + " replicas x " + std::to_string(partitions) +
                           " partitions need more devices than the " + std::to_string(devices) +
                           " there are; set FERRULE_NUM_DEVICES");
  }
  if (args.default_assignment == nullptr || args.default_assignment_size < static_cast<size_t>(replicas * partitions)) {
    return InvalidArgument("the array for the device assignment has room for " +
                           std::to_string(args.default_assignment_size) + " ids, " +
                           std::to_string(replicas * partitions) + " are needed");
  }
  for (int64_t i = 0; i < replicas * partitions; ++i) args.default_assignment[i] = static_cast<int>(i);
  return {};
}

// All memory is the host's already: there is nothing to map.
Status PJRT_Client_DmaMap(PJRT_Client_DmaMap_Args&) { return {}; }
Status PJRT_Client_DmaUnmap(PJRT_Client_DmaUnmap_Args&) { return {}; }

}  // namespace api
}  // namespace ferrule

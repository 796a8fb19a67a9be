#include "device.h"

#include "client.h"
#include "entry.h"

namespace ferrule {

Device::Device(Client* client, DeviceDescription* description, int ordinal, int64_t memory_limit, Ref<Allocator> host,
               Ref<Accelerator> device)
    : client(client), description(description), ordinal(ordinal), accelerator(std::move(device)) {
  std::unique_ptr<MemorySource> source;
  if (accelerator) source = std::make_unique<AcceleratorMemory>(accelerator, FERRULE_MEMORY_DEVICE);
  auto own = Ref<Allocator>::Make(description->text, memory_limit, std::move(source));
  for (int kind = 0; kind < kNumMemoryKinds; ++kind) {
    Ref<Allocator> allocator = kind == 0 ? own : host;
    memories_.push_back(
        std::make_unique<Memory>(this, kind, description->id * kNumMemoryKinds + kind, std::move(allocator)));
    memory_pointers_.push_back(memories_.back().get());
  }
}

namespace api {

Status PJRT_Device_GetDescription(PJRT_Device_GetDescription_Args& args) {
  args.device_description = To(From(args.device)->description);
  return {};
}

Status PJRT_Device_IsAddressable(PJRT_Device_IsAddressable_Args& args) {
  args.is_addressable = true;
  return {};
}

Status PJRT_Device_LocalHardwareId(PJRT_Device_LocalHardwareId_Args& args) {
  args.local_hardware_id = From(args.device)->ordinal;
  return {};
}

Status PJRT_Device_AddressableMemories(PJRT_Device_AddressableMemories_Args& args) {
  const auto& memories = From(args.device)->memories();
  args.memories = reinterpret_cast<PJRT_Memory* const*>(memories.data());
  args.num_memories = memories.size();
  return {};
}

Status PJRT_Device_DefaultMemory(PJRT_Device_DefaultMemory_Args& args) {
  args.memory = From(args.device)->default_memory();
  return {};
}

Status PJRT_Device_MemoryStats(PJRT_Device_MemoryStats_Args& args) {
  const MemoryStats stats = From(args.device)->allocator()->Stats();
  args.bytes_in_use = stats.bytes_in_use;
  const auto set = [](int64_t& field, bool& is_set, int64_t value) { field = value, is_set = true; };
  const auto unset = [](int64_t& field, bool& is_set) { field = 0, is_set = false; };
  set(args.peak_bytes_in_use, args.peak_bytes_in_use_is_set, stats.peak_bytes_in_use);
  set(args.num_allocs, args.num_allocs_is_set, stats.num_allocs);
  set(args.largest_alloc_size, args.largest_alloc_size_is_set, stats.largest_alloc_size);
  set(args.bytes_limit, args.bytes_limit_is_set, stats.bytes_limit);
  set(args.pool_bytes, args.pool_bytes_is_set, stats.pool_bytes);
  set(args.peak_pool_bytes, args.peak_pool_bytes_is_set, stats.peak_pool_bytes);
  set(args.peak_allocated_bytes, args.peak_allocated_bytes_is_set, stats.peak_bytes_in_use);
  unset(args.bytes_reserved, args.bytes_reserved_is_set);
  unset(args.peak_bytes_reserved, args.peak_bytes_reserved_is_set);
  unset(args.bytes_reservable_limit, args.bytes_reservable_limit_is_set);
  unset(args.largest_free_block_bytes, args.largest_free_block_bytes_is_set);
  return {};
}

Status PJRT_Device_ClearMemoryStats(PJRT_Device_ClearMemoryStats_Args& args) {
  From(args.device)->allocator()->ClearPeaks();
  return {};
}

Status PJRT_Device_GetAttributes(PJRT_Device_GetAttributes_Args& args) {
  const Attributes& attributes = From(args.device)->description->attributes();
  args.attributes = attributes.data();
  args.num_attributes = attributes.size();
  // The attributes live as long as the client; the holder only has to be there.
  args.device_attributes = reinterpret_cast<PJRT_Device_Attributes*>(From(args.device)->description);
  args.attributes_deleter = [](PJRT_Device_Attributes*) {};
  return {};
}

// Tracking events tell a profiler what a device is waiting for; Ferrule has no listener, so they are tokens.
Status PJRT_Device_CreateAsyncTrackingEvent(PJRT_Device_CreateAsyncTrackingEvent_Args& args) {
  args.event = reinterpret_cast<PJRT_AsyncTrackingEvent*>(new char);
  return {};
}

Status PJRT_AsyncTrackingEvent_Destroy(PJRT_AsyncTrackingEvent_Destroy_Args& args) {
  delete reinterpret_cast<char*>(args.event);
  return {};
}

}  // namespace api
}  // namespace ferrule

#include "client.h"
#include "device.h"
#include "entry.h"
#include "large_copy.h"

namespace ferrule {

const PJRT_Memory_FunctionTable Memory::kTable = {
    .struct_size = PJRT_Memory_FunctionTable_STRUCT_SIZE,
    .extension_start = nullptr,
    .instance_struct_size = sizeof(PJRT_Memory),
    .get_user_data = GetUserData,
    .set_user_data = SetUserData,
};

Memory::Memory(Device* device, int kind_id, int id, Ref<Allocator> allocator)
    : PJRT_Memory{&kTable},
      device(device),
      kind_id(kind_id),
      id(id),
      kind(kMemoryKinds[kind_id]),
      debug_text("FerruleMemory(id=" + std::to_string(id) + ", kind=" + kind + ", device=" + device->description->text +
                 ")"),
      text("FerruleMemory(id=" + std::to_string(id) + ", kind=" + kind + ")"),
      allocator(std::move(allocator)) {}

Memory::~Memory() {
  for (auto& [key, entry] : user_data_) {
    if (entry.destroy != nullptr) entry.destroy(entry.data);
  }
}

bool Memory::on_host() const { return kind_id != 0 || !device->accelerator || device->accelerator->host_access(); }

Status Memory::Write(void* dst, const void* src, int64_t bytes) {
  if (!on_host()) return device->accelerator->CopyNow(dst, src, bytes);
  LargeCopy(ThreadPool::Global(), dst, src, bytes);
  return {};
}

Status Memory::Read(void* dst, const void* src, int64_t bytes) { return Write(dst, src, bytes); }

Status Memory::CopyTo(Memory* other, void* dst, const void* src, int64_t bytes) {
  return on_host() ? other->Write(dst, src, bytes) : Read(dst, src, bytes);
}

void* Memory::GetUserData(PJRT_Memory* memory, const void* key) {
  Memory* self = From(memory);
  std::lock_guard lock(self->mutex_);
  auto it = self->user_data_.find(key);
  return it == self->user_data_.end() ? nullptr : it->second.data;
}

void Memory::SetUserData(PJRT_Memory* memory, const void* key, void* data, void (*destroy)(void*)) {
  Memory* self = From(memory);
  UserData old{nullptr, nullptr};
  {
    std::lock_guard lock(self->mutex_);
    UserData& entry = self->user_data_.try_emplace(key, old).first->second;
    old = entry;
    entry = {data, destroy};
  }
  if (old.destroy != nullptr) old.destroy(old.data);
}

namespace api {

Status PJRT_Memory_Id(PJRT_Memory_Id_Args& args) {
  args.id = From(args.memory)->id;
  return {};
}

Status PJRT_Memory_Kind(PJRT_Memory_Kind_Args& args) {
  const std::string& kind = From(args.memory)->kind;
  args.kind = kind.c_str();
  args.kind_size = kind.size();
  return {};
}

Status PJRT_Memory_Kind_Id(PJRT_Memory_Kind_Id_Args& args) {
  args.kind_id = From(args.memory)->kind_id;
  return {};
}

Status PJRT_Memory_DebugString(PJRT_Memory_DebugString_Args& args) {
  const std::string& text = From(args.memory)->debug_text;
  args.debug_string = text.c_str();
  args.debug_string_size = text.size();
  return {};
}

Status PJRT_Memory_ToString(PJRT_Memory_ToString_Args& args) {
  const std::string& text = From(args.memory)->text;
  args.to_string = text.c_str();
  args.to_string_size = text.size();
  return {};
}

Status PJRT_Memory_AddressableByDevices(PJRT_Memory_AddressableByDevices_Args& args) {
  args.devices = reinterpret_cast<PJRT_Device* const*>(&From(args.memory)->device);
  args.num_devices = 1;
  return {};
}

}  // namespace api
}  // namespace ferrule

// Devices, their memories, and the queue on which a device's work runs in order.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "accelerator.h"
#include "allocator.h"
#include "awaited.h"
#include "handles.h"
#include "in_flight.h"
#include "topology.h"
#include "work_queue.h"

namespace ferrule {

class Memory : public PJRT_Memory {
 public:
  Memory(Device* device, int kind_id, int id, Ref<Allocator> allocator);
  ~Memory();

  Device* const device;
  const int kind_id, id;
  const std::string kind, debug_text, text;
  const Ref<Allocator> allocator;

  // Whether the host may read and write the memory by its address.
  bool on_host() const;
  // Copies between this memory and the host's, and waits for it.
  Status Write(void* dst, const void* src, int64_t bytes);
  Status Read(void* dst, const void* src, int64_t bytes);
  // Copies from this memory to another.
  Status CopyTo(Memory* other, void* dst, const void* src, int64_t bytes);

 private:
  struct UserData {
    void* data;
    void (*destroy)(void*);
  };
  static void* GetUserData(PJRT_Memory* memory, const void* key);
  static void SetUserData(PJRT_Memory* memory, const void* key, void* data, void (*destroy)(void*));
  static const PJRT_Memory_FunctionTable kTable;

  std::mutex mutex_;
  std::map<const void*, UserData> user_data_;
};

inline Memory* From(PJRT_Memory* memory) { return static_cast<Memory*>(memory); }

class Device {
 public:
  // `ordinal` is the local hardware id. `host` serves the device's host memories. Without an accelerator the device is
  // the host's processor.
  Device(Client* client, DeviceDescription* description, int ordinal, int64_t memory_limit, Ref<Allocator> host,
         Ref<Accelerator> accelerator);

  Client* const client;
  DeviceDescription* const description;
  const int ordinal;
  const Ref<Accelerator> accelerator;
  WorkQueue queue;
  InFlight in_flight;  // runs on the accelerator
  LastRun last_run;

  const std::vector<Memory*>& memories() const { return memory_pointers_; }
  Memory* default_memory() const { return memory_pointers_.front(); }
  Allocator* allocator() const { return default_memory()->allocator.get(); }
  Allocator* host_allocator() const { return memory_pointers_[1]->allocator.get(); }

 private:
  std::vector<std::unique_ptr<Memory>> memories_;
  std::vector<Memory*> memory_pointers_;
};

}  // namespace ferrule

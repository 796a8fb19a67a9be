// The client: owns the devices of this process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device.h"
#include "handles.h"
#include "ref.h"
#include "status.h"
#include "topology.h"

namespace ferrule {

class Client : public RefCounted {
 public:
  // See PJRT_Client_Create for the options.
  static Result<Ref<Client>> Create(const PJRT_NamedValue* options, size_t count);

  const Topology& topology() const { return *topology_; }
  Topology* mutable_topology() const { return topology_.get(); }
  const std::string& target() const { return topology_->target; }
  const std::vector<Device*>& devices() const { return pointers_; }
  const std::vector<Memory*>& memories() const { return memories_; }
  // Null when there is none.
  Device* FindDevice(int64_t id) const;

  // Finishes all queued work and ends the worker threads.
  void Stop();

 private:
  template <class T>
  friend class Ref;
  Client(Ref<Topology> topology, int64_t memory_limit, std::vector<Ref<Accelerator>> accelerators);
  // Chooses the devices of a target with a driver.
  static Result<Ref<Client>> CreateForDriver(const std::string& platform, const std::string& target, int64_t devices,
                                             int64_t memory_limit);
  ~Client() override;

  const Ref<Topology> topology_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<Device*> pointers_;
  std::vector<Memory*> memories_;
};

// The device and memory that a call names: a memory, or a device's default memory. Both null is an error.
Result<Memory*> ChooseMemory(Client* client, PJRT_Memory* memory, PJRT_Device* device, const char* where);

}  // namespace ferrule

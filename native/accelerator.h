// An open device of a driver (native/driver.h), with C++ manners: statuses, references, no use after a device is lost.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "allocator.h"
#include "command.h"
#include "driver.h"
#include "ref.h"
#include "status.h"

namespace ferrule {

class Accelerator : public RefCounted {
 public:
  // Opens device `index` of the driver; `name` is what messages call it.
  static Result<Ref<Accelerator>> Open(const FerruleDriver* driver, size_t index, const FerruleDeviceInfo* info,
                                       std::string name);

  const FerruleDriver* driver() const { return driver_; }
  const FerruleDeviceInfo& info() const { return *info_; }
  const std::string& name() const { return name_; }
  // Whether the host may touch the device's memory.
  bool host_access() const { return host_access_; }

  Result<void*> Allocate(FerruleMemory kind, int64_t bytes);
  void Free(void* data);

  Status Copy(void* dst, const void* src, int64_t bytes, const Commands& after, Command* done);
  Status LaunchKernel(FerruleKernel* kernel, int64_t groups, int64_t group_size, void* const* pointers, size_t count,
                      const Commands& after, Command* done);
  Status Call(FerruleCall* call, void* const* operands, void* const* results, void* scratch, const Commands& after,
              Command* done);
  // One command that ends after all of these; none when none of them is pending.
  Status Join(const Commands& after, Command* done);
  Status Wait(const Command& command);
  // Nanoseconds of the device's clock; false when they are not measured.
  bool Times(const Command& command, int64_t* begin, int64_t* end) const;

  // Copies now, and waits for it. Either side may be host memory.
  Status CopyNow(void* dst, const void* src, int64_t bytes);

  Status LoadModule(std::string_view code, FerruleModule** module);
  void Unload(FerruleModule* module) { driver_->unload(module); }
  Status FindKernel(FerruleModule* module, const char* name, FerruleKernel** kernel);
  Status PrepareCall(const FerruleCallDesc& desc, FerruleCall** call, int64_t* scratch_bytes);
  void Discard(FerruleCall* call) { driver_->discard(call); }

  // Not OK once the device has been lost: then nothing is started on it any more.
  Status lost() const;

 private:
  template <class T>
  friend class Ref;
  Accelerator(const FerruleDriver* driver, FerruleDevice* device, const FerruleDeviceInfo* info, std::string name);
  ~Accelerator() override;

  // The driver's last error as a status; `what` says what was being done.
  Status Failure(int code, const char* what);
  template <class Start>
  Status Begin(const char* what, const Commands& after, Command* done, Start start);

  const FerruleDriver* const driver_;
  FerruleDevice* const device_;
  const FerruleDeviceInfo* const info_;
  const std::string name_;
  const bool host_access_;
  std::mutex commands_;  // a driver takes the commands of one device from one thread at a time
  mutable std::mutex lost_mutex_;
  std::atomic<bool> is_lost_{false};
  Status lost_;
};

// Gives an Allocator blocks of an accelerator's memory.
class AcceleratorMemory : public MemorySource {
 public:
  AcceleratorMemory(Ref<Accelerator> accelerator, FerruleMemory kind)
      : accelerator_(std::move(accelerator)), kind_(kind) {}
  Result<void*> Allocate(int64_t bytes) override { return accelerator_->Allocate(kind_, bytes); }
  void Free(void* data) override { accelerator_->Free(data); }

 private:
  const Ref<Accelerator> accelerator_;
  const FerruleMemory kind_;
};

}  // namespace ferrule

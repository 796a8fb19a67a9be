#include "accelerator.h"

#include <cstring>

#include "driver_library.h"

namespace ferrule {
namespace {

// The events of commands that are not known to have ended.
class Events {
 public:
  explicit Events(const Commands& commands) {
    events_.reserve(commands.size());
    for (const Command& command : commands) {
      if (command) events_.push_back(command.event());
    }
  }
  FerruleAfter after() const { return {events_.data(), events_.size()}; }

 private:
  std::vector<FerruleEvent*> events_;
};

}  // namespace

Accelerator::Accelerator(const FerruleDriver* driver, FerruleDevice* device, const FerruleDeviceInfo* info,
                         std::string name)
    : driver_(driver), device_(device), info_(info), name_(std::move(name)), host_access_(HostAccess(*info)) {}

Accelerator::~Accelerator() { driver_->close(device_); }

Result<Ref<Accelerator>> Accelerator::Open(const FerruleDriver* driver, size_t index, const FerruleDeviceInfo* info,
                                           std::string name) {
  FerruleDevice* device = nullptr;
  if (const int code = driver->open(index, &device); code != 0) {
    return Status(static_cast<Code>(code), name + " (" + info->name + ") cannot be opened\n  why: " +
                                               driver->last_error() + "\n  fix: `ferrule doctor` looks at the driver");
  }
  return Ref<Accelerator>::Make(driver, device, info, std::move(name));
}

Status Accelerator::lost() const {
  if (!is_lost_.load(std::memory_order_acquire)) [[likely]]
    return {};
  std::lock_guard lock(lost_mutex_);
  return lost_;
}

Status Accelerator::Failure(int code, const char* what) {
  Status status(static_cast<Code>(code), name_ + ": " + what + " failed\n  why: " + driver_->last_error());
  if (status.code() != Code::kUnavailable) return status;
  std::lock_guard lock(lost_mutex_);
  if (lost_.ok()) {
    lost_ = Status(Code::kUnavailable, status.message() +
                                           "\n  fix: this device is lost for the process: start it anew. Results that "
                                           "were copied to the host, and other devices, are not concerned");
    is_lost_.store(true, std::memory_order_release);
  }
  return lost_;
}

Result<void*> Accelerator::Allocate(FerruleMemory kind, int64_t bytes) {
  FERRULE_RETURN_IF_ERROR(lost());
  void* data = nullptr;
  if (const int code = driver_->allocate(device_, kind, bytes, &data); code != 0) {
    return Failure(code, "allocating memory");
  }
  return data;
}

void Accelerator::Free(void* data) { driver_->free(device_, data); }

template <class Start>
Status Accelerator::Begin(const char* what, const Commands& after, Command* done, Start start) {
  FERRULE_RETURN_IF_ERROR(lost());
  const Events events(after);
  FerruleEvent* event = nullptr;
  int code;
  {
    std::lock_guard lock(commands_);
    code = start(events.after(), &event);
  }
  if (code != 0) return Failure(code, what);
  *done = Command(driver_, event);
  return {};
}

Status Accelerator::Copy(void* dst, const void* src, int64_t bytes, const Commands& after, Command* done) {
  return Begin("starting a copy", after, done, [&](FerruleAfter events, FerruleEvent** event) {
    return driver_->copy(device_, dst, src, bytes, events, event);
  });
}

Status Accelerator::LaunchKernel(FerruleKernel* kernel, int64_t groups, int64_t group_size, void* const* pointers,
                                 size_t count, const Commands& after, Command* done) {
  return Begin("starting a kernel", after, done, [&](FerruleAfter events, FerruleEvent** event) {
    return driver_->launch(device_, kernel, groups, group_size, pointers, count, events, event);
  });
}

Status Accelerator::Call(FerruleCall* call, void* const* operands, void* const* results, void* scratch,
                         const Commands& after, Command* done) {
  return Begin("starting a library call", after, done, [&](FerruleAfter events, FerruleEvent** event) {
    return driver_->call(device_, call, operands, results, scratch, events, event);
  });
}

Status Accelerator::Join(const Commands& after, Command* done) {
  const Command* only = nullptr;
  size_t pending = 0;
  for (const Command& command : after) {
    if (!command || (only != nullptr && *only == command)) continue;
    only = &command;
    ++pending;
  }
  if (pending <= 1) {
    *done = only != nullptr ? *only : Command();
    return {};
  }
  return Begin("waiting for several commands", after, done,
               [&](FerruleAfter events, FerruleEvent** event) { return driver_->join(device_, events, event); });
}

Status Accelerator::Wait(const Command& command) {
  if (!command) return lost();
  if (const int code = driver_->wait(command.event()); code != 0) return Failure(code, "a command");
  return {};
}

bool Accelerator::Times(const Command& command, int64_t* begin, int64_t* end) const {
  return command && driver_->times(command.event(), begin, end) == 0;
}

Status Accelerator::CopyNow(void* dst, const void* src, int64_t bytes) {
  if (bytes == 0) return {};
  FERRULE_RETURN_IF_ERROR(lost());
  if (host_access_) {
    std::memcpy(dst, src, static_cast<size_t>(bytes));
    return {};
  }
  Command done;
  FERRULE_RETURN_IF_ERROR(Copy(dst, src, bytes, {}, &done));
  return Wait(done);
}

Status Accelerator::LoadModule(std::string_view code, FerruleModule** module) {
  FERRULE_RETURN_IF_ERROR(lost());
  if (const int error = driver_->load(device_, code.data(), code.size(), module); error != 0) {
    return Failure(error, "compiling the program's kernels for the device");
  }
  return {};
}

Status Accelerator::FindKernel(FerruleModule* module, const char* name, FerruleKernel** kernel) {
  if (const int code = driver_->kernel(module, name, kernel); code != 0) {
    return Failure(code, (std::string("finding the kernel '") + name + "'").c_str());
  }
  return {};
}

Status Accelerator::PrepareCall(const FerruleCallDesc& desc, FerruleCall** call, int64_t* scratch_bytes) {
  FERRULE_RETURN_IF_ERROR(lost());
  *scratch_bytes = 0;
  if (const int code = driver_->prepare(device_, &desc, call, scratch_bytes); code != 0) {
    return Failure(code, (std::string("preparing the library call '") + desc.target + "'").c_str());
  }
  return {};
}

}  // namespace ferrule

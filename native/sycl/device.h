// Devices, their queues, and the end of commands.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <sycl/sycl.hpp>
#include <vector>

#include "../driver.h"
#include "errors.h"

namespace ferrule_sycl {

// A device of the machine, in the order in which they are shown.
struct Found {
  sycl::device device;
  // One context for all devices of a platform: memory of one can be copied by the queue of another.
  sycl::context context;
  std::string name, kind, backend, driver_version, arch;
  FerruleDeviceInfo info{};  // points into the strings
};

// All devices, found on the first call of each `tiles`. `why_none` says what was looked for when there are none.
struct Devices {
  std::vector<std::unique_ptr<Found>> list;
  std::vector<const FerruleDeviceInfo*> infos;
  std::string why_none;
};
const Devices& FindDevices(bool tiles);

// Errors that SYCL reports outside of any call: those of commands that had been started. SYCL does not say which, so
// every command that had been given to the queue by then, and is not known to have succeeded, has failed.
class Faults {
 public:
  Faults(std::string device, bool is_cpu) : device(std::move(device)), is_cpu(is_cpu) {}

  uint64_t Next() { return ++issued_; }
  void Add(Error error);
  // The error of command `number`; code kOk when there is none.
  Error Of(uint64_t number) const;

  const std::string device;  // its name
  const bool is_cpu;

 private:
  std::atomic<uint64_t> issued_{0};
  std::atomic<uint64_t> failed_until_{0};
  mutable std::mutex mutex_;
  Error error_;
};

// Held while a thread waits in SYCL for a CPU device. Intel's OpenCL runtime for processors hangs now and then when
// several threads wait in it at once: one runs in the arena of the other's tasks, and each waits for the other. What is
// waited for has been submitted and depends on no thread, so that waiting in turn is safe. Other devices' waits need
// none.
class Turn {
 public:
  explicit Turn(bool is_cpu) : lock_(Mutex(), std::defer_lock) {
    if (is_cpu) lock_.lock();
  }

 private:
  static std::mutex& Mutex() {
    static auto* mutex = new std::mutex;  // threads may wait while the process exits
    return *mutex;
  }
  std::unique_lock<std::mutex> lock_;
};

struct DnnlQueue;

}  // namespace ferrule_sycl

struct FerruleDevice {
  const ferrule_sycl::Found* found;
  std::shared_ptr<ferrule_sycl::Faults> faults;
  sycl::queue queue;
  bool timed;
  std::mutex mutex;
  std::shared_ptr<ferrule_sycl::DnnlQueue> dnnl;  // made when the first library call is prepared

  // Says which device, in messages.
  std::string In(const std::string& what) const { return what + " on " + found->name; }
};

struct FerruleEvent {
  sycl::event event;
  std::shared_ptr<ferrule_sycl::Faults> faults;
  uint64_t number;
  bool timed;
  std::atomic<int> references{1};
  std::atomic<bool> succeeded{false};
};

namespace ferrule_sycl {

// An event of the table for one of SYCL's.
void Give(FerruleDevice* device, sycl::event event, FerruleEvent** done);
std::vector<sycl::event> EventsOf(FerruleAfter after);

int Open(const Found& found, FerruleDevice** device);
void Close(FerruleDevice* device);
int Allocate(FerruleDevice* device, FerruleMemory kind, int64_t bytes, void** data);
void Free(FerruleDevice* device, void* data);

int Copy(FerruleDevice* device, void* dst, const void* src, int64_t bytes, FerruleAfter after, FerruleEvent** done);
int Launch(FerruleDevice* device, FerruleKernel* kernel, int64_t groups, int64_t group_size, void* const* pointers,
           size_t num_pointers, FerruleAfter after, FerruleEvent** done);
int Join(FerruleDevice* device, FerruleAfter after, FerruleEvent** done);
int Wait(FerruleEvent* event);
void Retain(FerruleEvent* event);
void Release(FerruleEvent* event);
int Times(FerruleEvent* event, int64_t* begin, int64_t* end);

}  // namespace ferrule_sycl

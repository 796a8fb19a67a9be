// A driver for tests that fails on demand: it hands every call to another driver, except those that it is told to fail.
//
// The other driver is the file FERRULE_DRIVER_WRAPPED. The faults are in FERRULE_DRIVER_FAULTS, and can be set anew,
// which also begins the counts again: "name:call:code:message;…" fails the n-th call of that function of the table with
// a PJRT_Error_Code; "n+" also fails all later ones. "event.name:…" lets the call succeed, and its command fail when it
// is waited for; commands that come after such a one fail with it.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "driver.h"

struct Failure {
  int code = 0;
  std::string message;
};

// What the runtime holds as an event of this driver.
struct FerruleEvent {
  FerruleEvent* real;  // of the other driver
  Failure failure;
  std::atomic<int> references{1};
};

namespace {

const FerruleDriver* real = nullptr;
FerruleDriver table;
thread_local std::string last_error;
thread_local bool failed_here = false;

struct Fault {
  std::string name;
  int64_t call;
  bool all_later;
  Failure failure;
};
std::mutex mutex;
std::vector<Fault> faults;
std::map<std::string, int64_t> counts;

void SetFaults(const std::string& text) {
  std::lock_guard<std::mutex> lock(mutex);
  faults.clear(), counts.clear();
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find(';', at), text.size());
    std::string one = text.substr(at, end - at);
    at = end + 1;
    size_t a = one.find(':'), b = one.find(':', a + 1), c = one.find(':', b + 1);
    if (a == std::string::npos || b == std::string::npos || c == std::string::npos) std::abort();  // the test is wrong
    std::string call = one.substr(a + 1, b - a - 1);
    faults.push_back({one.substr(0, a),
                      std::atoll(call.c_str()),
                      call.back() == '+',
                      {std::atoi(one.substr(b + 1, c - b - 1).c_str()), one.substr(c + 1)}});
  }
}

// Counts a call; its failure, if it is to have one.
Failure Next(const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex);
  int64_t call = ++counts[name];
  for (const Fault& fault : faults) {
    if (fault.name == name && (fault.call == call || (fault.all_later && call > fault.call))) return fault.failure;
  }
  return {};
}

int Fail(const Failure& failure) {
  last_error = failure.message;
  failed_here = true;
  return failure.code;
}

int Passed(int code) {
  failed_here = false;
  return code;
}

// The events of a command as the other driver knows them.
struct Unwrapped {
  explicit Unwrapped(FerruleAfter after) {
    for (size_t i = 0; i < after.count; ++i) {
      if (!after.events[i]) continue;
      events.push_back(after.events[i]->real);
      if (!failure.code) failure = after.events[i]->failure;
    }
  }
  FerruleAfter after() const { return {events.data(), events.size()}; }

  std::vector<FerruleEvent*> events;
  Failure failure;
};

template <class Start>
int Begin(const char* name, FerruleAfter after, FerruleEvent** done, Start start) {
  if (Failure failure = Next(name); failure.code) return Fail(failure);
  Unwrapped before(after);
  Failure later = Next(std::string("event.") + name);
  if (!later.code) later = before.failure;
  FerruleEvent* event = nullptr;
  int code = start(before.after(), &event);
  if (code) return Passed(code);
  if (done) {
    *done = new FerruleEvent{event, later};
  } else {
    real->release(event);
  }
  return 0;
}

int Devices(const char* options, const FerruleDeviceInfo* const** infos, size_t* count) {
  if (Failure failure = Next("devices"); failure.code) return Fail(failure);
  return Passed(real->devices(options, infos, count));
}
int Open(size_t index, FerruleDevice** device) {
  if (Failure failure = Next("open"); failure.code) return Fail(failure);
  return Passed(real->open(index, device));
}
int Allocate(FerruleDevice* device, FerruleMemory kind, int64_t bytes, void** data) {
  if (Failure failure = Next("allocate"); failure.code) return Fail(failure);
  return Passed(real->allocate(device, kind, bytes, data));
}
int Copy(FerruleDevice* device, void* dst, const void* src, int64_t bytes, FerruleAfter after, FerruleEvent** done) {
  return Begin("copy", after, done,
               [&](FerruleAfter a, FerruleEvent** e) { return real->copy(device, dst, src, bytes, a, e); });
}
int Launch(FerruleDevice* device, FerruleKernel* kernel, int64_t groups, int64_t group_size, void* const* pointers,
           size_t num_pointers, FerruleAfter after, FerruleEvent** done) {
  return Begin("launch", after, done, [&](FerruleAfter a, FerruleEvent** e) {
    return real->launch(device, kernel, groups, group_size, pointers, num_pointers, a, e);
  });
}
int Call(FerruleDevice* device, FerruleCall* call, void* const* operands, void* const* results, void* scratch,
         FerruleAfter after, FerruleEvent** done) {
  return Begin("call", after, done, [&](FerruleAfter a, FerruleEvent** e) {
    return real->call(device, call, operands, results, scratch, a, e);
  });
}
int Join(FerruleDevice* device, FerruleAfter after, FerruleEvent** done) {
  return Begin("join", after, done, [&](FerruleAfter a, FerruleEvent** e) { return real->join(device, a, e); });
}
int Wait(FerruleEvent* event) {
  Failure failure = Next("wait");
  if (int code = real->wait(event->real); code) return Passed(code);
  if (failure.code) return Fail(failure);
  return event->failure.code ? Fail(event->failure) : 0;
}
void Retain(FerruleEvent* event) { ++event->references; }
void Release(FerruleEvent* event) {
  if (--event->references) return;
  real->release(event->real);
  delete event;
}
int Times(FerruleEvent* event, int64_t* begin, int64_t* end) { return Passed(real->times(event->real, begin, end)); }
int Load(FerruleDevice* device, const char* code, size_t size, FerruleModule** module) {
  if (Failure failure = Next("load"); failure.code) return Fail(failure);
  return Passed(real->load(device, code, size, module));
}
int GetKernel(FerruleModule* module, const char* name, FerruleKernel** kernel) {
  if (Failure failure = Next("kernel"); failure.code) return Fail(failure);
  return Passed(real->kernel(module, name, kernel));
}
int Prepare(FerruleDevice* device, const FerruleCallDesc* desc, FerruleCall** call, int64_t* scratch_bytes) {
  if (Failure failure = Next("prepare"); failure.code) return Fail(failure);
  return Passed(real->prepare(device, desc, call, scratch_bytes));
}
const char* LastError() { return failed_here ? last_error.c_str() : real->last_error(); }

}  // namespace

extern "C" const FerruleDriver* ferrule_get_driver(uint32_t abi, const char* paths) {
  const char* path = std::getenv("FERRULE_DRIVER_WRAPPED");
  void* library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  auto get = library ? reinterpret_cast<FerruleGetDriver>(dlsym(library, "ferrule_get_driver")) : nullptr;
  real = get ? get(abi, paths) : nullptr;
  if (!real) return nullptr;
  if (const char* text = std::getenv("FERRULE_DRIVER_FAULTS")) SetFaults(text);
  table = *real;
  table.last_error = LastError;
  table.devices = Devices;
  table.open = Open;
  table.allocate = Allocate;
  table.copy = Copy;
  table.launch = Launch;
  table.call = Call;
  table.join = Join;
  table.wait = Wait;
  table.retain = Retain;
  table.release = Release;
  table.times = Times;
  table.load = Load;
  table.kernel = GetKernel;
  table.prepare = Prepare;
  return &table;
}

extern "C" void faulty_driver_set(const char* text) { SetFaults(text); }

extern "C" int64_t faulty_driver_count(const char* name) {
  std::lock_guard<std::mutex> lock(mutex);
  return counts[name];
}

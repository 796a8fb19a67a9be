// Opening devices, memory, and commands.
#include <sys/mman.h>

#include <mutex>

#include "device.h"
#include "module.h"

namespace ferrule_sycl {

void Faults::Add(Error error) {
  std::lock_guard lock(mutex_);
  error_ = std::move(error);
  failed_until_ = issued_.load();
}

Error Faults::Of(uint64_t number) const {
  if (number > failed_until_.load()) return {};
  std::lock_guard lock(mutex_);
  return error_;
}

int Open(const Found& found, FerruleDevice** device) {
  return Guard([&] { return "opening " + found.name; },
               [&] {
                 auto faults = std::make_shared<Faults>(found.name, found.device.is_cpu());
                 auto handler = [faults](sycl::exception_list errors) {
                   for (const std::exception_ptr& e : errors) faults->Add(Describe(e, "it failed while it ran"));
                 };
                 bool timed = DebugLevel() >= 2;
                 sycl::property_list properties;
                 if (timed) properties = {sycl::property::queue::enable_profiling()};
                 sycl::queue queue(found.context, found.device, handler, properties);
                 *device = new FerruleDevice{&found, std::move(faults), std::move(queue), timed, {}, {}};
               });
}

void Close(FerruleDevice* device) {
  Guard([&] { return device->In("closing"); },
        [&] {
          const Turn turn(device->faults->is_cpu);
          device->queue.wait_and_throw();
        });
  delete device;
}

int Allocate(FerruleDevice* device, FerruleMemory kind, int64_t bytes, void** data) {
  auto what = [&] { return device->In("allocating " + std::to_string(bytes) + " bytes"); };
  return Guard(what, [&] {
    constexpr size_t kCacheLine = 64, kHugePage = 2 << 20;
    const Found& found = *device->found;
    if (bytes < 0) throw Error{kInvalidArgument, "the size is negative"};
    size_t size = bytes ? static_cast<size_t>(bytes) : 1;
    // On a processor the system hands pages out when they are touched, which takes longer than a kernel's work on them.
    const bool huge = found.device.is_cpu() && size >= 2 * kHugePage;
    const size_t alignment = huge ? kHugePage : kCacheLine;
    // The CPU device gives out memory that the machine does not have, and the process dies when it is touched.
    if (bytes > found.info.memory_bytes) {
      throw Error{kResourceExhausted, "the device has " + std::to_string(found.info.memory_bytes) + " bytes in all"};
    }
    switch (kind) {
      case FERRULE_MEMORY_HOST:
        *data = sycl::aligned_alloc_host(alignment, size, found.context);
        break;
      case FERRULE_MEMORY_SHARED:
        *data = sycl::aligned_alloc_shared(alignment, size, found.device, found.context);
        break;
      default:
        *data = sycl::aligned_alloc_device(alignment, size, found.device, found.context);
    }
    if (!*data) {
      static const char* const kinds[] = {"device", "host", "shared"};
      throw Error{kResourceExhausted, std::string("there is no ") + kinds[kind] + " memory left (the device has " +
                                          std::to_string(found.info.memory_bytes) +
                                          " bytes in all, and gives at most " +
                                          std::to_string(found.info.max_allocation_bytes) + " at once)"};
    }
    if (huge) madvise(*data, size, MADV_HUGEPAGE);
  });
}

void Free(FerruleDevice* device, void* data) {
  if (data) Guard([&] { return device->In("freeing memory"); }, [&] { sycl::free(data, device->found->context); });
}

void Give(FerruleDevice* device, sycl::event event, FerruleEvent** done) {
  uint64_t number = device->faults->Next();
  if (done) *done = new FerruleEvent{std::move(event), device->faults, number, device->timed};
}

std::vector<sycl::event> EventsOf(FerruleAfter after) {
  std::vector<sycl::event> events;
  events.reserve(after.count);
  for (size_t i = 0; i < after.count; ++i) {
    if (after.events[i]) events.push_back(after.events[i]->event);
  }
  return events;
}

int Copy(FerruleDevice* device, void* dst, const void* src, int64_t bytes, FerruleAfter after, FerruleEvent** done) {
  if (bytes == 0) return Join(device, after, done);
  return Guard(
      [&] { return device->In("copying " + std::to_string(bytes) + " bytes"); },
      [&] { Give(device, device->queue.memcpy(dst, src, static_cast<size_t>(bytes), EventsOf(after)), done); });
}

int Launch(FerruleDevice* device, FerruleKernel* kernel, int64_t groups, int64_t group_size, void* const* pointers,
           size_t num_pointers, FerruleAfter after, FerruleEvent** done) {
  if (groups == 0 || group_size == 0) return Join(device, after, done);
  auto what = [&] {
    return device->In("launching kernel " + kernel->name + " with " + std::to_string(groups) + " work-groups of " +
                      std::to_string(group_size));
  };
  return Guard(what, [&] {
    // The CPU device would read an argument that is not there from anywhere.
    if (num_pointers != kernel->arguments) {
      throw Error{kInvalidArgument, "the kernel has " + std::to_string(kernel->arguments) + " arguments, not " +
                                        std::to_string(num_pointers)};
    }
    size_t size = static_cast<size_t>(group_size);
    sycl::nd_range<1> range(static_cast<size_t>(groups) * size, size);
    sycl::event event = device->queue.submit([&](sycl::handler& handler) {
      for (size_t i = 0; i < after.count; ++i) {
        if (after.events[i]) handler.depends_on(after.events[i]->event);
      }
      for (size_t i = 0; i < num_pointers; ++i) handler.set_arg(static_cast<int>(i), pointers[i]);
      handler.parallel_for(range, kernel->kernel);
    });
    Give(device, std::move(event), done);
  });
}

int Join(FerruleDevice* device, FerruleAfter after, FerruleEvent** done) {
  return Guard([&] { return device->In("joining " + std::to_string(after.count) + " commands"); },
               [&] {
                 std::vector<sycl::event> events = EventsOf(after);
                 // A barrier without events would wait for everything in the queue; one event is its own join.
                 if (events.empty()) return Give(device, sycl::event(), done);
                 if (events.size() == 1) return Give(device, std::move(events[0]), done);
                 Give(device, device->queue.ext_oneapi_submit_barrier(events), done);
               });
}

int Wait(FerruleEvent* event) {
  return Guard([&] { return "a command on " + event->faults->device; },
               [&] {
                 if (event->succeeded) return;
                 {
                   const Turn turn(event->faults->is_cpu);
                   event->event.wait_and_throw();  // hands asynchronous errors to the queue's handler first
                 }
                 if (Error error = event->faults->Of(event->number); error.code != kOk) throw error;
                 event->succeeded = true;
               });
}

void Retain(FerruleEvent* event) { event->references.fetch_add(1, std::memory_order_relaxed); }

void Release(FerruleEvent* event) {
  if (event->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete event;
}

int Times(FerruleEvent* event, int64_t* begin, int64_t* end) {
  return Guard([] { return "asking when a command ran"; },
               [&] {
                 if (!event->timed) {
                   throw Error{kUnimplemented,
                               "commands are timed only if FERRULE_DEBUG is 2 or more when the device "
                               "is opened"};
                 }
                 namespace times = sycl::info::event_profiling;
                 *begin = static_cast<int64_t>(event->event.get_profiling_info<times::command_start>());
                 *end = static_cast<int64_t>(event->event.get_profiling_info<times::command_end>());
               });
}

}  // namespace ferrule_sycl

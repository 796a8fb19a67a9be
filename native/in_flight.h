// The runs that an accelerator has not finished. A thread of its own waits for each in turn and completes it, so that
// the thread that starts runs never waits for the device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "event.h"
#include "ref.h"
#include "work_queue.h"

namespace ferrule {

class InFlight {
 public:
  // Runs `finish`, which waits for the device, after those added before. `done` is what it will set. Blocks while
  // kLimit runs are in flight: each holds memory.
  void Add(std::function<void()> finish, Ref<Event> done);
  // Waits for all that are in flight now; false when there were none. Not from `finish`.
  bool Wait();
  void Stop() { queue_.Stop(); }

 private:
  static constexpr int64_t kLimit = 64;
  void WaitUntil(int64_t count);

  std::atomic<int64_t> count_{0};
  WorkQueue queue_;
};

}  // namespace ferrule

// The runs that an accelerator has not finished. A thread of its own waits for each in turn and completes it, so that
// the thread that starts runs never waits for the device.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "event.h"
#include "ref.h"
#include "work_queue.h"

namespace ferrule {

class InFlight {
 public:
  // Waits until a run that needs so much memory of its own (temporaries and outputs) may start: runs that are only
  // queued hold memory, too.
  void Reserve(int64_t bytes, int64_t limit);
  // Runs `finish`, which waits for the device, after those added before. `done` is what it will set, `bytes` as
  // for Reserve.
  void Add(std::function<void()> finish, Ref<Event> done, int64_t bytes);
  // Waits for all that are in flight now; false when there were none. Not from `finish`.
  bool Wait();
  void Stop() { queue_.Stop(); }

 private:
  static constexpr int64_t kLimit = 64;
  // What is computed ahead. Runs of more than this take longer than starting them; were all of them started, each would
  // write to memory that no cache holds, and much of it would be new to the process.
  static constexpr int64_t kAheadRuns = 2, kAheadBytes = 128 << 20;

  // Apart, because finishing a run may free the device, and this with it.
  struct Load {
    std::atomic<int64_t> runs{0}, bytes{0};
  };
  const std::shared_ptr<Load> load_ = std::make_shared<Load>();
  WorkQueue queue_;
};

}  // namespace ferrule

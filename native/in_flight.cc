#include "in_flight.h"

#include <utility>

namespace ferrule {

void InFlight::WaitUntil(int64_t count) {
  for (int64_t now; (now = count_.load(std::memory_order_acquire)) > count;) count_.wait(now);
}

void InFlight::Add(std::function<void()> finish, Ref<Event> done) {
  WaitUntil(kLimit - 1);
  count_.fetch_add(1, std::memory_order_acq_rel);
  queue_.Add(
      [this, finish = std::move(finish)]() mutable {
        finish();
        finish = nullptr;  // what the run holds goes before the run counts as finished
        count_.fetch_sub(1, std::memory_order_acq_rel);
        count_.notify_all();
      },
      std::move(done));
}

bool InFlight::Wait() {
  const bool any = count_.load(std::memory_order_acquire) > 0;
  WaitUntil(0);
  return any;
}

}  // namespace ferrule

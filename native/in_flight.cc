#include "in_flight.h"

#include <utility>

namespace ferrule {

void InFlight::Reserve(int64_t bytes, int64_t limit) {
  for (int64_t now; (now = count_.load(std::memory_order_acquire)) > 0;) {
    if (now < kLimit && bytes_.load(std::memory_order_relaxed) + bytes <= limit) return;
    count_.wait(now);
  }
}

void InFlight::Add(std::function<void()> finish, Ref<Event> done, int64_t bytes) {
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
  count_.fetch_add(1, std::memory_order_acq_rel);
  queue_.Add(
      [this, bytes, finish = std::move(finish)]() mutable {
        finish();
        finish = nullptr;  // what the run holds goes before the run counts as finished
        bytes_.fetch_sub(bytes, std::memory_order_relaxed);
        count_.fetch_sub(1, std::memory_order_acq_rel);
        count_.notify_all();
      },
      std::move(done));
}

bool InFlight::Wait() {
  const bool any = count_.load(std::memory_order_acquire) > 0;
  for (int64_t now; (now = count_.load(std::memory_order_acquire)) > 0;) count_.wait(now);
  return any;
}

}  // namespace ferrule

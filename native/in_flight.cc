#include "in_flight.h"

#include <utility>

namespace ferrule {

void InFlight::Reserve(int64_t bytes, int64_t limit) {
  for (int64_t now; (now = load_->runs.load(std::memory_order_acquire)) > 0;) {
    const int64_t held = load_->bytes.load(std::memory_order_relaxed) + bytes;
    if (now < kLimit && held <= limit && (now < kAheadRuns || held <= kAheadBytes)) return;
    load_->runs.wait(now);
  }
}

void InFlight::Add(std::function<void()> finish, Ref<Event> done, int64_t bytes) {
  load_->bytes.fetch_add(bytes, std::memory_order_relaxed);
  load_->runs.fetch_add(1, std::memory_order_acq_rel);
  queue_.Add(
      [load = load_, bytes, finish = std::move(finish)]() mutable {
        finish();
        finish = nullptr;  // what the run holds goes before the run counts as finished
        load->bytes.fetch_sub(bytes, std::memory_order_relaxed);
        load->runs.fetch_sub(1, std::memory_order_acq_rel);
        load->runs.notify_all();
      },
      std::move(done));
}

bool InFlight::Wait() {
  int64_t now = load_->runs.load(std::memory_order_acquire);
  const bool any = now > 0;
  for (; now > 0; now = load_->runs.load(std::memory_order_acquire)) load_->runs.wait(now);
  return any;
}

}  // namespace ferrule

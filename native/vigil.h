// How long a thread that waits for others stays awake. To be woken costs more than a short wait: some 50 us in a
// virtual machine, whose processor may be given away meanwhile and finds its caches cold.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>

namespace ferrule {

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A wait, from its beginning. At first the thread keeps its processor; then it gives way to whoever else wants it.
// Where somebody does, all that wait sleep sooner for a while: who sleeps is given a processor before who waits in
// turn.
class Vigil {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kLongest{1000};

  explicit Vigil(Clock::time_point from = Clock::now()) : from_(from) {}

  // False when it is time to sleep. Asked once every few dozen pauses.
  bool GoesOn() const {
    const Clock::time_point now = Clock::now();
    if (now < from_ + kUndisturbed) return true;
    if (now >= from_ + kLongest || now.time_since_epoch().count() < crowded_until_.load(std::memory_order_relaxed))
      return false;
    sched_yield();
    const Clock::time_point back = Clock::now();
    if (back < now + kAtOnce) return true;
    crowded_until_.store((back + kCrowded).time_since_epoch().count(), std::memory_order_relaxed);
    return false;
  }

 private:
  static constexpr std::chrono::microseconds kUndisturbed{100}, kAtOnce{10}, kCrowded{20000};
  static inline std::atomic<Clock::rep> crowded_until_{0};

  Clock::time_point from_;
};

}  // namespace ferrule

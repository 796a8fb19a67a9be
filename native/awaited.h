// Which programs' callers wait for them: a caller that would sleep until its run has ended may as well run it itself,
// and saves two hand-overs between threads, each of which has to wake a processor that rests.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>

namespace ferrule {

// How a program's callers have dealt with its runs.
class Habit {
 public:
  // Nearly all of the last runs were waited for at once.
  bool Awaited() const { return score_.load(std::memory_order_relaxed) >= kEnough; }
  void Note(bool awaited) {
    const int score = score_.load(std::memory_order_relaxed);
    score_.store(awaited ? std::min(score + 1, kMost) : std::max(score - 2, 0), std::memory_order_relaxed);
  }

 private:
  static constexpr int kEnough = 2, kMost = 8;
  std::atomic<int> score_{0};
};

// The last run that a device was given, and whether somebody waits for it before the device is given the next one.
class LastRun {
 public:
  // A run begins; returns its number, which its outputs carry (Contents::run).
  int64_t Begin();
  // The run was handed over, or has ended.
  void Left(int64_t run, std::shared_ptr<Habit> habit);
  // Somebody waits for an output of this run.
  void Await(int64_t run);

 private:
  using Clock = std::chrono::steady_clock;
  // A caller that had other work for so long would have lost more than the hand-overs take.
  static constexpr std::chrono::microseconds kAtOnce{100};

  std::mutex mutex_;
  int64_t runs_ = 0, run_ = 0;    // `run_`: the one that nobody has waited for yet; 0: none
  std::shared_ptr<Habit> habit_;  // of its program
  Clock::time_point left_;
};

}  // namespace ferrule

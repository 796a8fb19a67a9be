#include "awaited.h"

#include <utility>

namespace ferrule {

int64_t LastRun::Begin() {
  std::lock_guard lock(mutex_);
  if (run_ != 0) habit_->Note(false);
  run_ = 0;
  return ++runs_;
}

void LastRun::Left(int64_t run, std::shared_ptr<Habit> habit) {
  const Clock::time_point now = Clock::now();
  std::lock_guard lock(mutex_);
  run_ = run, habit_ = std::move(habit), left_ = now;
}

void LastRun::Await(int64_t run) {
  std::lock_guard lock(mutex_);
  if (run == 0 || run != run_) return;
  run_ = 0;
  habit_->Note(Clock::now() - left_ <= kAtOnce);
}

}  // namespace ferrule

// A trial: a run on its caller's thread of a program whose loops may take long. Such loops ask now and then whether to
// go on; when the trial's time is over they end where they are, and the run, whose results are void then, starts anew
// on the device's queue.
#pragma once

#include <chrono>
#include <cstdint>

namespace ferrule {

class Trial {
 public:
  // This thread's trial from here to the end of the scope.
  explicit Trial(std::chrono::microseconds time);
  ~Trial();
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  bool over() const { return over_; }

  // What a loop of unknown length asks: how many iterations may pass until it asks again; 0: it must end.
  static int64_t More();

 private:
  const std::chrono::steady_clock::time_point end_;
  bool over_ = false;
};

}  // namespace ferrule

// FERRULE_DEBUG=2 at run time: how long each kernel and library call of a run took, and what it moved and computed.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace ferrule {

// What one step does each time it runs, as the compiler counted it; 0 when it does not know.
struct StepWork {
  std::string name;
  double flops = 0, bytes = 0;
};

// The level of FERRULE_DEBUG; 0 when unset or no number.
int DebugLevel();

// For the interpreter when nothing is measured: everything vanishes.
struct NoProfile {
  void Begin() {}
  void End(size_t) {}
};

// The times of one run. Used by the one thread that interprets the program.
class Profile {
 public:
  explicit Profile(const std::vector<StepWork>& work) : work_(work), entries_(work.size()), start_(Clock::now()) {}

  void Begin() { begin_ = Clock::now(); }
  void End(size_t step) {
    entries_[step].seconds += std::chrono::duration<double>(Clock::now() - begin_).count();
    ++entries_[step].calls;
  }

  // One line for each name, the slowest first.
  std::string Table(const std::string& program) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    double seconds = 0;
    int64_t calls = 0;
  };

  const std::vector<StepWork>& work_;
  std::vector<Entry> entries_;
  Clock::time_point start_, begin_;
};

}  // namespace ferrule

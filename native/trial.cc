#include "trial.h"

#include <limits>

namespace ferrule {
namespace {

constexpr int64_t kIterations = 64;  // reading the clock takes longer than a small iteration
thread_local Trial* current = nullptr;

}  // namespace

Trial::Trial(std::chrono::microseconds time) : end_(std::chrono::steady_clock::now() + time) { current = this; }
Trial::~Trial() { current = nullptr; }

int64_t Trial::More() {
  if (current == nullptr) return std::numeric_limits<int64_t>::max();
  current->over_ = current->over_ || std::chrono::steady_clock::now() > current->end_;
  return current->over_ ? 0 : kIterations;
}

}  // namespace ferrule

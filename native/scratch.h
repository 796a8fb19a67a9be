// Memory that library calls ask for while a program runs.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "allocator.h"

namespace ferrule {

// Freed when the run ends.
class Scratch {
 public:
  explicit Scratch(Allocator* allocator) : allocator_(allocator) {}
  ~Scratch() {
    for (const auto& [data, bytes] : blocks_) allocator_->Free(data, bytes);
  }

  // ExecContext::allocate.
  static void* Allocate(void* self, int64_t bytes) {
    auto* scratch = static_cast<Scratch*>(self);
    auto data = scratch->allocator_->Allocate(bytes);
    if (!data.ok()) return nullptr;
    std::lock_guard lock(scratch->mutex_);
    scratch->blocks_.emplace_back(*data, bytes);
    return *data;
  }

 private:
  Allocator* const allocator_;
  std::mutex mutex_;
  std::vector<std::pair<void*, int64_t>> blocks_;
};

}  // namespace ferrule

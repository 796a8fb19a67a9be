// A growing 64-byte aligned buffer, meant to be thread_local: packing buffers that live as long as their thread.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace ferrule {

class AlignedScratch {
 public:
  // At least `count` elements of T, contents unspecified; the pointer is valid until the next call. Memory that a call
  // needs for its inner loops is small; running out of it here ends the process as any failed `new` does.
  template <class T>
  T* Get(int64_t count) {
    int64_t bytes = (count * static_cast<int64_t>(sizeof(T)) + 127) / 64 * 64;
    if (bytes > size_) {
      const int64_t alignment = bytes >= kHugePage ? kHugePage : 64;
      bytes = (bytes + alignment - 1) / alignment * alignment;
      memory_.reset(std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(bytes)));
      if (!memory_) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
      // Large ones are written all over: with small pages much of the time goes into finding their addresses.
      if (alignment == kHugePage) madvise(memory_.get(), static_cast<size_t>(bytes), MADV_HUGEPAGE);
#endif
      size_ = bytes;
    }
    return static_cast<T*>(memory_.get());
  }

 private:
  static constexpr int64_t kHugePage = 2 << 20;
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> memory_;
  int64_t size_ = 0;
};

}  // namespace ferrule

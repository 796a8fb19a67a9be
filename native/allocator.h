// The caching allocator of one device, and storage: a refcounted block of memory that buffers share.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "command.h"
#include "ref.h"
#include "status.h"

namespace ferrule {

constexpr int64_t kAlignment = 64;  // a cache line, and the widest vector register

struct MemoryStats {
  int64_t bytes_in_use = 0, peak_bytes_in_use = 0;
  int64_t num_allocs = 0, largest_alloc_size = 0;
  int64_t bytes_limit = 0;                      // 0 = none but the machine's
  int64_t pool_bytes = 0, peak_pool_bytes = 0;  // in use and kept for reuse
};

// Where an allocator's blocks come from; without one they are the host's own memory. Blocks are 64-byte aligned.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  virtual Result<void*> Allocate(int64_t bytes) = 0;
  virtual void Free(void* data) = 0;
};

// Hands out 64-byte aligned blocks and keeps freed ones in lists by size class: a training step asks for the same sizes
// each time, and fresh pages from the system cost more than the work on a small tensor.
class Allocator : public RefCounted {
 public:
  // `where` names the device in messages; `limit` in bytes, 0 = none.
  Allocator(std::string where, int64_t limit, std::unique_ptr<MemorySource> source = nullptr)
      : where_(std::move(where)), limit_(limit), source_(std::move(source)) {}

  // At least `bytes` bytes, also for 0. The contents are undefined.
  Result<void*> Allocate(int64_t bytes);
  // `bytes` as given to Allocate.
  void Free(void* data, int64_t bytes);

  MemoryStats Stats() const;
  void ClearPeaks();
  int64_t limit() const { return limit_; }

 private:
  template <class T>
  friend class Ref;
  ~Allocator() override;

  Status Exhausted(int64_t bytes, const Status& why = {}) const;
  Result<void*> Fresh(int64_t bytes);
  void Return(void* data);
  void Trim();
  void TakeOld(std::vector<void*>* old);  // the oldest of the free blocks, of which there is one at least

  struct Kept {
    void* data;
    uint64_t freed;  // its number among all frees
  };
  const std::string where_;
  const int64_t limit_;
  const std::unique_ptr<MemorySource> source_;
  mutable std::mutex mutex_;
  std::array<std::vector<Kept>, 320> free_;  // by size class, oldest first
  uint64_t frees_ = 0;
  std::map<int64_t, int64_t> large_;  // live blocks of at least kLarge bytes: size → how many
  MemoryStats stats_;
};

// Memory that one or more buffers and running programs use. The last reference frees it.
class Storage : public RefCounted {
 public:
  static Result<Ref<Storage>> Allocate(Allocator* allocator, int64_t bytes);
  // Memory that belongs to someone else; `on_release` runs once when nobody uses it any more. A read-only one is never
  // written, so it cannot be donated.
  static Ref<Storage> Alias(void* data, int64_t bytes, bool read_only, std::function<void()> on_release);

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  bool read_only() const { return read_only_; }

  // Runs in flight on an accelerator that use the memory, each by its last command. They hold references of their own.
  void AddUser(const Command& command);
  void RemoveUser(const Command& command);
  // Whether the caller and runs in flight are all that hold it; `users` gets these runs' last commands.
  bool OnlyInFlight(Commands* users) const;

 private:
  template <class T>
  friend class Ref;
  Storage(void* data, int64_t bytes, bool read_only, Ref<Allocator> allocator, std::function<void()> on_release)
      : data_(data),
        bytes_(bytes),
        read_only_(read_only),
        allocator_(std::move(allocator)),
        on_release_(std::move(on_release)) {}
  ~Storage() override;

  void* const data_;
  const int64_t bytes_;
  const bool read_only_;
  const Ref<Allocator> allocator_;
  const std::function<void()> on_release_;
  mutable std::mutex mutex_;
  Commands users_;  // none on the cpu target
};

}  // namespace ferrule

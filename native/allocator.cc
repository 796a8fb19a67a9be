#include "allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

namespace ferrule {
namespace {

constexpr int64_t kHugePage = 2 << 20;
constexpr int64_t kLarge = 1 << 20;       // blocks that an out-of-memory message lists
constexpr int64_t kKeptFree = 256 << 20;  // free bytes kept whatever the program's size
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kCache = false;  // so that AddressSanitizer sees a use after free
#else
constexpr bool kCache = true;
#endif

// Size classes: multiples of 64 up to 512, then eight per power of two (at most 12.5 % unused).
int ClassOf(int64_t bytes) {
  if (bytes <= 512) return static_cast<int>((std::max<int64_t>(bytes, 1) + 63) / 64) - 1;
  const int log = 63 - std::countl_zero(static_cast<uint64_t>(bytes - 1));
  const int64_t step = int64_t{1} << (log - 3);
  return 8 + (log - 9) * 8 + static_cast<int>((bytes - 1 - (int64_t{1} << log)) / step);
}

int64_t ClassBytes(int index) {
  if (index < 8) return (index + 1) * 64;
  const int log = 9 + (index - 8) / 8;
  return (int64_t{1} << log) + ((index - 8) % 8 + 1) * (int64_t{1} << (log - 3));
}

void* SystemAllocate(int64_t bytes) {
  const int64_t alignment = bytes >= 2 * kHugePage ? kHugePage : kAlignment;
  void* data = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
#ifdef MADV_HUGEPAGE
  if (data != nullptr && alignment == kHugePage) madvise(data, bytes, MADV_HUGEPAGE);
#endif
  return data;
}

std::string Mebibytes(int64_t bytes) {
  char text[64];
  if (bytes < 1 << 20) {
    std::snprintf(text, sizeof text, "%lld bytes", static_cast<long long>(bytes));
  } else {
    std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  }
  return text;
}

}  // namespace

Result<void*> Allocator::Allocate(int64_t bytes) {
  if (bytes < 0 || bytes > int64_t{1} << 46) return Exhausted(bytes);
  const int index = ClassOf(bytes);
  const int64_t size = ClassBytes(index);
  std::lock_guard lock(mutex_);
  if (limit_ > 0 && stats_.bytes_in_use + size > limit_) return Exhausted(bytes);
  void* data = nullptr;
  if (!free_[index].empty()) {
    data = free_[index].back().data;
    free_[index].pop_back();
  } else {
    if (limit_ > 0 && stats_.pool_bytes + size > limit_) Trim();
    auto fresh = Fresh(size);
    if (!fresh.ok() && fresh.status().code() == Code::kResourceExhausted) {
      Trim();
      fresh = Fresh(size);
    }
    if (!fresh.ok() && fresh.status().code() == Code::kResourceExhausted) return Exhausted(bytes, fresh.status());
    if (!fresh.ok()) return fresh.status();
    data = *fresh;
    stats_.pool_bytes += size;
    stats_.peak_pool_bytes = std::max(stats_.peak_pool_bytes, stats_.pool_bytes);
  }
  stats_.bytes_in_use += size;
  stats_.peak_bytes_in_use = std::max(stats_.peak_bytes_in_use, stats_.bytes_in_use);
  stats_.num_allocs += 1;
  stats_.largest_alloc_size = std::max(stats_.largest_alloc_size, size);
  if (size >= kLarge) ++large_[size];
  return data;
}

void Allocator::Free(void* data, int64_t bytes) {
  const int index = ClassOf(bytes);
  const int64_t size = ClassBytes(index);
  std::vector<void*> old;
  {
    std::lock_guard lock(mutex_);
    stats_.bytes_in_use -= size;
    if (size >= kLarge) {
      auto it = large_.find(size);
      if (it != large_.end() && --it->second == 0) large_.erase(it);
    }
    free_[index].push_back({data, ++frees_});
    const int64_t limit = kCache ? std::max(kKeptFree, stats_.peak_bytes_in_use) : 0;
    while (stats_.pool_bytes - stats_.bytes_in_use > limit) TakeOld(&old);
  }
  for (void* block : old) Return(block);
}

// What was not wanted for longest goes, not what was freed last: a program that asks for other sizes than those before
// it would get fresh pages at each of its runs, while theirs lie here unused.
void Allocator::TakeOld(std::vector<void*>* old) {
  size_t oldest = 0;
  for (size_t index = 0; index < free_.size(); ++index) {
    if (free_[index].empty()) continue;
    if (free_[oldest].empty() || free_[index].front().freed < free_[oldest].front().freed) oldest = index;
  }
  std::vector<Kept>& list = free_[oldest];
  const auto end = list.begin() + static_cast<std::ptrdiff_t>((list.size() + 3) / 4);  // a small one is rarely alone
  for (auto it = list.begin(); it != end; ++it) old->push_back(it->data);
  stats_.pool_bytes -= (end - list.begin()) * ClassBytes(static_cast<int>(oldest));
  list.erase(list.begin(), end);
}

Result<void*> Allocator::Fresh(int64_t bytes) {
  if (source_ != nullptr) return source_->Allocate(bytes);
  void* data = SystemAllocate(bytes);
  if (data == nullptr) return OutOfMemory("");
  return data;
}

void Allocator::Return(void* data) { source_ != nullptr ? source_->Free(data) : std::free(data); }

void Allocator::Trim() {
  for (size_t index = 0; index < free_.size(); ++index) {
    for (const Kept& block : free_[index]) Return(block.data);
    stats_.pool_bytes -= static_cast<int64_t>(free_[index].size()) * ClassBytes(static_cast<int>(index));
    free_[index].clear();
  }
}

Allocator::~Allocator() { Trim(); }

MemoryStats Allocator::Stats() const {
  std::lock_guard lock(mutex_);
  MemoryStats stats = stats_;
  stats.bytes_limit = limit_;
  return stats;
}

void Allocator::ClearPeaks() {
  std::lock_guard lock(mutex_);
  stats_.peak_bytes_in_use = stats_.bytes_in_use;
  stats_.peak_pool_bytes = stats_.pool_bytes;
  stats_.num_allocs = 0;
  stats_.largest_alloc_size = 0;
}

Status Allocator::Exhausted(int64_t bytes, const Status& why) const {
  std::string text = where_ + " is out of memory\n  requested: " + Mebibytes(bytes) +
                     "\n  in use: " + Mebibytes(stats_.bytes_in_use) + "\n  limit: ";
  text += limit_ > 0 ? Mebibytes(limit_) : "what the machine has";
  if (!why.message().empty()) text += "\n  the driver says: " + why.message();
  if (!large_.empty()) {
    text += "\n  largest live buffers: ";
    int shown = 0;
    for (auto it = large_.rbegin(); it != large_.rend() && shown < 5; ++it, ++shown) {
      if (shown > 0) text += ", ";
      text += (it->second > 1 ? std::to_string(it->second) + " x " : "") + Mebibytes(it->first);
    }
  }
  text +=
      "\n  fix: delete arrays that are no longer needed, donate inputs (jax.jit(..., donate_argnums=...)) or use "
      "smaller "
      "batches";
  if (limit_ > 0) text += "; or raise FERRULE_MEMORY_LIMIT (option `memory_limit_bytes`)";
  return OutOfMemory(std::move(text));
}

Result<Ref<Storage>> Storage::Allocate(Allocator* allocator, int64_t bytes) {
  auto data = allocator->Allocate(bytes);
  if (!data.ok()) return data.status();
  return Ref<Storage>::Make(data.value(), bytes, false, Ref<Allocator>::Share(allocator), nullptr);
}

Ref<Storage> Storage::Alias(void* data, int64_t bytes, bool read_only, std::function<void()> on_release) {
  return Ref<Storage>::Make(data, bytes, read_only, nullptr, std::move(on_release));
}

void Storage::AddUser(const Command& command) {
  std::lock_guard lock(mutex_);
  users_.push_back(command);
}

void Storage::RemoveUser(const Command& command) {
  std::lock_guard lock(mutex_);
  users_.erase(std::find(users_.begin(), users_.end(), command));
}

bool Storage::OnlyInFlight(Commands* users) const {
  std::lock_guard lock(mutex_);
  if (References() != static_cast<int64_t>(1 + users_.size())) return false;
  users->insert(users->end(), users_.begin(), users_.end());
  return true;
}

Storage::~Storage() {
  if (allocator_) allocator_->Free(data_, bytes_);
  if (on_release_) on_release_();
}

}  // namespace ferrule

#include "packed.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string_view>

namespace ferrule {
namespace {

// Bytes of all forms that are kept, on all devices.
std::atomic<int64_t> kept{0};

// Kept forms may take an eighth of the memory: they are there for speed only.
int64_t Most(const Allocator& allocator) {
  static const int64_t machine = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  return (allocator.limit() > 0 ? std::min(allocator.limit(), machine) : machine) / 8;
}

}  // namespace

PackedForms::~PackedForms() {
  for (const Form& form : forms_) {
    if (form.storage) kept.fetch_sub(form.storage->bytes(), std::memory_order_relaxed);
  }
}

bool PackedForms::Enabled() {
  static const bool enabled = [] {
    const char* wish = std::getenv("FERRULE_PACK");
    return wish == nullptr || std::string_view(wish) != "0";
  }();
  return enabled;
}

PackedForms::Form* PackedForms::Entry(const std::string& key) {
  for (Form& form : forms_) {
    if (form.key == key) return &form;
  }
  return nullptr;
}

Ref<Storage> PackedForms::Find(const std::string& key) {
  std::lock_guard lock(mutex_);
  const Form* form = Entry(key);
  return form != nullptr ? form->storage : nullptr;
}

Ref<Storage> PackedForms::Allocate(const std::string& key, int64_t bytes) {
  {
    std::lock_guard lock(mutex_);
    if (Entry(key) == nullptr) {
      forms_.push_back({key, nullptr});
      return nullptr;
    }
  }
  if (kept.load(std::memory_order_relaxed) + bytes > Most(*allocator_)) return nullptr;
  auto allocated = Storage::Allocate(allocator_.get(), bytes);
  return allocated.ok() ? std::move(*allocated) : nullptr;
}

void PackedForms::Keep(const std::string& key, Ref<Storage> form) {
  std::lock_guard lock(mutex_);
  Form* entry = Entry(key);
  if (entry == nullptr || entry->storage) return;  // another run was faster
  kept.fetch_add(form->bytes(), std::memory_order_relaxed);
  entry->storage = std::move(form);
}

}  // namespace ferrule

// Buffers: a typed array in a memory, whose contents may still be on their way.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "allocator.h"
#include "client.h"
#include "command.h"
#include "event.h"
#include "handles.h"
#include "layout.h"
#include "packed.h"
#include "ref.h"
#include "status.h"

namespace ferrule {

// The contents of a buffer: memory, and the event after which it holds the data. Running programs and pending copies
// hold contents, not buffers, so a buffer may be deleted at any time. Whoever defines the contents sets `storage`
// before it sets `ready` to success; everybody else reads `storage` only once `ready` succeeded.
class Contents : public RefCounted {
 public:
  explicit Contents(Ref<Event> ready, Ref<Storage> storage = nullptr)
      : ready(std::move(ready)), storage(std::move(storage)) {}

  ~Contents() override { delete forms_.load(std::memory_order_relaxed); }

  const Ref<Event> ready;
  Ref<Storage> storage;
  int64_t run = 0;  // the number of the run that makes it, where that is of interest (LastRun)

  // Other forms of the data; null when it may change unseen. (Views through NumPy and DLPack must not write, nor may
  // the owner of host memory that is immutable by contract: arrays do not change.)
  PackedForms* Forms(Allocator* allocator);
  // Somebody outside has promised nothing and knows the address.
  void Expose() { exposed_.store(true, std::memory_order_relaxed); }

  // On an accelerator a consumer need not wait for `ready`: once this is true, `storage` is there, and `pending` is the
  // command that fills it.
  std::atomic<bool> submitted{false};
  Command pending;

 private:
  std::atomic<bool> exposed_{false};
  std::atomic<PackedForms*> forms_{nullptr};
};

// Dimensions, without an allocation up to rank 6.
class Dims {
 public:
  Dims() = default;
  Dims(const int64_t* data, size_t size) : size_(size) {
    if (size > kInline) heap_ = std::make_unique<int64_t[]>(size);
    std::copy_n(data, size, heap_ ? heap_.get() : inline_.data());
  }
  const int64_t* data() const { return heap_ ? heap_.get() : inline_.data(); }
  size_t size() const { return size_; }
  const int64_t* begin() const { return data(); }
  const int64_t* end() const { return data() + size_; }
  int64_t operator[](size_t i) const { return data()[i]; }
  bool Equals(const std::vector<int64_t>& other) const {
    return size_ == other.size() && std::equal(begin(), end(), other.begin());
  }

 private:
  static constexpr size_t kInline = 6;
  size_t size_ = 0;
  std::array<int64_t, kInline> inline_{};
  std::unique_ptr<int64_t[]> heap_;
};

class Buffer {
 public:
  Buffer(Memory* memory, int dtype, const int64_t* dims, size_t rank, Ref<Contents> contents, Layout layout)
      : client(Ref<Client>::Share(memory->device->client)),
        memory(memory),
        dtype(dtype),
        dims(dims, rank),
        layout(layout),
        contents_(std::move(contents)) {}

  const Ref<Client> client;  // so that memory and device live as long as the buffer
  Memory* const memory;
  const int dtype;
  const Dims dims;
  const Layout layout;

  Device* device() const { return memory->device; }
  int64_t bytes() const;
  std::string TypeText() const;  // "f32[2,3]"

  // Null once deleted or donated.
  Ref<Contents> contents() const;
  // The contents, or the error for using a deleted buffer. `what` names the buffer: "argument 2", "the source".
  Result<Ref<Contents>> Use(const char* what) const;
  bool deleted() const;
  void Delete() { (void)Take(); }

  // Takes the contents away, as donation does; null when they are gone. `*pinned` tells whether someone outside holds
  // the memory's address, so that it must not be reused.
  Ref<Contents> Take(bool* pinned = nullptr);
  // Undoes Take.
  void PutBack(Ref<Contents> contents);

  Status Pin();  // someone outside uses the memory's address
  Status Unpin();

 private:
  mutable std::mutex mutex_;
  Ref<Contents> contents_;
  Ref<Contents> pinned_;  // keeps pinned memory alive after Delete
  int64_t pins_ = 0;
};

// PJRT's name of an element type, in lower case: "f32".
std::string TypeName(int dtype);
std::string ShapeText(int dtype, const int64_t* dims, size_t rank);

// Bytes of a dense array, or an error for unknown types, negative dimensions and overflow.
Result<int64_t> CheckedBytes(int dtype, const int64_t* dims, size_t rank, const char* where);

// For calls that make row-major buffers only; any other layout asked for is UNIMPLEMENTED. Null means row-major.
Status CheckRowMajor(const PJRT_Buffer_MemoryLayout* layout, const int64_t* dims, size_t rank, int64_t element_bytes,
                     const char* where);

// A new buffer as a handle for the caller.
inline PJRT_Buffer* NewBuffer(Memory* memory, int dtype, const int64_t* dims, size_t rank, Ref<Contents> contents,
                              Layout layout = nullptr) {
  return To(new Buffer(memory, dtype, dims, rank, std::move(contents), layout));
}

}  // namespace ferrule

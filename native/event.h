// Event: a one-shot future that ends in success or an error.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>

#include "handles.h"
#include "ref.h"
#include "status.h"

namespace ferrule {

class Event : public RefCounted {
 public:
  using Callback = std::function<void(const Status&)>;

  static Ref<Event> New() { return Ref<Event>::Make(); }
  // An event that succeeded already: one object for the whole process, so finished work costs no allocation.
  static Ref<Event> Done();
  static Ref<Event> Failed(Status status);

  bool IsReady() const { return state_.load(std::memory_order_acquire) != kPending; }
  // Ready and without error.
  bool Succeeded() const { return state_.load(std::memory_order_acquire) == kDone; }
  // The outcome; success while pending.
  Status status() const { return IsReady() ? status_ : Status(); }

  // Sets the outcome and fires the callbacks on this thread, holding no lock. False when it was set before.
  bool Set(Status status);

  // Blocks until ready.
  Status Await() const;

  // Runs `callback` once: now when ready, else on the thread that sets the event.
  void OnReady(Callback callback);

 private:
  template <class T>
  friend class Ref;
  friend class RefCounted;
  enum State : int { kPending, kDone, kFailed };
  struct Node {
    Callback callback;
    std::unique_ptr<Node> next;
  };

  Event() = default;
  ~Event() override;

  mutable std::atomic<int> state_{kPending};
  Status status_;
  std::mutex mutex_;  // guards callbacks_ until the state leaves kPending
  std::unique_ptr<Node> callbacks_;
};

}  // namespace ferrule

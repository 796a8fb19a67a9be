#include "event.h"

#include "entry.h"

namespace ferrule {

Ref<Event> Event::Done() {
  static Event* const done = [] {
    auto* event = new Event;
    event->Set({});
    return event;
  }();
  return Ref<Event>::Share(done);
}

Ref<Event> Event::Failed(Status status) {
  Ref<Event> event = New();
  event->Set(std::move(status));
  return event;
}

// A list of a million waiters must not recurse a million deep.
Event::~Event() {
  while (callbacks_) callbacks_ = std::move(callbacks_->next);
}

bool Event::Set(Status status) {
  // A callback may drop the last reference that others hold, while we are still here.
  Ref<Event> self = Ref<Event>::Share(this);
  std::unique_ptr<Node> waiting;
  {
    std::lock_guard lock(mutex_);
    if (state_.load(std::memory_order_relaxed) != kPending) return false;
    status_ = std::move(status);
    state_.store(status_.ok() ? kDone : kFailed, std::memory_order_release);
    waiting = std::move(callbacks_);
  }
  state_.notify_all();
  // The list is newest first; callbacks fire in the order in which they were added.
  std::unique_ptr<Node> ordered;
  while (waiting) {
    auto next = std::move(waiting->next);
    waiting->next = std::move(ordered);
    ordered = std::move(waiting);
    waiting = std::move(next);
  }
  while (ordered) {
    ordered->callback(status_);
    ordered = std::move(ordered->next);
  }
  return true;
}

Status Event::Await() const {
  Ref<const Event> self = Ref<const Event>::Share(this);
  state_.wait(kPending, std::memory_order_acquire);
  return status_;
}

void Event::OnReady(Callback callback) {
  if (!IsReady()) {
    std::lock_guard lock(mutex_);
    if (!IsReady()) {
      callbacks_ = std::unique_ptr<Node>(new Node{std::move(callback), std::move(callbacks_)});
      return;
    }
  }
  callback(status_);
}

namespace api {

Status PJRT_Event_Destroy(PJRT_Event_Destroy_Args& args) {
  From(args.event)->Release();
  return {};
}

Status PJRT_Event_IsReady(PJRT_Event_IsReady_Args& args) {
  args.is_ready = From(args.event)->IsReady();
  return {};
}

Status PJRT_Event_Error(PJRT_Event_Error_Args& args) {
  const Event* event = From(args.event);
  if (!event->IsReady()) {
    return FailedPrecondition("PJRT_Event_Error: the event is not ready yet; call PJRT_Event_Await first");
  }
  return event->status();
}

Status PJRT_Event_Await(PJRT_Event_Await_Args& args) { return From(args.event)->Await(); }

Status PJRT_Event_OnReady(PJRT_Event_OnReady_Args& args) {
  if (args.callback == nullptr) return InvalidArgument("PJRT_Event_OnReady: `callback` is null");
  Event* event = From(args.event);
  // JAX calls this after each dispatch, nearly always on a finished event: no std::function then.
  if (event->Succeeded()) {
    args.callback(nullptr, args.user_arg);
    return {};
  }
  event->OnReady(
      [callback = args.callback, user = args.user_arg](const Status& status) { callback(NewError(status), user); });
  return {};
}

Status PJRT_Event_Create(PJRT_Event_Create_Args& args) {
  args.event = To(Event::New().release());
  return {};
}

Status PJRT_Event_Set(PJRT_Event_Set_Args& args) {
  Status status;
  if (args.error_code != PJRT_Error_Code_OK) {
    status = StatusFrom(args.error_code, Text(args.error_message, args.error_message_size));
  }
  if (!From(args.event)->Set(std::move(status))) {
    return FailedPrecondition("PJRT_Event_Set: the event was set before; an event can be set once");
  }
  return {};
}

}  // namespace api
}  // namespace ferrule

#include "work_queue.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "python_api.h"

namespace ferrule {

struct WorkQueue::State {
  struct Task {
    std::function<void()> run;
    Ref<Event> done;
  };

  static void Work(const std::shared_ptr<State>& self);

  std::atomic<int64_t> pending{0};
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<Task> tasks;
  Ref<Event> running;  // what the task that runs will set
  bool stopping = false, ended = false;
  std::condition_variable end;
  std::thread thread;
};

// A fork copies the queues but not their threads. While it happens all queues are locked, so that the child finds them
// whole; there each gets a new state, and what the parent's threads will finish in the parent only fails.
struct ForkHandler {
  std::mutex mutex;
  std::set<WorkQueue*> queues;

  static ForkHandler& The() {
    // Never destroyed: queues may be freed while the process exits.
    static auto* handler = [] {
      auto* made = new ForkHandler;
      pthread_atfork(&Prepare, &Parent, &Child);
      return made;
    }();
    return *handler;
  }

  static void Prepare() {
    The().mutex.lock();
    for (WorkQueue* queue : The().queues) queue->state_->mutex.lock();
  }

  static void Parent() {
    for (WorkQueue* queue : The().queues) queue->state_->mutex.unlock();
    The().mutex.unlock();
  }

  static void Child() {
    std::vector<Ref<Event>> lost;
    for (WorkQueue* queue : The().queues) {
      // Never freed: its thread is gone, and nobody may wait for that or touch what it was doing.
      auto* old = new std::shared_ptr<WorkQueue::State>(std::exchange(queue->state_, WorkQueue::NewState()));
      if ((*old)->running) lost.push_back((*old)->running);
      for (const auto& task : (*old)->tasks) lost.push_back(task.done);
      (*old)->mutex.unlock();
    }
    The().mutex.unlock();
    for (const Ref<Event>& event : lost) {
      event->Set(
          Status(Code::kAborted,
                 "the process was forked while this was being computed: the result is in the parent only\n  fix: "
                 "wait for results (block_until_ready) before os.fork(), or start processes by spawn"));
    }
  }
};

std::shared_ptr<WorkQueue::State> WorkQueue::NewState() { return std::make_shared<State>(); }

WorkQueue::WorkQueue() : state_(NewState()) {
  ForkHandler& handler = ForkHandler::The();
  std::lock_guard lock(handler.mutex);
  handler.queues.insert(this);
}

WorkQueue::~WorkQueue() {
  Stop();
  ForkHandler& handler = ForkHandler::The();
  std::lock_guard lock(handler.mutex);
  handler.queues.erase(this);
}

void WorkQueue::Add(std::function<void()> task, Ref<Event> done) {
  State& state = *state_;
  {
    std::lock_guard lock(state.mutex);
    Push(std::move(task), std::move(done));
  }
  state.wake.notify_one();
}

void WorkQueue::Push(std::function<void()> task, Ref<Event> done) {
  State& state = *state_;
  state.pending.fetch_add(1, std::memory_order_acq_rel);
  state.tasks.push_back({std::move(task), std::move(done)});
  if (!state.thread.joinable()) {
    state.thread = std::thread([self = state_] { State::Work(self); });
    pthread_setname_np(state.thread.native_handle(), "ferrule-queue");
  }
}

void WorkQueue::AddAll(std::vector<Addition> additions) {
  // In the order of the fork handler's set, so that nobody who locks several queues waits in a circle.
  std::sort(additions.begin(), additions.end(),
            [](const Addition& a, const Addition& b) { return std::less<>()(a.queue, b.queue); });
  for (Addition& a : additions) a.queue->state_->mutex.lock();
  for (Addition& a : additions) a.queue->Push(std::move(a.task), std::move(a.done));
  for (Addition& a : additions) a.queue->state_->mutex.unlock();
  for (Addition& a : additions) a.queue->state_->wake.notify_one();
}

bool WorkQueue::Idle() const { return state_->pending.load(std::memory_order_acquire) == 0; }

void WorkQueue::State::Work(const std::shared_ptr<State>& self) {
  State& state = *self;
  std::unique_lock lock(state.mutex);
  while (true) {
    state.wake.wait(lock, [&state] { return state.stopping || !state.tasks.empty(); });
    if (state.tasks.empty()) {
      state.ended = true;
      state.end.notify_all();
      return;
    }
    Task task = std::move(state.tasks.front());
    state.tasks.pop_front();
    state.running = task.done;
    lock.unlock();
    task.run();
    task.run = nullptr;  // what the task holds is released before the queue calls itself idle
    state.pending.fetch_sub(1, std::memory_order_acq_rel);
    lock.lock();
    state.running = nullptr;
  }
}

void WorkQueue::Stop() {
  const std::shared_ptr<State> self = state_;
  State& state = *self;
  std::unique_lock lock(state.mutex);
  if (!state.thread.joinable()) return;
  state.stopping = true;
  state.wake.notify_all();
  // A task of its own may have dropped the client's last reference: then the thread goes when it has nothing more to
  // do. And at the interpreter's end a task that calls back into Python stays there.
  const std::thread::id thread = state.thread.get_id();
  bool left = thread == std::this_thread::get_id();
  while (!left && !state.ended) {
    state.end.wait_for(lock, std::chrono::milliseconds(50));
    left = !state.ended && python::Lost(thread);
  }
  if (left) {
    state.thread.detach();
    state_ = NewState();
    return;
  }
  lock.unlock();
  state.thread.join();
  lock.lock();
  state.stopping = state.ended = false;  // a later task starts a new thread
}

}  // namespace ferrule

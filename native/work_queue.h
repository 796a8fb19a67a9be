// One worker thread that runs tasks in the order in which they were added. The thread starts with the first task.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "event.h"
#include "ref.h"

namespace ferrule {

class WorkQueue {
 public:
  WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;
  ~WorkQueue();

  // `done` is the event that the task sets at its end. In the child of a fork, which has no worker thread, the events
  // of the parent's unfinished tasks fail; the queue starts anew.
  void Add(std::function<void()> task, Ref<Event> done);
  // Adds one task to each of several queues (each named once) at one point in time, so that tasks which wait for each
  // other come in the same order everywhere, and no task between them can wait for a later one.
  struct Addition {
    WorkQueue* queue;
    std::function<void()> task;
    Ref<Event> done;
  };
  static void AddAll(std::vector<Addition> additions);
  // No task is queued or running.
  bool Idle() const;
  // Finishes what is queued and ends the thread.
  void Stop();

 private:
  struct State;
  // With the state locked.
  void Push(std::function<void()> task, Ref<Event> done);
  static std::shared_ptr<State> NewState();
  friend struct ForkHandler;

  std::shared_ptr<State> state_;  // the worker thread holds it, too
};

}  // namespace ferrule

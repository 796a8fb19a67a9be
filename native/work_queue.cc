#include "device.h"

namespace ferrule {

void WorkQueue::Add(std::function<void()> task) {
  pending_.fetch_add(1, std::memory_order_acq_rel);
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    if (!thread_.joinable()) thread_ = std::thread([this] { Work(); });
  }
  wake_.notify_one();
}

void WorkQueue::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what the task holds is released before the queue calls itself idle
    pending_.fetch_sub(1, std::memory_order_acq_rel);
    lock.lock();
  }
}

void WorkQueue::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    if (!thread_.joinable()) return;
  }
  wake_.notify_all();
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();  // the client's last reference was dropped by its own last task
  } else {
    thread_.join();
  }
  std::lock_guard lock(mutex_);
  stopping_ = false;  // a later task starts a new thread
}

}  // namespace ferrule

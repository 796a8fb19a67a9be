// One pool of worker threads per process, sized by FERRULE_NUM_THREADS, else by the CPU affinity mask.
#pragma once

#include <cstdint>
#include <type_traits>

namespace ferrule {

class ThreadPool {
 public:
  static ThreadPool& Global();
  virtual ~ThreadPool() = default;
  virtual int threads() const = 0;  // including the caller
  // Calls body(context, begin, end) on disjoint ranges covering [0, n), about equal ones; returns when all are done.
  // The caller works too. `grain` iterations are worth waking a thread for: n of them or fewer are the caller's alone,
  // unless threads are awake that wait for work, of which each may have `least` (at most `grain`). May be called from
  // several threads at once and from inside a body (then it runs inline).
  virtual void ParallelFor(int64_t n, int64_t grain, int64_t least,
                           void (*body)(void* context, int64_t begin, int64_t end), void* context) = 0;
  template <class F>
  void For(int64_t n, int64_t grain, F&& f) {
    ParallelFor(
        n, grain, grain, [](void* c, int64_t b, int64_t e) { (*static_cast<std::remove_reference_t<F>*>(c))(b, e); },
        &f);
  }
  // A team of `count`, for a library whose threads wait for one another: calls body(context, i, i + 1) for i = 1 to
  // count - 1, each on a thread of its own, all at the same time. The caller is the first of them, and calls FinishTeam
  // when it is done, which returns when all are. One team at a time has the pool's workers; the next one waits. Inside
  // a body, and where there are not enough workers, threads are made for it.
  struct Team;
  virtual int TeamThreads() = 0;  // the caller and the workers there are: the system may refuse some
  virtual Team* StartTeam(int count, void (*body)(void* context, int64_t begin, int64_t end), void* context) = 0;
  virtual void FinishTeam(Team* team) = 0;
  // Runs `task(context)` on a worker some time later (XLA FFI's thread pool uses it).
  virtual void Schedule(void (*task)(void* context), void* context) = 0;
};

}  // namespace ferrule

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
  // Calls body(context, begin, end) on disjoint ranges covering [0, n), each of at least `grain` iterations except
  // the last; returns when all are done. The caller works too. May be called from several threads at once and from
  // inside a body (then it runs inline).
  virtual void ParallelFor(int64_t n, int64_t grain, void (*body)(void* context, int64_t begin, int64_t end),
                           void* context) = 0;
  template <class F>
  void For(int64_t n, int64_t grain, F&& f) {
    ParallelFor(
        n, grain, [](void* c, int64_t b, int64_t e) { (*static_cast<std::remove_reference_t<F>*>(c))(b, e); }, &f);
  }
  // Runs `task(context)` on a worker some time later (XLA FFI's thread pool uses it).
  virtual void Schedule(void (*task)(void* context), void* context) = 0;
};

}  // namespace ferrule

// The OpenMP threads that oneDNN runs on, kept on processors of their own. Linux may wake one of them on the processor
// of the thread that called it, and then both take turns there, each waiting for the other, while another processor
// idles: calls take twice as long, for tens of milliseconds.
#pragma once

#include <cstdint>

namespace ferrule {

class OmpTeam {
 public:
  // Takes OpenMP's function from a library that depends on it; without it nothing is ever moved.
  void Open(void* library);

  // Ends the calling thread's OpenMP threads, if it has any: others' sleep after each region, however short the rest,
  // where there are more of them than processors.
  static void Dismiss();

  // Around what the calling thread lets its OpenMP threads do.
  class Work {
   public:
    Work(const OmpTeam& team, int threads);
    ~Work();
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

   private:
    const bool many_;
  };

 private:
  using Parallel = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);
  Parallel parallel_ = nullptr;
};

}  // namespace ferrule

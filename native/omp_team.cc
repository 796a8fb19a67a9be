#include "omp_team.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <chrono>
#include <utility>

namespace ferrule {
namespace {

using Clock = std::chrono::steady_clock;

// After so long OpenMP's threads may have gone to sleep, and be woken anywhere.
constexpr auto kAwake = std::chrono::microseconds(60);

// What a thread knows of the threads that work for it.
struct Team {
  Clock::time_point used;
  int64_t switches = 0;
  bool there = false;
  bool waited = false;  // the thread slept until they were done: one came late, or had to share its processor
};
thread_local Team the_team;

using Pause = int (*)(int kind);
constexpr int kPauseSoft = 1;
std::atomic<Pause> pause_all{nullptr};

// How often the calling thread has slept.
int64_t Switches() {
  rusage usage;
  return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nvcsw : 0;
}

// The processors that the threads of a region are on, each claimed by the first one there.
class Places {
 public:
  // On every thread of the region.
  static void Take(void* self) { static_cast<Places*>(self)->TakeOne(); }

  // Returns false when a thread was there already.
  bool Claim(int processor) {
    const auto at = static_cast<size_t>(processor) / 64;
    if (processor < 0 || at >= claimed_.size()) return true;
    const uint64_t bit = uint64_t{1} << (processor % 64);
    return (claimed_[at].fetch_or(bit) & bit) == 0;
  }

 private:
  void TakeOne() {
    cpu_set_t allowed, free;
    if (pthread_equal(pthread_self(), caller_) || Claim(sched_getcpu()) ||
        sched_getaffinity(0, sizeof allowed, &allowed) != 0)
      return;
    free = allowed;
    for (size_t i = 0; i < claimed_.size() * 64 && i < CPU_SETSIZE; ++i) {
      if (claimed_[i / 64].load() >> (i % 64) & 1) CPU_CLR(i, &free);
    }
    // Away at once; it may still go wherever it could go before.
    if (CPU_COUNT(&free) == 0 || sched_setaffinity(0, sizeof free, &free) != 0) return;
    Claim(sched_getcpu());
    sched_setaffinity(0, sizeof allowed, &allowed);
  }

  std::array<std::atomic<uint64_t>, CPU_SETSIZE / 64> claimed_{};
  const pthread_t caller_ = pthread_self();  // stays where it is
};

}  // namespace

void OmpTeam::Open(void* library) {
  parallel_ = reinterpret_cast<Parallel>(dlsym(library, "GOMP_parallel"));
  pause_all.store(reinterpret_cast<Pause>(dlsym(library, "omp_pause_resource_all")));
}

void OmpTeam::Dismiss() {
  if (!std::exchange(the_team.there, false)) return;
  if (const Pause pause = pause_all.load()) pause(kPauseSoft);
}

OmpTeam::Work::Work(const OmpTeam& team, int threads) : many_(threads > 1 && team.parallel_ != nullptr) {
  if (!many_) return;
  if (the_team.waited || Clock::now() - the_team.used > kAwake) {
    Places places;
    places.Claim(sched_getcpu());
    team.parallel_(&Places::Take, &places, static_cast<unsigned>(threads), 0);
  }
  the_team.switches = Switches();
  the_team.there = true;
}

OmpTeam::Work::~Work() {
  if (!many_) return;
  the_team.waited = Switches() != the_team.switches;
  the_team.used = Clock::now();
}

}  // namespace ferrule

// The functions and what they promise are libgomp's ("The libgomp ABI" in its manual).
#include "openmp.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string_view>
#include <utility>

#include "rebind.h"
#include "thread_pool.h"
#include "vigil.h"

namespace ferrule {
namespace {

struct Region;

// What a thread is in the region that it is in.
struct Member {
  Region* region = nullptr;
  bool together = false;  // there are others in it, or around it
  long number = 0;
  long begin = 0, count = 0, step = 0, chunk = 0, turn = 0;  // of a loop whose iterations are shared out
};

thread_local Member me;
thread_local int wanted = 0;  // threads of the regions that the thread begins; 0 for all

// A parallel region: its members run at the same time, and may wait for one another.
struct Region {
  void (*body)(void*);
  void* data;
  uint32_t count;
  Member caller;  // what the caller was before
  ThreadPool::Team* team = nullptr;
  std::atomic<uint32_t> arrived{0}, round{0};

  static void Run(void* self, int64_t number, int64_t) {
    auto* region = static_cast<Region*>(self);
    const Member before = std::exchange(me, {.region = region, .together = true, .number = static_cast<long>(number)});
    region->body(region->data);
    me = before;
  }

  void Barrier() {
    const uint32_t now = round.load();
    if (arrived.fetch_add(1) + 1 == count) {
      arrived.store(0);
      round.fetch_add(1);
      return round.notify_all();
    }
    const Vigil vigil;
    for (int i = 1; round.load(std::memory_order_acquire) == now; ++i) {
      Pause();
      if (i % 64 == 0 && !vigil.GoesOn()) return round.wait(now);
    }
  }
};

int NumThreads() { return me.region ? static_cast<int>(me.region->count) : 1; }
int ThreadNum() { return static_cast<int>(me.number); }
int InParallel() { return me.together; }
int MaxThreads() { return wanted > 0 ? wanted : ThreadPool::Global().threads(); }

// The caller is the first member: it calls the body itself, and ParallelEnd then.
void ParallelStart(void (*body)(void*), void* data, unsigned threads) {
  const uint32_t count = me.together ? 1 : threads > 0 ? threads : static_cast<uint32_t>(MaxThreads());
  auto* region = new Region{.body = body, .data = data, .count = count, .caller = me};
  me = {.region = region, .together = me.together || count > 1};
  if (count > 1) region->team = ThreadPool::Global().StartTeam(static_cast<int>(count), &Region::Run, region);
}

void ParallelEnd() {
  Region* region = me.region;
  if (region->team) ThreadPool::Global().FinishTeam(region->team);
  me = region->caller;
  delete region;
}

void Parallel(void (*body)(void*), void* data, unsigned threads, unsigned) {
  ParallelStart(body, data, threads);
  body(data);
  ParallelEnd();
}

void Barrier() {
  if (me.region && me.region->count > 1) me.region->Barrier();
}

// Without a size of chunks each member has one range, the first ones an iteration more where they do not divide evenly;
// with one, every so many-th chunk.
bool LoopStaticNext(long* begin, long* end) {
  const long members = NumThreads();
  long first, last;
  if (me.chunk == 0) {
    if (me.turn > 0) return false;
    const long least = me.count / members, more = me.count % members;
    first = me.number * least + std::min(me.number, more);
    last = first + least + (me.number < more);
  } else {
    first = (me.turn * members + me.number) * me.chunk;
    last = std::min(first + me.chunk, me.count);
  }
  ++me.turn;
  if (first >= last) return false;
  *begin = me.begin + first * me.step;
  *end = me.begin + last * me.step;
  return true;
}

bool LoopStaticStart(long begin, long end, long step, long chunk, long* first, long* last) {
  const long count = step > 0 ? (end - begin + step - 1) / step : (end - begin + step + 1) / step;
  me.begin = begin, me.count = std::max(count, 0L), me.step = step, me.chunk = chunk, me.turn = 0;
  return LoopStaticNext(first, last);
}

void LoopEndNowait() {}

struct Entry {
  std::string_view name;
  void* function;
};

template <class F>
void* Address(F* function) {
  return reinterpret_cast<void*>(function);
}

void* Find(std::string_view name) {
  static const Entry entries[] = {
      {"GOMP_parallel_start", Address(&ParallelStart)},
      {"GOMP_parallel_end", Address(&ParallelEnd)},
      {"GOMP_parallel", Address(&Parallel)},
      {"GOMP_barrier", Address(&Barrier)},
      {"GOMP_loop_static_start", Address(&LoopStaticStart)},
      {"GOMP_loop_static_next", Address(&LoopStaticNext)},
      {"GOMP_loop_end_nowait", Address(&LoopEndNowait)},
      {"omp_get_max_threads", Address(&MaxThreads)},
      {"omp_get_num_threads", Address(&NumThreads)},
      {"omp_get_thread_num", Address(&ThreadNum)},
      {"omp_in_parallel", Address(&InParallel)},
  };
  for (const Entry& entry : entries)
    if (entry.name == name) return entry.function;
  return nullptr;
}

}  // namespace

bool UsePoolForOpenMp(void* library) {
  return Rebind(library, &Find, [](std::string_view name) {
    const bool openmp = name.starts_with("GOMP_") || name.starts_with("omp_") || name.starts_with("__kmpc_");
    return !openmp || Find(name) != nullptr;
  });
}

void SetOpenMpThreads(int count) { wanted = count; }

}  // namespace ferrule

// The pool: a fixed set of published jobs that workers and the caller take chunks of, without locks. Everything that a
// worker touches after its last chunk belongs to the pool, which is never destroyed; so callers may leave at once, and
// nothing is torn down while a process exits.
#include "thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "denormals.h"
#include "vigil.h"

namespace ferrule {
namespace {

using Clock = Vigil::Clock;

constexpr int kSlots = 16;           // jobs that may be spread at once; further ones run on their callers alone
constexpr int kChunksPerThread = 4;  // so that a slow core does not hold up the others
constexpr int kMaxThreads = 1024;
constexpr int kStayUs = 500;
constexpr std::chrono::microseconds kLeast{2};  // for which a worker stays awake where news come seldom
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

void FutexWait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}
void FutexWake(std::atomic<uint32_t>& word, int count) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

// CPUs that a control group's quota is worth (rounded up), or 0 when there is no quota.
int QuotaCpus() {
  double quota = -1, period = 0;
  std::string text;
  if (std::ifstream file("/sys/fs/cgroup/cpu.max"); file >> text >> period && text != "max") {
    quota = std::atof(text.c_str());
  } else if (std::ifstream v1("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"); v1 >> quota) {
    std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_period_us") >> period;
  }
  if (quota <= 0 || period <= 0) return 0;
  return std::max(1, static_cast<int>((quota + period - 1) / period));
}

int ChooseThreads() {
  if (const char* text = std::getenv("FERRULE_NUM_THREADS"); text && *text) {
    char* end = nullptr;
    long count = std::strtol(text, &end, 10);
    if (*end == '\0' && count >= 1 && count <= kMaxThreads) return static_cast<int>(count);
    std::fprintf(stderr, "ferrule: FERRULE_NUM_THREADS='%s' is not a number from 1 to %d; using all CPUs\n", text,
                 kMaxThreads);
  }
  int cpus = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cpus = CPU_COUNT(&set);
  if (int quota = QuotaCpus()) cpus = std::min(cpus, quota);
  return std::clamp(cpus, 1, kMaxThreads);
}

// What is left of a thread's share.
struct alignas(16) Share {
  std::atomic<int64_t> next{0};
  int64_t end = 0;
};

// Each thread begins with a share of its own, the same one of every job of a size: what a job has written is in the
// caches of those that read it in the next one. Who has finished helps the others.
struct Job {
  Share* shares = nullptr;
  int count = 0;  // of the shares
  int64_t chunk = 0;
  void (*body)(void*, int64_t, int64_t) = nullptr;
  void* context = nullptr;

  void Divide(int64_t n, int parts, Share* into) {
    shares = into;
    count = parts;
    const int64_t chunks = (n - 1) / chunk + 1;
    for (int i = 0; i < parts; ++i) {
      shares[i].next.store(Border(chunks, i) * chunk, std::memory_order_relaxed);
      shares[i].end = std::min(n, Border(chunks, i + 1) * chunk);
    }
  }

  // False where nothing was left; `taken` is called before the first piece.
  template <class Taken>
  bool Work(int thread, Taken taken) {
    bool worked = false;
    for (int i = 0, at = thread % count; i < count; ++i, at = at + 1 == count ? 0 : at + 1) {
      Share& share = shares[at];
      while (share.next.load(std::memory_order_relaxed) < share.end) {
        int64_t begin = share.next.fetch_add(chunk, std::memory_order_relaxed);
        if (begin >= share.end) break;
        if (!worked) taken();
        worked = true;
        body(context, begin, std::min(share.end, begin + chunk));
      }
    }
    return worked;
  }

 private:
  int64_t Border(int64_t chunks, int i) const { return chunks / count * i + chunks % count * i / count; }
};

// A place where a caller publishes its job. Workers announce themselves in `users` before they look at `job`, so once
// the caller has withdrawn the job and seen no users, nobody holds it.
struct alignas(64) Slot {
  std::atomic<bool> taken{false};
  std::atomic<Job*> job{nullptr};
  std::atomic<uint32_t> users{0};
  std::atomic<bool> waiting{false};
  std::unique_ptr<Share[]> shares;  // of the job
};

// What one worker listens to. Each has its own, and a job calls as many as it has shares for: those that are left
// asleep take no cycles from the others, and a job of a size has the same ones each time, with its data in their
// caches. Whoever calls a worker takes it: the next call goes to another, or finds all of them at work, which look for
// more before they listen again.
struct alignas(64) Bell {
  enum State : uint32_t { kAway, kListens, kSleeps };
  std::atomic<uint32_t> state{kAway};
};

thread_local bool inside_body = false;

}  // namespace

struct ThreadPool::Team {
  Job job;
  std::unique_lock<std::mutex> turn;  // held where the workers are the members, not threads of their own
  std::vector<std::thread> threads;
  bool inside = false;  // whether the caller was inside a body
};

namespace {

class Pool final : public ThreadPool {
 public:
  explicit Pool(int threads) : threads_(threads), bells_(static_cast<size_t>(std::max(1, threads - 1))) {
    for (Slot& slot : slots_) slot.shares = std::make_unique<Share[]>(static_cast<size_t>(threads));
  }

  int threads() const override { return threads_; }

  void ParallelFor(int64_t n, int64_t grain, int64_t least, void (*body)(void*, int64_t, int64_t),
                   void* context) override {
    if (n <= 0) return;
    grain = std::max<int64_t>(grain, 1);
    const int64_t parts = inside_body ? 1 : Parts(n, grain, std::max<int64_t>(least, 1));
    if (parts == 1) return body(context, 0, n);
    Job job;
    job.chunk = n / parts + (n % parts != 0);
    job.body = body;
    job.context = context;
    int64_t chunks = n / job.chunk + (n % job.chunk != 0);
    // A share's `next` passes its end by at most one chunk per thread.
    if (chunks == 1 || n > INT64_MAX - (kMaxThreads + 1) * std::min(job.chunk, INT64_MAX / (2 * kMaxThreads)))
      return body(context, 0, n);
    Slot* slot = TakeSlot();
    if (!slot) {
      inside_body = true;
      body(context, 0, n);
      inside_body = false;
      return;
    }
    Start(threads_ - 1);
    job.Divide(n, static_cast<int>(std::min<int64_t>(chunks, threads_)), slot->shares.get());
    slot->job.store(&job);
    Call(job.count - 1, static_cast<int>(std::min<int64_t>((n - 1) / grain, job.count - 1)),
         static_cast<int>(slot - slots_));
    Work(job, 0, [] {});
    slot->job.store(nullptr);
    AwaitUsers(*slot);
    slot->taken.store(false, std::memory_order_release);
  }

  int TeamThreads() override {
    Start(threads_ - 1);
    return workers_.load(std::memory_order_acquire) + 1;
  }

  Team* StartTeam(int count, void (*body)(void*, int64_t, int64_t), void* context) override {
    auto* team = new Team;
    team->inside = std::exchange(inside_body, true);
    team->job.body = body;
    team->job.context = context;
    team->job.chunk = 1;
    if (team->inside || count > threads_ || count > TeamThreads()) {
      for (int64_t i = 1; i < count; ++i) {
        team->threads.push_back(NewThread([=] {
          Denormals::ChooseForThread();
          inside_body = true;
          body(context, i, i + 1);
        }));
      }
      return team;
    }
    team->turn = std::unique_lock(team_mutex_);
    Slot& slot = slots_[kSlots];
    team->job.Divide(count, count, slot.shares.get());
    slot.shares[0].next.store(1, std::memory_order_relaxed);  // the caller's
    slot.job.store(&team->job);
    Call(count - 1, count - 1);
    return team;
  }

  // Who has reached the end waits for nobody in the body, nor does anybody wait for it: it may take what is left.
  void FinishTeam(Team* team) override {
    if (team->turn) {
      Slot& slot = slots_[kSlots];
      team->job.Work(0, [] {});
      slot.job.store(nullptr);
      AwaitUsers(slot);
    }
    for (std::thread& thread : team->threads) thread.join();
    inside_body = team->inside;
    delete team;
  }

  void Schedule(void (*task)(void*), void* context) override;

 private:
  // Into how many parts n iterations go: one for each thread that has enough to do, or several for each.
  int64_t Parts(int64_t n, int64_t grain, int64_t least) const {
    if (threads_ == 1) return 1;
    int64_t parts = (n - 1) / grain + 1;
    if (parts < threads_ && least < grain)
      parts = std::max(parts, 1 + Listening(std::min<int64_t>((n - 1) / least, threads_ - 1)));
    if (parts <= threads_) return parts;
    const int64_t rounds = (parts - 1) / threads_ + 1;
    return threads_ * std::min<int64_t>(rounds, kChunksPerThread);
  }

  // How many workers are awake and wait for work, up to `wanted`.
  int64_t Listening(int64_t wanted) const {
    const int all = workers_.load(std::memory_order_acquire);
    int64_t count = 0;
    for (int i = 0; i < all && count < wanted; ++i)
      count += bells_[static_cast<size_t>(i)].state.load(std::memory_order_relaxed) == Bell::kListens;
    return count;
  }

  // The members of a team cannot do without one another: where the system refuses a thread it is asked again.
  template <class F>
  static std::thread NewThread(F body) {
    for (;;) {
      try {
        return std::thread(body);
      } catch (const std::system_error&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }

  template <class Taken>
  static bool Work(Job& job, int thread, Taken taken) {
    inside_body = true;
    const bool worked = job.Work(thread, taken);
    inside_body = false;
    return worked;
  }

  Slot* TakeSlot() {
    for (Slot& slot : std::span(slots_, kSlots))
      if (!slot.taken.load(std::memory_order_relaxed) && !slot.taken.exchange(true, std::memory_order_acquire))
        return &slot;
    return nullptr;
  }

  static void AwaitUsers(Slot& slot) {
    if (slot.users.load() == 0) return;
    const Vigil vigil;
    for (int i = 1; slot.users.load() != 0; ++i) {
      Pause();
      if (i % 64 != 0 || vigil.GoesOn()) continue;
      slot.waiting.store(true);
      while (uint32_t users = slot.users.load()) FutexWait(slot.users, users);
      slot.waiting.store(false);
    }
  }

  // Tells `wanted` of the workers that there is something to do: those that are awake, then the others, of which it
  // wakes as many as make it `woken` in all. Those of several callers begin apart.
  void Call(int wanted, int woken, int caller = 0) {
    announcer_.store(sched_getcpu(), std::memory_order_relaxed);
    announced_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
    const int all = workers_.load(std::memory_order_acquire);
    const int first = all > 0 ? caller * ((all + 1) / 2) % all : 0;
    int called = 0;
    for (const uint32_t state : {Bell::kListens, Bell::kSleeps}) {
      const int most = state == Bell::kListens ? wanted : woken;
      for (int i = 0, at = first; i < all && called < most; ++i, at = at + 1 == all ? 0 : at + 1) {
        std::atomic<uint32_t>& bell = bells_[static_cast<size_t>(at)].state;
        if (bell.load() != state) continue;
        const uint32_t was = bell.exchange(Bell::kAway);
        if (was == Bell::kAway) continue;
        if (was == Bell::kSleeps) FutexWake(bell, 1);
        ++called;
      }
    }
  }

  // Makes sure that `count` workers exist, as far as the system allows.
  void Start(int count) {
    if (started_.load(std::memory_order_acquire) >= count) return;
    std::lock_guard lock(start_mutex_);
    for (int i = started_.load(); i < count; ++i) {
      // Signals belong to the threads of the application.
      sigset_t all, old;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &old);
      pthread_t thread;
      int error = pthread_create(&thread, nullptr, &Pool::Main, this);
      pthread_sigmask(SIG_SETMASK, &old, nullptr);
      if (error == 0) {
        pthread_setname_np(thread, ("ferrule-" + std::to_string(i + 1)).c_str());
        pthread_detach(thread);
        workers_.fetch_add(1);
      }
      started_.store(i + 1, std::memory_order_release);  // a refused thread is not asked for again
    }
  }

  static void* Main(void* self) {
    Denormals::ChooseForThread();
    static_cast<Pool*>(self)->Serve();
    return nullptr;
  }

  // Linux may wake a worker on the processor of the thread that wants it, above all in a virtual machine, where one
  // that idles counts as taken away: both then take turns there, for tens of milliseconds, at each call anew. The
  // worker leaves it, and is not woken there again. Where somebody else says where it may be, it may be there.
  class Place {
   public:
    void Leave(int taken) {
      if (taken < 0 || taken >= CPU_SETSIZE || sched_getcpu() != taken) return;
      const Clock::time_point now = Clock::now();
      if (now < next_) return;
      next_ = now + std::chrono::microseconds(kStayUs);
      cpu_set_t current, main;
      if (sched_getaffinity(0, sizeof current, &current) != 0) return;
      if (sched_getaffinity(getpid(), sizeof main, &main) != 0) return;
      // What this left may also be what all threads were told since, the first one with them.
      CPU_OR(&main, &main, &rest_);
      if (!left_ || !CPU_EQUAL(&current, &rest_) || CPU_EQUAL(&main, &rest_)) allowed_ = current;
      rest_ = allowed_;
      CPU_CLR(static_cast<size_t>(taken), &rest_);
      left_ = CPU_COUNT(&rest_) > 0 && sched_setaffinity(0, sizeof rest_, &rest_) == 0;
    }

   private:
    Clock::time_point next_;    // before it the worker stays: on a busy machine it would be moved again and again
    cpu_set_t allowed_, rest_;  // where it might be, and what is left of that
    bool left_ = false;
  };

  [[noreturn]] void Serve() {
    const int thread = serving_.fetch_add(1) + 1;  // the caller of a job is thread 0
    Bell& bell = bells_[static_cast<size_t>(thread - 1)];
    bool soon = true;  // whether the last news came while the worker would have been awake
    Place place;
    for (;;) {
      bell.state.exchange(Bell::kListens);
      if (WorkOnce(thread, bell)) continue;
      const Clock::time_point idle = Clock::now();
      uint32_t listens = Bell::kListens;
      if (!SpinUntilCalled(bell, idle, soon) && bell.state.compare_exchange_strong(listens, Bell::kSleeps)) {
        while (bell.state.load() == Bell::kSleeps) FutexWait(bell.state, Bell::kSleeps);
      }
      const Clock::duration gap(announced_.load(std::memory_order_relaxed) - idle.time_since_epoch().count());
      soon = gap < Vigil::kLongest;
      place.Leave(announcer_.load(std::memory_order_relaxed));
    }
  }

  static bool SpinUntilCalled(const Bell& bell, Clock::time_point from, bool soon) {
    const Vigil vigil(from);
    do {
      for (int i = 0; i < 32; ++i) {
        if (bell.state.load(std::memory_order_relaxed) == Bell::kAway) return true;
        Pause();
      }
    } while (soon ? vigil.GoesOn() : Clock::now() < from + kLeast);
    return false;
  }

  // Does what there is. A worker that was called while it looked, and has found something else first, calls another.
  bool WorkOnce(int thread, Bell& bell) {
    bool worked = false;
    auto taken = [&] {
      if (!worked && bell.state.exchange(Bell::kAway) == Bell::kAway) Call(1, 1);
    };
    if (threads_ > 1) {  // a pool of one thread has a worker for scheduled tasks only
      for (Slot& slot : slots_) {
        if (!slot.job.load()) continue;
        slot.users.fetch_add(1);
        if (Job* job = slot.job.load()) worked |= Work(*job, thread, taken);
        if (slot.users.fetch_sub(1) == 1 && slot.waiting.load()) FutexWake(slot.users, INT_MAX);
      }
    }
    if (pending_.load() > 0) worked |= RunTask(taken);
    return worked;
  }

  template <class Taken>
  bool RunTask(Taken taken) {
    std::pair<void (*)(void*), void*> task;
    {
      std::lock_guard lock(task_mutex_);
      if (tasks_.empty()) return false;
      task = tasks_.front();
      tasks_.pop_front();
      pending_.fetch_sub(1);
    }
    taken();
    task.first(task.second);
    return true;
  }

  const int threads_;
  std::atomic<int> started_{0}, workers_{0}, serving_{0};  // asked for, there, at work
  std::mutex start_mutex_, team_mutex_;
  std::vector<Bell> bells_;
  std::atomic<int> announcer_{-1};        // the processor of who called last
  std::atomic<Clock::rep> announced_{0};  // when that was
  Slot slots_[kSlots + 1];                // the last one is a team's
  std::mutex task_mutex_;
  std::deque<std::pair<void (*)(void*), void*>> tasks_;
  std::atomic<int> pending_{0};
};

std::atomic<Pool*> the_pool{nullptr};

// The child of a fork has none of the workers: it leaves the old pool alone (its locks may be held for ever) and makes
// a new one when needed. A ParallelFor on the old pool still finishes, on its caller.
void ForgetPool() { the_pool.store(nullptr); }

Pool& Current() {
  Pool* pool = the_pool.load(std::memory_order_acquire);
  if (pool) return *pool;
  static const int registered = pthread_atfork(nullptr, nullptr, &ForgetPool);
  (void)registered;
  auto* fresh = new Pool(ChooseThreads());
  if (the_pool.compare_exchange_strong(pool, fresh)) return *fresh;
  delete fresh;  // another thread was faster
  return *pool;
}

void Pool::Schedule(void (*task)(void*), void* context) {
  if (Pool& current = Current(); &current != this) return current.Schedule(task, context);
  Start(std::max(1, threads_ - 1));
  {
    std::lock_guard lock(task_mutex_);
    tasks_.emplace_back(task, context);
    pending_.fetch_add(1);
  }
  Call(1, 1);
}

}  // namespace

ThreadPool& ThreadPool::Global() { return Current(); }

}  // namespace ferrule

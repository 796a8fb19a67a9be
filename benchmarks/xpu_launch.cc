// Times the calls of a driver (native/driver.h) as the runtime makes them; compiled and run by xpu_launch.py.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "driver.h"

namespace {

using Clock = std::chrono::steady_clock;

double Micros(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::micro>(end - begin).count();
}

struct Bench {
  const FerruleDriver* driver;
  FerruleDevice* device;
  FerruleKernel* kernel;
  void* data[16];

  void Check(int code) {
    if (code) std::printf("error %d: %s\n", code, driver->last_error());
  }
  FerruleEvent* Launch(void* pointer, std::vector<FerruleEvent*> after) {
    FerruleEvent* event = nullptr;
    Check(driver->launch(device, kernel, 16, 64, &pointer, 1, {after.data(), after.size()}, &event));
    return event;
  }

  // Medians over rounds of `count` commands: until the last one is started, and until it has ended; microseconds each.
  void Time(const char* name, int count, const std::function<FerruleEvent*(int, FerruleEvent*)>& start,
            bool wait_each) {
    constexpr int kRounds = 15;
    std::vector<double> submits, totals;
    for (int round = 0; round < kRounds; ++round) {
      std::vector<FerruleEvent*> events;
      auto begin = Clock::now();
      for (int i = 0; i < count; ++i) {
        events.push_back(start(i, events.empty() ? nullptr : events.back()));
        if (wait_each) Check(driver->wait(events.back()));
      }
      auto submitted = Clock::now();
      for (FerruleEvent* event : events) Check(driver->wait(event));
      auto ended = Clock::now();
      for (FerruleEvent* event : events) driver->release(event);
      submits.push_back(Micros(begin, submitted) / count);
      totals.push_back(Micros(begin, ended) / count);
    }
    std::sort(submits.begin(), submits.end());
    std::sort(totals.begin(), totals.end());
    std::printf("%-34s started %6.1f us   ended %6.1f us\n", name, submits[kRounds / 2], totals[kRounds / 2]);
    std::fflush(stdout);
  }
};

}  // namespace

extern "C" void xpu_launch(const FerruleDriver* driver, FerruleDevice* device, FerruleKernel* kernel, FerruleCall* call,
                           void* scratch) {
  Bench b{driver, device, kernel, {}};
  for (void*& data : b.data) b.Check(driver->allocate(device, FERRULE_MEMORY_DEVICE, 1 << 16, &data));
  constexpr int kMany = 500;
  auto chain = [&](int, FerruleEvent* last) { return last ? b.Launch(b.data[0], {last}) : b.Launch(b.data[0], {}); };
  b.Time("kernels, each after the last", kMany, chain, false);
  b.Time("kernels, independent", kMany, [&](int i, FerruleEvent*) { return b.Launch(b.data[i % 16], {}); }, false);
  b.Time("kernel and wait", kMany, chain, true);
  auto copy = [&](int, FerruleEvent* last) {
    FerruleEvent* event = nullptr;
    b.Check(driver->copy(device, b.data[1], b.data[0], 4096, {&last, last ? size_t{1} : size_t{0}}, &event));
    return event;
  };
  b.Time("4 KB copies, each after the last", kMany, copy, false);
  b.Time("4 KB copy and wait", kMany, copy, true);
  if (call) {
    auto product = [&](int, FerruleEvent* last) {
      FerruleEvent* event = nullptr;
      b.Check(driver->call(device, call, b.data, b.data + 2, scratch, {&last, last ? size_t{1} : size_t{0}}, &event));
      return event;
    };
    b.Time("oneDNN 32x32 products, chained", kMany, product, false);
    auto mixed = [&](int i, FerruleEvent* last) { return i % 2 ? product(i, last) : chain(i, last); };
    b.Time("kernel, product, kernel, ...", kMany, mixed, false);
  }
  std::vector<FerruleEvent*> eight;
  for (int i = 0; i < 8; ++i) eight.push_back(b.Launch(b.data[i], {}));
  auto join = [&](int, FerruleEvent*) {
    FerruleEvent* event = nullptr;
    b.Check(driver->join(device, {eight.data(), eight.size()}, &event));
    return event;
  };
  b.Time("join of eight", kMany, join, false);
  for (FerruleEvent* event : eight) driver->release(event);
  for (void* data : b.data) driver->free(device, data);
}

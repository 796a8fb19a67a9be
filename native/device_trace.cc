#include "device_trace.h"

#include <algorithm>
#include <cstdio>

namespace ferrule {

DeviceTrace::Numbers DeviceTrace::NumbersOf(const Commands& commands) const {
  Numbers numbers;
  for (const Command& command : commands) {
    auto found = stands_for_.find(command.event());
    if (found != stands_for_.end()) numbers.insert(numbers.end(), found->second.begin(), found->second.end());
  }
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

void DeviceTrace::Began(const std::string* name, const Command& command, const Commands& after) {
  Numbers before = NumbersOf(after);
  stands_for_[command.event()] = {static_cast<uint32_t>(lines_.size())};
  lines_.push_back({name, command, std::move(before)});
}

void DeviceTrace::Joined(const Commands& after, const Command& done) {
  if (!done || stands_for_.contains(done.event())) return;  // one command alone is its own join
  stands_for_[done.event()] = NumbersOf(after);
  joins_.push_back(done);
}

std::string DeviceTrace::Text(const std::string& program, const Accelerator& accelerator) const {
  std::string text = "ferrule: run of " + program + " on " + accelerator.name() + ", times in us; the host waited " +
                     std::to_string(waits_) + " times inside\n";
  int64_t zero = -1;
  for (size_t i = 0; i < lines_.size(); ++i) {
    const Line& line = lines_[i];
    int64_t begin, end;
    if (!accelerator.Times(line.command, &begin, &end)) continue;
    if (zero < 0) zero = begin;
    char times[64];
    std::snprintf(times, sizeof times, "  %10.1f .. %10.1f  ", static_cast<double>(begin - zero) / 1000,
                  static_cast<double>(end - zero) / 1000);
    text += times + *line.name + " #" + std::to_string(i);
    for (size_t k = 0; k < line.after.size(); ++k) {
      text += (k == 0 ? " after #" : " #") + std::to_string(line.after[k]);
    }
    text += "\n";
  }
  return text;
}

}  // namespace ferrule

#include "profile.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <utility>

namespace ferrule {
namespace {

struct Row {
  double seconds = 0, flops = 0, bytes = 0;
  int64_t calls = 0;
};

// Billions a second; "-" for what is not known, so that nobody reads a zero as a measurement.
std::string Rate(double amount, double seconds) {
  if (amount <= 0 || seconds <= 0) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f", amount / seconds * 1e-9);
  return text;
}

}  // namespace

int DebugLevel() {
  const char* text = std::getenv("FERRULE_DEBUG");
  return text ? std::atoi(text) : 0;
}

std::string Profile::Table(const std::string& program) const {
  double total = std::chrono::duration<double>(Clock::now() - start_).count();
  std::map<std::string, Row> rows;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (entry.calls == 0) continue;
    Row& row = rows[work_[i].name];
    row.seconds += entry.seconds;
    row.calls += entry.calls;
    row.flops += work_[i].flops * static_cast<double>(entry.calls);
    row.bytes += work_[i].bytes * static_cast<double>(entry.calls);
  }
  std::vector<std::pair<std::string, Row>> order(rows.begin(), rows.end());
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  char line[160];
  std::snprintf(line, sizeof(line), " in %.1f us\n", total * 1e6);
  std::string text = "ferrule: ran " + program + line;
  std::snprintf(line, sizeof(line), "%12s %8s %10s %10s  %s\n", "us", "calls", "GB/s", "GFLOP/s", "kernel or call");
  text += line;
  for (const auto& [name, row] : order) {
    std::snprintf(line, sizeof(line), "%12.1f %8lld %10s %10s  ", row.seconds * 1e6, static_cast<long long>(row.calls),
                  Rate(row.bytes, row.seconds).c_str(), Rate(row.flops, row.seconds).c_str());
    text += line + name + "\n";
  }
  return text;
}

}  // namespace ferrule

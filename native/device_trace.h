// What a run on a driver's device did, for FERRULE_DEBUG=2: each command with its times and with those that it was told
// to wait for, and how often the host waited before all of them had been started.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "accelerator.h"

namespace ferrule {

class DeviceTrace {
 public:
  // A command that was started; `name` outlives the trace.
  void Began(const std::string* name, const Command& command, const Commands& after);
  // `done` stands for all of `after`.
  void Joined(const Commands& after, const Command& done);
  void HostWaited() { ++waits_; }

  // The commands in the order in which they were started. They have ended.
  std::string Text(const std::string& program, const Accelerator& accelerator) const;

 private:
  using Numbers = std::vector<uint32_t>;  // of commands, ascending
  Numbers NumbersOf(const Commands& commands) const;

  struct Line {
    const std::string* name;
    Command command;
    Numbers after;
  };
  std::vector<Line> lines_;
  std::map<const FerruleEvent*, Numbers> stands_for_;  // commands of earlier runs stand for none of this one
  std::vector<Command> joins_;                         // kept, so that no other event gets the address of one
  size_t waits_ = 0;
};

}  // namespace ferrule

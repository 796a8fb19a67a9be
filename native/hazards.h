// Which steps of a block must wait for which: the order that the program's data flow demands, and no more.
#pragma once

#include <cstdint>
#include <vector>

#include "program.h"
#include "program_reader.h"

namespace ferrule {

// What one step does with one slot.
struct Access {
  uint32_t slot;
  bool write;
};

struct Order {
  std::vector<uint32_t> after;   // earlier steps of the block, ascending
  std::vector<uint32_t> spaces;  // memory from outside that the step touches: see Hazards::SpaceOfParam
  bool exit = false;             // no later step of the block waits for it
};

// Memory is a number of spaces: the arena, one for each parameter, one for each output (a donated parameter and its
// output are one). Two accesses conflict when their ranges overlap and one of them writes.
class Hazards {
 public:
  Hazards(const Program& program, const ProgramData& data);

  // The order of a block, given what each of its steps accesses.
  std::vector<Order> Of(const std::vector<std::vector<Access>>& steps) const;
  // Everything that a step accesses, with the blocks inside it.
  std::vector<Access> AccessesOf(const StepData& step) const;

  // The numbers of spaces in Order::spaces.
  uint32_t SpaceOfParam(size_t param) const { return params_[param]; }
  uint32_t SpaceOfOutput(size_t output) const { return outputs_[output]; }
  size_t spaces() const { return spaces_; }

 private:
  struct Range {
    int64_t space = -1;  // -1: constants, which nobody writes
    int64_t begin = 0, end = 0;
  };

  const ProgramData& data_;
  std::vector<uint32_t> params_, outputs_;
  size_t spaces_ = 0;
  std::vector<Range> ranges_;  // of each slot; the arena is the space after all others
};

}  // namespace ferrule

// Running: steps to commands.
#include <cstring>
#include <variant>

#include "device_program.h"
#include "host_call.h"
#include "profile.h"

namespace ferrule {

struct DeviceProgram::Running {
  DeviceRun& run;
  const Code& code;
  std::vector<void*> slots;

  Accelerator& device() { return *run.accelerator; }
  DeviceTrace* trace() { return run.trace.get(); }
  void Started(const Command& command, const std::string& step, const Commands& after) {
    if (!command) return;
    run.started.push_back(command);
    if (trace()) trace()->Began(&step, command, after);
  }
  Status Join(const Commands& after, Command* done) {
    FERRULE_RETURN_IF_ERROR(device().Join(after, done));
    if (trace()) trace()->Joined(after, *done);
    return {};
  }
  // Before the host goes on with a value that the device makes.
  Status HostWait(const Commands& commands) {
    if (trace()) trace()->HostWaited();
    for (const Command& command : commands) FERRULE_RETURN_IF_ERROR(device().Wait(command));
    return {};
  }
  std::vector<void*> Pointers(const std::vector<uint32_t>& list) const {
    std::vector<void*> pointers;
    pointers.reserve(list.size());
    for (uint32_t slot : list) pointers.push_back(slots[slot]);
    return pointers;
  }
};

Status DeviceProgram::Submit(DeviceRun& run, Commands* exits) const {
  const Code* code = Find(run.accelerator);
  if (code == nullptr) return Internal("the program '" + name + "' was not prepared for " + run.accelerator->name());
  Running r{run, *code, {}};
  if (DebugLevel() >= 2) run.trace = std::make_unique<DeviceTrace>();
  r.slots.reserve(data_.slots.size());
  for (const SlotData& slot : data_.slots) {
    switch (slot.kind) {
      case SlotKind::kParam:
        r.slots.push_back(run.params[slot.where]);
        break;
      case SlotKind::kOutput:
        r.slots.push_back(run.outputs[slot.where]);
        break;
      case SlotKind::kConstant:
        // A constant without elements needs no memory.
        r.slots.push_back(code->constants ? static_cast<char*>(code->constants->data()) + slot.where : nullptr);
        break;
      case SlotKind::kArena:
        r.slots.push_back(static_cast<char*>(run.arena) + slot.where);
        break;
    }
  }
  return RunBlock(r, 0, {}, true, exits);
}

// The steps of a block wait for each other as their orders say, and those that wait for none for all of `entry`.
// `exits` are the commands after which the whole block has ended.
Status DeviceProgram::RunBlock(Running& r, uint32_t number, const Commands& entry, bool outermost,
                               Commands* exits) const {
  const std::vector<Step>& steps = blocks_[number];
  if (steps.empty()) {
    *exits = entry;
    return {};
  }
  Commands gate = entry;
  if (entry.size() > 2 && steps.size() > 1) {
    Command all;
    FERRULE_RETURN_IF_ERROR(r.Join(entry, &all));
    gate = {all};
  }
  Commands ended(steps.size());
  exits->clear();
  for (size_t i = 0; i < steps.size(); ++i) {
    const Order& order = steps[i].order;
    Commands after;
    for (uint32_t earlier : order.after) {
      if (ended[earlier]) after.push_back(ended[earlier]);
    }
    if (order.after.empty()) after.insert(after.end(), gate.begin(), gate.end());
    if (outermost) {
      for (uint32_t space : order.spaces) {
        const Commands& before = r.run.before[space];
        after.insert(after.end(), before.begin(), before.end());
      }
    }
    FERRULE_RETURN_IF_ERROR(RunStep(r, steps[i], after, &ended[i]));
    if (order.exit && ended[i]) exits->push_back(ended[i]);
  }
  return {};
}

Status DeviceProgram::RunStep(Running& r, const Step& step, const Commands& after, Command* done) const {
  if (auto* loop = std::get_if<WhileData>(step.data)) {
    return loop->trips >= 0 ? RunCounted(r, *loop, after, done) : RunWhile(r, *loop, after, done);
  }
  if (auto* branch = std::get_if<CaseData>(step.data)) return RunCase(r, *branch, after, done);
  Status status;
  if (auto* launch = std::get_if<LaunchData>(step.data)) {
    const std::vector<void*> pointers = r.Pointers(launch->slots);
    status = r.device().LaunchKernel(r.code.kernels[launch->function], launch->grid, launch->grain, pointers.data(),
                                     pointers.size(), after, done);
  } else if (auto* copy = std::get_if<CopyData>(step.data)) {
    if (r.slots[copy->dst] == r.slots[copy->src]) return r.Join(after, done);
    status = r.device().Copy(r.slots[copy->dst], r.slots[copy->src], copy->bytes, after, done);
  } else {
    const auto& call = std::get<CallData>(*step.data);
    if (r.code.calls[step.call].first == nullptr) return RunHostCall(r, step, call, after);
    status = RunDeviceCall(r, step, call, after, done);
  }
  if (!status.ok()) return Located(status, "the step '" + step.name + "' of the program '" + name + "'");
  r.Started(*done, step.name, after);
  return {};
}

// The device's condition decides, so the host has to look at it once per iteration.
Status DeviceProgram::RunWhile(Running& r, const WhileData& loop, const Commands& after, Command* done) const {
  Commands before = after, exits;
  const size_t first = r.run.started.size();
  for (;;) {
    FERRULE_RETURN_IF_ERROR(RunBlock(r, loop.cond, before, false, &exits));
    unsigned char more = 0;
    FERRULE_RETURN_IF_ERROR(ReadScalar(r, loop.predicate, 1, exits, &more));
    FERRULE_RETURN_IF_ERROR(CheckEnded(r, first));
    if (more == 0) break;
    FERRULE_RETURN_IF_ERROR(RunBlock(r, loop.body, {}, false, &exits));
    before = exits;
  }
  *done = Command();  // the last condition was read: everything before it has ended
  return {};
}

// All iterations are started at once. The host waits only when it is far ahead: a command that has been started holds
// memory.
Status DeviceProgram::RunCounted(Running& r, const WhileData& loop, const Commands& after, Command* done) const {
  constexpr size_t kAhead = 4096;
  Commands before = after, exits;
  const size_t first = r.run.started.size();
  for (int64_t i = 0; i < loop.trips; ++i) {
    FERRULE_RETURN_IF_ERROR(RunBlock(r, loop.body, before, false, &exits));
    before = exits;
    if (r.trace() || r.run.started.size() - first < kAhead) continue;
    FERRULE_RETURN_IF_ERROR(r.HostWait(before));
    before.clear();
    FERRULE_RETURN_IF_ERROR(CheckEnded(r, first));
  }
  return r.Join(before, done);
}

Status DeviceProgram::RunCase(Running& r, const CaseData& branch, const Commands& after, Command* done) const {
  size_t chosen = 0;
  if (branch.is_bool) {
    unsigned char truth = 0;
    FERRULE_RETURN_IF_ERROR(ReadScalar(r, branch.index, 1, after, &truth));
    chosen = truth != 0 ? 0 : 1;
  } else {
    int32_t index = 0;
    FERRULE_RETURN_IF_ERROR(ReadScalar(r, branch.index, 4, after, &index));
    const auto last = static_cast<int32_t>(branch.branches.size()) - 1;
    chosen = static_cast<size_t>(index < 0 || index > last ? last : index);
  }
  Commands exits;
  FERRULE_RETURN_IF_ERROR(RunBlock(r, branch.branches[chosen], {}, false, &exits));
  return r.Join(exits, done);
}

// Waits for `after`, then reads a value of up to 8 bytes.
Status DeviceProgram::ReadScalar(Running& r, uint32_t slot, int64_t bytes, const Commands& after, void* value) const {
  FERRULE_RETURN_IF_ERROR(r.HostWait(after));
  return r.device().CopyNow(value, r.slots[slot], bytes);
}

// The commands from number `from` on are known to have ended: asks each for its error, and forgets them.
Status DeviceProgram::CheckEnded(Running& r, size_t from) const {
  if (r.trace()) return {};
  for (size_t i = from; i < r.run.started.size(); ++i) FERRULE_RETURN_IF_ERROR(r.device().Wait(r.run.started[i]));
  r.run.started.resize(from);
  return {};
}

Status DeviceProgram::RunDeviceCall(Running& r, const Step& step, const CallData& call, const Commands& after,
                                    Command* done) const {
  const auto& [prepared, scratch_bytes] = r.code.calls[step.call];
  void* scratch = nullptr;
  if (scratch_bytes > 0) {
    auto storage = Storage::Allocate(r.run.memory, scratch_bytes);
    if (!storage.ok()) return storage.status();
    scratch = (*storage)->data();
    r.run.held.push_back(std::move(*storage));
  }
  const std::vector<void*> operands = r.Pointers(call.operands), results = r.Pointers(call.results);
  return r.device().Call(prepared, operands.data(), results.data(), scratch, after, done);
}

Status DeviceProgram::RunHostCall(Running& r, const Step& step, const CallData& call, const Commands& after) const {
  FERRULE_RETURN_IF_ERROR(r.HostWait(after));
  std::vector<void*> operands = r.Pointers(call.operands), results = r.Pointers(call.results);
  const Prepared& prepared = *host_calls_[step.call];
  if (r.device().host_access()) return prepared.Run(operands.data(), results.data(), *r.run.context);
  // Copies in memory of the host. Results are copied in, too: a call may update an operand in place. Slots that are the
  // same memory have to be the same copy.
  std::map<void*, Ref<Storage>> copies;
  const auto stage = [&](std::vector<void*>* pointers, const std::vector<Shape>& shapes) -> Status {
    for (size_t i = 0; i < pointers->size(); ++i) {
      Ref<Storage>& copy = copies[(*pointers)[i]];
      const int64_t bytes = ByteSize(shapes[i]);
      if (!copy || copy->bytes() < bytes) {
        auto storage = Storage::Allocate(r.run.host_memory, bytes);
        if (!storage.ok()) return storage.status();
        FERRULE_RETURN_IF_ERROR(r.device().CopyNow((*storage)->data(), (*pointers)[i], bytes));
        copy = std::move(*storage);
      }
    }
    return {};
  };
  const std::vector<void*> homes = results;
  FERRULE_RETURN_IF_ERROR(stage(&results, call.desc.results));
  FERRULE_RETURN_IF_ERROR(stage(&operands, call.desc.operands));
  for (auto* pointers : {&operands, &results}) {
    for (void*& pointer : *pointers) pointer = copies[pointer]->data();
  }
  FERRULE_RETURN_IF_ERROR(prepared.Run(operands.data(), results.data(), *r.run.context));
  for (size_t i = 0; i < homes.size(); ++i) {
    FERRULE_RETURN_IF_ERROR(r.device().CopyNow(homes[i], results[i], ByteSize(call.desc.results[i])));
  }
  return {};
}

}  // namespace ferrule

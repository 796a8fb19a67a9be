// Loading and interpreting programs. At load a program becomes flat arrays, so that a step costs tens of nanoseconds.
#include "program.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <variant>

#include "cpu_features.h"
#include "device_program.h"
#include "host_call.h"
#include "large_copy.h"
#include "linker.h"
#include "part_call.h"
#include "profile.h"
#include "program_reader.h"
#include "thread_pool.h"
#include "trial.h"

namespace ferrule {
namespace {

constexpr int64_t kAlignment = 64;
constexpr size_t kStackSlots = 512;     // slot tables up to this size live on the stack
constexpr size_t kStackPointers = 128;  // and a step's pointers up to this number
constexpr int64_t kAwake = 4;           // a thread that is awake may have so many times less to do than one to be woken

struct Step {
  enum Kind : uint8_t { kLaunch, kCopy, kWhile, kCase, kCaseBool, kCall } kind;
  uint32_t first = 0, count = 0;  // the step's entries in `indices`: slots, or a case's branches
  uint32_t a = 0, b = 0, c = 0;  // copy: dst, src · while: cond, predicate, body · case: index · call: operands, number
  CompiledFn function = nullptr;
  int64_t grid = 0, grain = 0, least = 0;  // copy: grid is the number of bytes · while: that of iterations, or -1
};

struct Block {
  uint32_t first, count;  // in `steps`
};

struct LaunchArgs {
  CompiledFn function;
  void** pointers;
};

// Pointers of one step or slot table: on the stack unless there are unusually many.
template <size_t N>
class PointerArray {
 public:
  explicit PointerArray(size_t count) : heap_(count > N ? new void*[count] : nullptr) {}
  void** data() { return heap_ ? heap_.get() : stack_; }

 private:
  void* stack_[N];
  std::unique_ptr<void*[]> heap_;
};

class LoadedProgram final : public Program {
 public:
  Status Init();
  Status Run(void* const* params, void* const* outputs, void* arena, ExecContext& context) const override;

 private:
  struct Placed {
    uint32_t slot;
    int64_t where;  // number of a parameter or output, or offset in the arena
  };

  void Flatten(const ProgramData& data);
  Status PrepareCalls(ProgramData& data);
  Status PlaceConstants(std::string_view constants);
  uint32_t AddIndices(const std::vector<uint32_t>& list);
  void DescribeWork(const ProgramData& data);
  template <class Timer>
  Status RunBlock(uint32_t block, void* const* slots, ExecContext& context, Timer& timer) const;
  Status RunCall(const Step& step, void* const* slots, ExecContext& context) const;

  struct Free {
    void operator()(char* p) const { std::free(p); }
  };

  std::unique_ptr<CodeImage> image_;
  std::unique_ptr<char, Free> constants_copy_;
  const char* constants_ = nullptr;
  std::vector<Step> steps_;
  std::vector<Block> blocks_;
  std::vector<uint32_t> indices_;
  std::vector<std::unique_ptr<Prepared>> calls_;
  std::vector<void*> slot_template_;  // constants filled in, the rest null
  std::vector<Placed> param_slots_, output_slots_, arena_slots_;
  std::vector<StepWork> work_;  // of each step; empty unless runs are measured
};

Status LoadedProgram::Init() {
  ProgramData data;
  ProgramReader reader(bytes);
  FERRULE_RETURN_IF_ERROR(reader.ReadHead(this, &data));
  if (target != "cpu")
    return FailedPrecondition("the program '" + name + "' is for the target '" + target +
                              "', this device runs programs for 'cpu'\n  fix: compile it for this device");
  if (auto missing = MissingCpuFeatures(features); !missing.empty()) {
    std::string list;
    for (const std::string& feature : missing) list += (list.empty() ? "" : ", ") + feature;
    return FailedPrecondition("the program '" + name + "' needs processor features that this machine lacks: " + list +
                              "\n  fix: compile it on this machine, or for a processor without them");
  }
  auto image = CodeImage::Link(data.objects);
  if (!image.ok()) return image.status();
  image_ = std::move(image.value());
  code_bytes = data.objects.empty() ? 0 : image_->bytes();
  std::vector<CompiledFn> functions;
  for (const auto& [object, symbol, flops, moved] : data.functions) {
    void* address = image_->Find(object, symbol);
    if (!address)
      return InvalidArgument("the Ferrule program is damaged\n  why: object " + std::to_string(object) +
                             " does not define the function '" + symbol + "'");
    functions.push_back(reinterpret_cast<CompiledFn>(address));
  }
  FERRULE_RETURN_IF_ERROR(reader.ReadBlocks(functions, this, &data));
  FERRULE_RETURN_IF_ERROR(PlaceConstants(data.constants));
  FERRULE_RETURN_IF_ERROR(PrepareCalls(data));
  Flatten(data);
  // Flatten keeps function numbers; give the launches their addresses.
  for (Step& step : steps_)
    if (step.kind == Step::kLaunch) step.function = functions[step.a];
  if (DebugLevel() >= 2) DescribeWork(data);
  return {};
}

void LoadedProgram::DescribeWork(const ProgramData& data) {
  for (const auto& block : data.blocks) {
    for (const StepData& item : block) {
      StepWork& work = work_.emplace_back();
      if (auto* launch = std::get_if<LaunchData>(&item)) {
        const FunctionData& function = data.functions[launch->function];
        work = {function.symbol, function.flops, function.bytes};
      } else if (auto* copy = std::get_if<CopyData>(&item)) {
        work = {"copy", 0, 2.0 * static_cast<double>(copy->bytes)};
      } else if (auto* call = std::get_if<CallData>(&item)) {
        work = {call->desc.target, call->flops, 0};
        const CallDesc seen = call->ffi ? call->desc : AsSeen(call->desc);
        for (const auto* side : {&seen.operands, &seen.results})
          for (const Shape& shape : *side) work.bytes += static_cast<double>(ByteSize(shape));
      }
    }
  }
}

Status LoadedProgram::PlaceConstants(std::string_view constants) {
  constants_ = constants.data();
  if (constants.empty() || reinterpret_cast<uintptr_t>(constants_) % kAlignment == 0) return {};
  size_t size = (constants.size() + kAlignment - 1) / kAlignment * kAlignment;
  constants_copy_.reset(static_cast<char*>(std::aligned_alloc(kAlignment, size)));
  if (!constants_copy_)
    return OutOfMemory("no memory for " + std::to_string(constants.size()) + " bytes of constants of the program '" +
                       name + "'");
  std::memcpy(constants_copy_.get(), constants.data(), constants.size());
  constants_ = constants_copy_.get();
  return {};
}

// What the operands of a call are, so that the call may keep other forms of them.
void FindSources(const ProgramData& data, const std::vector<ParamInfo>& params, CallData* call) {
  for (uint32_t slot : call->operands) {
    const auto& [kind, where, size] = data.slots[slot];
    OperandSource& source = call->desc.sources.emplace_back();
    if (kind == SlotKind::kConstant) source = {OperandSource::kConstant, where};
    if (kind == SlotKind::kParam && params[where].alias == -1) source = {OperandSource::kParam, where};
  }
}

Status LoadedProgram::PrepareCalls(ProgramData& data) {
  for (auto& block : data.blocks) {
    for (StepData& step : block) {
      auto* call = std::get_if<CallData>(&step);
      if (!call) continue;
      FindSources(data, params, call);
      auto prepared = PrepareHostCall(*call, name, compiler);
      if (!prepared.ok()) return prepared.status();
      calls_.push_back(std::move(prepared.value()));
    }
  }
  return {};
}

uint32_t LoadedProgram::AddIndices(const std::vector<uint32_t>& list) {
  auto first = static_cast<uint32_t>(indices_.size());
  indices_.insert(indices_.end(), list.begin(), list.end());
  return first;
}

void LoadedProgram::Flatten(const ProgramData& data) {
  slot_template_.resize(data.slots.size());
  for (uint32_t i = 0; i < data.slots.size(); ++i) {
    const SlotData& slot = data.slots[i];
    switch (slot.kind) {
      case SlotKind::kParam:
        param_slots_.push_back({i, slot.where});
        break;
      case SlotKind::kOutput:
        output_slots_.push_back({i, slot.where});
        break;
      case SlotKind::kConstant:
        // Steps never write constants; the tables are not const because they hold other slots too.
        slot_template_[i] = const_cast<char*>(constants_) + slot.where;
        break;
      case SlotKind::kArena:
        arena_slots_.push_back({i, slot.where});
        break;
    }
  }
  uint32_t call_number = 0;
  for (const auto& block : data.blocks) {
    blocks_.push_back({static_cast<uint32_t>(steps_.size()), static_cast<uint32_t>(block.size())});
    for (const StepData& item : block) {
      Step& step = steps_.emplace_back();
      if (auto* launch = std::get_if<LaunchData>(&item)) {
        step.kind = Step::kLaunch;
        step.a = launch->function;
        step.grid = launch->grid;
        step.grain = std::max<int64_t>(launch->grain, 1);
        step.least = std::max<int64_t>(step.grain / kAwake, 1);
        step.first = AddIndices(launch->slots);
        step.count = static_cast<uint32_t>(launch->slots.size());
      } else if (auto* copy = std::get_if<CopyData>(&item)) {
        step.kind = Step::kCopy;
        step.a = copy->dst;
        step.b = copy->src;
        step.grid = copy->bytes;
      } else if (auto* loop = std::get_if<WhileData>(&item)) {
        step.kind = Step::kWhile;
        step.a = loop->cond;
        step.b = loop->predicate;
        step.c = loop->body;
        step.grid = loop->trips;
      } else if (auto* branch = std::get_if<CaseData>(&item)) {
        step.kind = branch->is_bool ? Step::kCaseBool : Step::kCase;
        step.a = branch->index;
        step.first = AddIndices(branch->branches);
        step.count = static_cast<uint32_t>(branch->branches.size());
      } else {
        const auto& call = std::get<CallData>(item);
        step.kind = Step::kCall;
        step.a = static_cast<uint32_t>(call.operands.size());
        step.b = call_number++;
        step.first = AddIndices(call.operands);
        AddIndices(call.results);
        step.count = static_cast<uint32_t>(call.operands.size() + call.results.size());
      }
    }
  }
}

Status LoadedProgram::Run(void* const* params, void* const* outputs, void* arena, ExecContext& context) const {
  size_t count = slot_template_.size();
  PointerArray<kStackSlots> table(count);
  void** slots = table.data();
  if (count) std::memcpy(slots, slot_template_.data(), count * sizeof(void*));
  for (const Placed& p : param_slots_) slots[p.slot] = params[p.where];
  for (const Placed& p : output_slots_) slots[p.slot] = outputs[p.where];
  for (const Placed& p : arena_slots_) slots[p.slot] = static_cast<char*>(arena) + p.where;
  if (work_.empty()) [[likely]] {
    NoProfile nothing;
    return RunBlock(0, slots, context, nothing);
  }
  Profile profile(work_);
  Status status = RunBlock(0, slots, context, profile);
  std::fputs(profile.Table(name).c_str(), stderr);
  return status;
}

template <class Timer>
Status LoadedProgram::RunBlock(uint32_t number, void* const* slots, ExecContext& context, Timer& timer) const {
  const Step* step = steps_.data() + blocks_[number].first;
  const Step* end = step + blocks_[number].count;
  for (; step != end; ++step) {
    switch (step->kind) {
      case Step::kLaunch: {
        if (step->grid == 0) break;
        PointerArray<kStackPointers> array(step->count);
        void** pointers = array.data();
        const uint32_t* index = indices_.data() + step->first;
        for (uint32_t i = 0; i < step->count; ++i) pointers[i] = slots[index[i]];
        timer.Begin();
        if (step->grid <= step->least) {
          step->function(pointers, 0, step->grid);
          timer.End(step - steps_.data());
          break;
        }
        LaunchArgs args{step->function, pointers};
        context.pool->ParallelFor(
            step->grid, step->grain, step->least,
            [](void* p, int64_t begin, int64_t end) {
              auto* launch = static_cast<LaunchArgs*>(p);
              launch->function(launch->pointers, begin, end);
            },
            &args);
        timer.End(step - steps_.data());
        break;
      }
      case Step::kCopy:
        if (slots[step->a] == slots[step->b] || step->grid == 0) break;
        timer.Begin();
        LargeCopy(*context.pool, slots[step->a], slots[step->b], step->grid);
        timer.End(step - steps_.data());
        break;
      case Step::kWhile:
        for (int64_t i = 0; i < step->grid; ++i) FERRULE_RETURN_IF_ERROR(RunBlock(step->c, slots, context, timer));
        for (int64_t left = 1; step->grid < 0;) {
          FERRULE_RETURN_IF_ERROR(RunBlock(step->a, slots, context, timer));
          if (*static_cast<const unsigned char*>(slots[step->b]) == 0) break;
          if (--left == 0 && (left = Trial::More()) == 0) return Status(Code::kAborted, "the run was cut short");
          FERRULE_RETURN_IF_ERROR(RunBlock(step->c, slots, context, timer));
        }
        break;
      case Step::kCase: {
        int32_t index;
        std::memcpy(&index, slots[step->a], sizeof(index));
        if (index < 0 || static_cast<uint32_t>(index) >= step->count) index = static_cast<int32_t>(step->count) - 1;
        FERRULE_RETURN_IF_ERROR(RunBlock(indices_[step->first + index], slots, context, timer));
        break;
      }
      case Step::kCaseBool: {
        bool truth = *static_cast<const unsigned char*>(slots[step->a]) != 0;
        FERRULE_RETURN_IF_ERROR(RunBlock(indices_[step->first + (truth ? 0 : 1)], slots, context, timer));
        break;
      }
      case Step::kCall:
        timer.Begin();
        FERRULE_RETURN_IF_ERROR(RunCall(*step, slots, context));
        timer.End(step - steps_.data());
        break;
    }
  }
  return {};
}

Status LoadedProgram::RunCall(const Step& step, void* const* slots, ExecContext& context) const {
  PointerArray<kStackPointers> array(step.count);
  void** pointers = array.data();
  const uint32_t* index = indices_.data() + step.first;
  for (uint32_t i = 0; i < step.count; ++i) pointers[i] = slots[index[i]];
  return calls_[step.b]->Run(pointers, pointers + step.a, context);
}

template <class T>
Result<std::shared_ptr<const Program>> LoadAs(std::string bytes) {
  auto program = std::make_shared<T>();
  program->bytes = std::move(bytes);
  FERRULE_RETURN_IF_ERROR(program->Init());
  return std::shared_ptr<const Program>(std::move(program));
}

}  // namespace

PackedForms* Program::ConstantForms(int64_t offset, Allocator* allocator) const {
  std::lock_guard lock(forms_mutex_);
  return &constant_forms_.try_emplace(offset, Ref<Allocator>::Share(allocator)).first->second;
}

Result<std::shared_ptr<const Program>> Program::Load(std::string bytes) {
  try {
    if (PeekTarget(bytes) == "xpu") return LoadAs<DeviceProgram>(std::move(bytes));
    return LoadAs<LoadedProgram>(std::move(bytes));
  } catch (const std::bad_alloc&) {
    return OutOfMemory("there is not enough memory to load the program");
  }
}

}  // namespace ferrule

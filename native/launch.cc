#include "launch.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <optional>

#include "denormals.h"
#include "scratch.h"
#include "thread_pool.h"
#include "trial.h"

namespace ferrule {
namespace {

// Of a kTimed program. Handing a run to the device's thread and hearing of its end costs a tenth of this.
constexpr std::chrono::microseconds kShortRun{50};
// Of a program whose callers wait for it. Of longer runs the hand-overs are too small a part to be worth the risk that
// this caller has other work to do.
constexpr std::chrono::microseconds kAwaitedRun{5000};

std::string Argument(size_t index) { return "argument " + std::to_string(index); }

}  // namespace

Launch::Launch(LoadedExecutable* executable, Device* device, PJRT_LogicalDeviceIds ids, ExecuteContext* context)
    : executable_(Ref<LoadedExecutable>::Share(executable)),
      device_(device),
      ids_(ids),
      context_(Ref<ExecuteContext>::Share(context)),
      inputs_(program().params.size()) {}

Status Launch::CheckArgument(size_t index, const Buffer* buffer) const {
  const Shape& expected = program().params[index].shape;
  if (buffer == nullptr) return InvalidArgument(Argument(index) + " of `" + program().name + "` is null");
  if (buffer->dtype != expected.dtype || !buffer->dims.Equals(expected.dims)) {
    return InvalidArgument(Argument(index) + " of `" + program().name + "` must be " +
                           ShapeText(expected.dtype, expected.dims.data(), expected.dims.size()) + ", got " +
                           buffer->TypeText());
  }
  const Layout layout = executable_->executable->param_layouts[index];
  if (buffer->layout != layout) [[unlikely]] {
    const size_t rank = buffer->dims.size();
    return InvalidArgument(Argument(index) + " of `" + program().name + "` has the layout " +
                           LayoutText(buffer->layout, rank) + ", the program was compiled for " +
                           LayoutText(layout, rank) +
                           "; compile it for the argument's layout, or convert the argument");
  }
  if (buffer->client.get() != device_->client) [[unlikely]] {
    return InvalidArgument(Argument(index) + " of `" + program().name +
                           "` belongs to another client of this plugin; put the data on a device of the client that "
                           "loaded the program");
  }
  if (buffer->device() != device_) {
    return InvalidArgument(Argument(index) + " of `" + program().name + "` lies on " +
                           buffer->device()->description->text + ", the program runs on " + device_->description->text +
                           "; copy it there first (jax.device_put)");
  }
  return {};
}

Status Launch::Prepare(PJRT_Buffer* const* arguments, const PJRT_ExecuteOptions& options) {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    Buffer* buffer = From(arguments[i]);
    FERRULE_RETURN_IF_ERROR(CheckArgument(i, buffer));
    Ref<Contents> contents = buffer->contents();
    if (!contents) [[unlikely]]
      return buffer->Use((Argument(i) + " of `" + program().name + "`").c_str()).status();
    const bool donate = program().params[i].alias != -1;
    any_donated_ |= donate;
    Input& input = inputs_[i];
    input.buffer = buffer;
    input.contents = std::move(contents);
    input.donate = donate;
  }
  if (!any_donated_) return {};
  for (size_t k = 0; k < options.num_non_donatable_input_indices; ++k) {
    const int64_t index = options.non_donatable_input_indices[k];
    if (index >= 0 && index < static_cast<int64_t>(inputs_.size())) inputs_[index].donate = false;
  }
  return CheckDuplicates();
}

// The same buffer in two places, one of them donated, would be read after it was overwritten.
Status Launch::CheckDuplicates() const {
  std::vector<std::pair<const Buffer*, size_t>> order;
  order.reserve(inputs_.size());
  for (size_t i = 0; i < inputs_.size(); ++i) order.emplace_back(inputs_[i].buffer, i);
  std::sort(order.begin(), order.end());
  for (size_t k = 1; k < order.size(); ++k) {
    const size_t first = order[k - 1].second, second = order[k].second;
    if (order[k - 1].first != order[k].first || !(inputs_[first].donate || inputs_[second].donate)) continue;
    const bool both = inputs_[first].donate && inputs_[second].donate;
    return InvalidArgument("the same buffer is passed to `" + program().name + "` as arguments " +
                           std::to_string(first) + " and " + std::to_string(second) + ", and " +
                           (both ? "both are donated" : "one of them is donated") +
                           "; an attempt to donate the same buffer twice, or to donate and use it, cannot be served: "
                           "pass a copy, or do not donate it");
  }
  return {};
}

void Launch::TakeDonated() {
  if (!any_donated_) return;
  for (Input& input : inputs_) {
    if (!input.donate) continue;
    bool pinned = false;
    Ref<Contents> taken = input.buffer->Take(&pinned);
    // Deleted by another thread since Prepare: what we hold serves the run, but it is not ours to overwrite.
    input.reusable = taken && !pinned;
    if (taken) input.contents = std::move(taken);
  }
}

void Launch::PutBackDonated() {
  if (!any_donated_) return;
  for (Input& input : inputs_) {
    if (input.donate) input.buffer->PutBack(std::move(input.contents));
  }
}

int64_t Launch::Watch() {
  const bool matters = !device_->accelerator && !Small() && !(program().flags & (Program::kPython | Program::kUnknown));
  return run_ = matters ? device_->last_run.Begin() : 0;
}

bool Launch::Awaited() const {
  return run_ != 0 && program().last_run.load(std::memory_order_relaxed) <= kAwaitedRun && program().habit->Awaited();
}

bool Launch::CanRunInline() {
  // A callback may run programs itself, in threads of its own too, and wait for them: it must not occupy the queue.
  if (program().flags & Program::kPython) return true;
  if (device_->accelerator) return false;
  if (Timed()) {
    // A run that is cut short starts anew, so it may not have written to what it reads.
    if (any_donated_) return false;
    trial_ = Awaited() ? kAwaitedRun : kShortRun;
    if (program().last_run.load(std::memory_order_relaxed) > trial_) return false;
  } else if (!Awaited() && !Small()) {
    return false;
  }
  if (!device_->queue.Idle()) return false;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (!inputs_[i].contents->ready->IsReady()) return false;
  }
  return true;
}

Memory* Launch::OutputMemory(size_t k) const {
  return device_->memories()[executable_->executable->output_kind_ids[k]];
}

// Alone with the memory, so that an output may take it: no other run, copy or view still reads it. On an accelerator
// runs in flight may; the program then waits for them.
bool Launch::MayReuse(const Contents& contents, size_t output) {
  if (!contents.Unique() || contents.storage->read_only()) return false;
  if (!device_->accelerator) return contents.storage->Unique();
  return contents.storage->OnlyInFlight(&before_[program().on_device()->hazards().SpaceOfOutput(output)]);
}

Result<Ref<Storage>> Launch::Allocate(Allocator* allocator, int64_t bytes) {
  auto allocated = Storage::Allocate(allocator, bytes);
  // What runs in flight hold comes back when they have ended.
  if (!allocated.ok() && allocated.status().code() == Code::kResourceExhausted && device_->in_flight.Wait()) {
    return Storage::Allocate(allocator, bytes);
  }
  return allocated;
}

Status Launch::Bind() {
  const Executable& executable = *executable_->executable;
  storage_ = InlineVector<Ref<Storage>, kInline>(program().outputs.size());
  for (size_t k = 0; k < storage_.size(); ++k) {
    const int64_t bytes = executable.output_bytes[k];
    Allocator* allocator = OutputMemory(k)->allocator.get();
    if (const int64_t donor = executable.donors[k]; donor >= 0 && inputs_[donor].reusable) {
      const Contents& contents = *inputs_[donor].contents;
      if (contents.storage->bytes() >= bytes && MayReuse(contents, k)) {
        storage_[k] = contents.storage;
        continue;
      }
    }
    auto allocated = Allocate(allocator, bytes);
    if (!allocated.ok()) return allocated.status();
    storage_[k] = std::move(*allocated);
  }
  if (program().arena_bytes > 0) {
    auto allocated = Allocate(device_->allocator(), program().arena_bytes);
    if (!allocated.ok()) return allocated.status();
    arena_ = std::move(*allocated);
  }
  return {};
}

PackedForms* Launch::Forms(void* self, const OperandSource& source) {
  const auto* launch = static_cast<const Launch*>(self);
  Allocator* allocator = launch->device_->allocator();
  switch (source.kind) {
    case OperandSource::kParam:
      return launch->inputs_[source.where].contents->Forms(allocator);
    case OperandSource::kConstant:
      return PackedForms::Enabled() ? launch->program().ConstantForms(source.where, allocator) : nullptr;
    default:
      return nullptr;
  }
}

ExecContext Launch::MakeContext(Scratch* scratch) const {
  static std::atomic<int64_t> next_run{1};
  ExecContext context;
  context.pool = &ThreadPool::Global();
  context.device_ordinal = device_->ordinal;
  context.run_id = next_run.fetch_add(1, std::memory_order_relaxed);
  context.ffi_context = context_ ? &context_->user_data : nullptr;
  context.allocate = Scratch::Allocate;
  context.allocate_self = scratch;
  context.forms = Forms;
  context.forms_self = const_cast<Launch*>(this);
  context.replica_id = ids_.replica;
  context.partition_id = ids_.partition;
  context.rendezvous = rendezvous_.get();
  return context;
}

Status Launch::Run() {
  if (device_->accelerator) return SubmitAndWait();
  InlineVector<void*, 2 * kInline> params(inputs_.size()), outputs(storage_.size());
  for (size_t i = 0; i < inputs_.size(); ++i) params[i] = inputs_[i].contents->storage->data();
  for (size_t k = 0; k < storage_.size(); ++k) outputs[k] = storage_[k]->data();
  Scratch scratch(device_->allocator());
  ExecContext context = MakeContext(&scratch);
  const Denormals mode(Denormals::Mode::kChosen);
  const auto begin = Small() ? std::chrono::steady_clock::time_point() : std::chrono::steady_clock::now();
  try {
    Status status = program().Run(params.data(), outputs.data(), arena_ ? arena_->data() : nullptr, context);
    if (!Small()) program().last_run.store(std::chrono::steady_clock::now() - begin, std::memory_order_relaxed);
    return status;
  } catch (const std::bad_alloc&) {
    return OutOfMemory("the host ran out of memory while running `" + program().name + "`");
  } catch (const std::exception& e) {
    return Internal("running `" + program().name + "`: " + e.what());
  }
}

// An input that failed fails every output: errors are sticky.
Status Launch::WaitForInputs() {
  const DeviceProgram* on_device = program().on_device();
  if (on_device != nullptr) before_.assign(on_device->hazards().spaces(), {});
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const Contents& contents = *inputs_[i].contents;
    const Event& ready = *contents.ready;
    if (on_device != nullptr && !ready.IsReady() && contents.submitted.load(std::memory_order_acquire)) {
      before_[on_device->hazards().SpaceOfParam(i)].push_back(contents.pending);
      continue;
    }
    if (!ready.Succeeded()) FERRULE_RETURN_IF_ERROR(ready.Await());
  }
  return {};
}

PJRT_Buffer* Launch::MakeOutput(size_t k, Ref<Contents> contents) const {
  const Shape& shape = program().outputs[k].shape;
  contents->run = run_;
  return NewBuffer(OutputMemory(k), shape.dtype, shape.dims.data(), shape.dims.size(), std::move(contents),
                   executable_->executable->output_layouts[k]);
}

Status Launch::RunInline(PJRT_Buffer** outputs, Ref<Event>* done) {
  Status status = WaitForInputs();
  if (status.ok()) {
    TakeDonated();
    if (Status bound = Bind(); !bound.ok()) {
      PutBackDonated();
      if (rendezvous_) rendezvous_->Leave(member_, bound);
      return bound;
    }
    std::optional<Trial> trial;
    if (trial_.count()) trial.emplace(trial_);
    status = Run();
    if (trial && trial->over()) {
      storage_ = {};
      arena_ = nullptr;
      return {};
    }
  } else {
    TakeDonated();
  }
  if (rendezvous_) rendezvous_->Leave(member_, status);
  // What a callback raises is the call's own error. On the outputs, one of which may be the token of an ordered effect,
  // it would fail every later program with that effect.
  if (!status.ok() && (program().flags & Program::kPython)) return status;
  *done = status.ok() ? Event::Done() : Event::Failed(status);
  for (size_t k = 0; k < program().outputs.size(); ++k) {
    outputs[k] = MakeOutput(k, Ref<Contents>::Make(*done, status.ok() ? std::move(storage_[k]) : nullptr));
  }
  return {};
}

// On the device's worker thread.
void Launch::Complete() {
  if (device_->accelerator) return CompleteOnAccelerator();
  Status status = WaitForInputs();
  if (status.ok()) status = Bind();
  if (status.ok()) status = Run();
  if (rendezvous_) rendezvous_->Leave(member_, status);
  arena_ = nullptr;
  // Inputs go before anyone is told, so that a consumer finds their memory free, and donated memory its alone.
  inputs_ = {};
  for (size_t k = 0; status.ok() && k < contents_.size(); ++k) contents_[k]->storage = std::move(storage_[k]);
  contents_ = {};
  done_->Set(std::move(status));  // the ready event of every output, too
}

WorkQueue::Addition Launch::Queued(Launch launch, PJRT_Buffer** outputs, Ref<Event>* done) {
  auto queued = std::make_shared<Launch>(std::move(launch));
  queued->TakeDonated();
  queued->done_ = *done = Event::New();
  const size_t count = queued->program().outputs.size();
  queued->contents_ = InlineVector<Ref<Contents>, kInline>(count);
  for (size_t k = 0; k < count; ++k) {
    queued->contents_[k] = Ref<Contents>::Make(queued->done_);
    outputs[k] = queued->MakeOutput(k, queued->contents_[k]);
  }
  Device* device = queued->device_;
  return {&device->queue, [queued = std::move(queued)] { queued->Complete(); }, *done};
}

void Launch::Enqueue(Launch launch, PJRT_Buffer** outputs, Ref<Event>* done) {
  WorkQueue::Addition queued = Queued(std::move(launch), outputs, done);
  queued.queue->Add(std::move(queued.task), std::move(queued.done));
}

void Launch::EnqueueAll(std::vector<Launch> launches, PJRT_Buffer** const* outputs, Ref<Event>* done) {
  std::vector<WorkQueue::Addition> queued;
  for (size_t d = 0; d < launches.size(); ++d) queued.push_back(Queued(std::move(launches[d]), outputs[d], &done[d]));
  WorkQueue::AddAll(std::move(queued));
}

}  // namespace ferrule

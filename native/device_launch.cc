// Launches on an accelerator. The device's worker thread starts a program's commands and goes on; a second thread waits
// for them and completes the outputs. A program whose inputs are still being computed is started at once: it waits on
// the device.
#include <cstdio>
#include <exception>

#include "launch.h"
#include "profile.h"
#include "scratch.h"

namespace ferrule {
namespace {

// The temporaries and outputs of runs in flight take at most this part of the memory, unless one alone needs more.
constexpr int64_t kShareInFlight = 4;

// Waits for all commands, also after a failure: memory is in use until then.
Status WaitForAll(Accelerator& accelerator, const Commands& commands) {
  Status first;
  for (const Command& command : commands) {
    Status status = accelerator.Wait(command);
    if (first.ok()) first = std::move(status);
  }
  return first;
}

Status Named(const Status& status, const std::string& program) {
  if (status.ok()) return status;
  return {status.code(), "running `" + program + "`: " + status.message()};
}

}  // namespace

// A run whose commands have been started.
struct Launch::Flight {
  Ref<LoadedExecutable> executable;
  Ref<Accelerator> accelerator;
  DeviceRun run;
  Command last;                    // ends with the run
  std::vector<Ref<Storage>> used;  // each knows `last` as a user
  std::vector<Ref<Event>> inputs;  // of those that were not ready
  Ref<Event> done;

  void Use(const Ref<Storage>& storage) {
    if (last) storage->AddUser(last);
    used.push_back(storage);
  }

  void Finish() {
    Status status = Named(WaitForAll(*accelerator, run.started), executable->executable->program->name);
    for (const Ref<Event>& input : inputs) {
      // An input that failed fails the outputs, with its own error.
      if (Status of_input = input->Await(); !of_input.ok()) status = std::move(of_input);
    }
    if (run.trace) {
      const std::string& name = executable->executable->program->name;
      std::fputs(run.trace->Text(name, *accelerator).c_str(), stderr);
    }
    for (const Ref<Storage>& storage : used) {
      if (last) storage->RemoveUser(last);
    }
    used.clear();
    run = {};
    last = {};
    done->Set(std::move(status));
  }
};

Status Launch::Submit(DeviceRun* run, Commands* exits) {
  const DeviceProgram& program = *this->program().on_device();
  Accelerator* accelerator = device_->accelerator.get();
  FERRULE_RETURN_IF_ERROR(program.Prepare(accelerator, device_->allocator()));
  std::vector<void*> params(inputs_.size()), outputs(storage_.size());
  for (size_t i = 0; i < inputs_.size(); ++i) params[i] = inputs_[i].contents->storage->data();
  for (size_t k = 0; k < storage_.size(); ++k) outputs[k] = storage_[k]->data();
  Scratch scratch(device_->host_allocator());
  ExecContext context = MakeContext(&scratch);
  run->accelerator = accelerator;
  run->memory = device_->allocator();
  run->host_memory = device_->host_allocator();
  run->context = &context;
  run->params = params.data();
  run->outputs = outputs.data();
  run->arena = arena_ ? arena_->data() : nullptr;
  run->before = std::move(before_);
  Status status;
  try {
    status = program.Submit(*run, exits);
  } catch (const std::bad_alloc&) {
    status = OutOfMemory("the host ran out of memory");
  } catch (const std::exception& e) {
    status = Internal(e.what());
  }
  run->context = nullptr;
  run->params = run->outputs = nullptr;
  return status;
}

// For programs with callbacks, on the caller's thread.
Status Launch::SubmitAndWait() {
  DeviceRun run;
  Commands exits;
  Status status = Submit(&run, &exits);
  Status ended = WaitForAll(*device_->accelerator, run.started);
  return Named(status.ok() ? ended : status, program().name);
}

void Launch::CompleteOnAccelerator() {
  auto flight = std::make_shared<Flight>();
  flight->executable = executable_;
  flight->accelerator = device_->accelerator;
  flight->done = done_;
  Status status = WaitForInputs();
  int64_t bytes = program().arena_bytes;
  for (int64_t output : executable_->executable->output_bytes) bytes += output;
  device_->in_flight.Reserve(bytes, device_->allocator()->limit() / kShareInFlight);
  if (status.ok()) status = Bind();
  if (status.ok()) {
    Commands exits;
    status = Submit(&flight->run, &exits);
    if (status.ok()) status = device_->accelerator->Join(exits, &flight->last);
    if (!status.ok()) {
      (void)WaitForAll(*device_->accelerator, flight->run.started);
      status = Named(status, program().name);
    }
  }
  if (rendezvous_) rendezvous_->Leave(member_, status);
  if (!status.ok()) {
    flight->run = {};
    arena_ = nullptr;
    storage_ = {};
    inputs_ = {};
    contents_ = {};
    done_->Set(std::move(status));
    return;
  }
  if (flight->last) flight->run.started.push_back(flight->last);
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const Contents& contents = *inputs_[i].contents;
    flight->Use(contents.storage);
    if (!contents.ready->Succeeded()) flight->inputs.push_back(contents.ready);
  }
  if (arena_) flight->Use(arena_);
  for (size_t k = 0; k < contents_.size(); ++k) {
    flight->Use(storage_[k]);
    contents_[k]->storage = std::move(storage_[k]);
    contents_[k]->pending = flight->last;
    contents_[k]->submitted.store(true, std::memory_order_release);
  }
  arena_ = nullptr;
  storage_ = {};
  inputs_ = {};
  contents_ = {};
  device_->in_flight.Add([flight] { flight->Finish(); }, done_, bytes);
}

}  // namespace ferrule

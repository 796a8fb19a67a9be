// One run of a program on one device, from the checks of its arguments to the events of its outputs.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "buffer.h"
#include "device_program.h"
#include "executable.h"
#include "execute_context.h"
#include "inline_vector.h"
#include "ref.h"
#include "rendezvous.h"
#include "status.h"

namespace ferrule {

class Scratch;

class Launch {
 public:
  Launch() = default;
  Launch(LoadedExecutable* executable, Device* device, PJRT_LogicalDeviceIds ids, ExecuteContext* context);

  // The run is one of several devices' that may meet in collectives; this one has the number `member`.
  void Join(std::shared_ptr<Rendezvous> rendezvous, int member) {
    rendezvous_ = std::move(rendezvous);
    member_ = member;
  }

  // Checks the arguments and takes hold of their contents. Changes nothing.
  Status Prepare(PJRT_Buffer* const* arguments, const PJRT_ExecuteOptions& options);

  // Takes the contents of the donated arguments, which are deleted from here on. Cannot fail.
  void TakeDonated();
  void PutBackDonated();

  // Gives the run its number, where it is of interest whether the caller waits for it; else 0.
  int64_t Watch();

  // Whether the program may run now on the calling thread.
  bool CanRunInline();

  // Gives every output its memory, a donated parameter's where possible, and the temporaries theirs.
  Status Bind();
  // Runs the bound program.
  Status Run();

  // Runs now: the outputs are complete, or failed, on return. An error returned means that there are no outputs:
  // nothing has happened, or the program has callbacks and one of them failed. Leaves `done` null when a kTimed program
  // turned out to take long: it must be put into the queue.
  Status RunInline(PJRT_Buffer** outputs, Ref<Event>* done);
  // Makes pending outputs and puts the run into the device's queue.
  static void Enqueue(Launch launch, PJRT_Buffer** outputs, Ref<Event>* done);
  // The same for several devices at one point in time: their runs come in the same order as other such runs everywhere.
  static void EnqueueAll(std::vector<Launch> launches, PJRT_Buffer** const* outputs, Ref<Event>* done);

 private:
  static constexpr size_t kInline = 8;
  struct Input {
    Buffer* buffer = nullptr;  // valid only while Execute runs
    Ref<Contents> contents;
    bool donate = false;    // the program and the caller agree to donate it
    bool reusable = false;  // taken, and nobody outside holds its address
  };

  Status CheckArgument(size_t index, const Buffer* buffer) const;
  Status CheckDuplicates() const;
  Status WaitForInputs();
  void Complete();
  Result<Ref<Storage>> Allocate(Allocator* allocator, int64_t bytes);
  bool MayReuse(const Contents& contents, size_t output);
  // What the steps of this run may use.
  ExecContext MakeContext(Scratch* scratch) const;
  static PackedForms* Forms(void* self, const OperandSource& source);

  // On an accelerator (device_launch.cc).
  struct Flight;
  Status Submit(DeviceRun* run, Commands* exits);
  Status SubmitAndWait();
  void CompleteOnAccelerator();
  static WorkQueue::Addition Queued(Launch launch, PJRT_Buffer** outputs, Ref<Event>* done);
  Memory* OutputMemory(size_t k) const;
  PJRT_Buffer* MakeOutput(size_t k, Ref<Contents> contents) const;

  const Program& program() const { return *executable_->executable->program; }
  bool Timed() const { return program().flags & Program::kTimed; }
  // The caller will wait for the run at once, as far as one knows.
  bool Awaited() const;
  bool Small() const { return program().flags & Program::kSmall; }

  Ref<LoadedExecutable> executable_;
  Device* device_ = nullptr;
  PJRT_LogicalDeviceIds ids_{};
  Ref<ExecuteContext> context_;
  bool any_donated_ = false;
  std::chrono::microseconds trial_{0};  // for so long, where what runs inline may turn out to take longer
  int64_t run_ = 0;                     // its number (LastRun)
  InlineVector<Input, kInline> inputs_;
  InlineVector<Ref<Storage>, kInline> storage_;    // of the outputs, after Bind
  Ref<Storage> arena_;                             // of the temporaries, after Bind
  InlineVector<Ref<Contents>, kInline> contents_;  // of the outputs of a queued run
  Ref<Event> done_;                                // of a queued run
  std::shared_ptr<Rendezvous> rendezvous_;         // with the other devices, if there are any
  int member_ = 0;
  std::vector<Commands> before_;  // on an accelerator: DeviceRun::before
};

}  // namespace ferrule

// A program for a driver's device: its steps become commands on an out-of-order queue, each waiting only for the
// commands whose data it needs. The host waits for the predicates of loops and branches, and for calls that run on the
// host.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "accelerator.h"
#include "device_trace.h"
#include "hazards.h"
#include "linker.h"
#include "program.h"
#include "program_reader.h"

namespace ferrule {

// One run of a device program, while its commands are being started and until they have ended.
struct DeviceRun {
  Accelerator* accelerator = nullptr;
  Allocator* memory = nullptr;       // of the device
  Allocator* host_memory = nullptr;  // that the device copies to and from
  ExecContext* context = nullptr;    // for calls that run on the host
  void* const* params = nullptr;
  void* const* outputs = nullptr;
  void* arena = nullptr;
  // By space (Hazards): what must have ended before the memory of a parameter or output is touched.
  std::vector<Commands> before;

  Commands started;                    // every command whose end is not known yet
  std::vector<Ref<Storage>> held;      // memory for library calls
  std::unique_ptr<DeviceTrace> trace;  // only when runs are traced
};

class DeviceProgram final : public Program {
 public:
  Status Init();

  // Loads the code on the device, unless that has been done; with the first error that the device's compiler finds.
  Status Prepare(Accelerator* accelerator, Allocator* memory) const;
  // Starts everything. After an error some commands may be running: `run.started` lists them.
  Status Submit(DeviceRun& run, Commands* exits) const;
  // What is missing on the device; empty when it can run the program.
  static std::string MissingFeatures(const std::string& features, const FerruleDeviceInfo& info);

  const Hazards& hazards() const { return *hazards_; }

  Status Run(void* const*, void* const*, void*, ExecContext&) const override;
  const DeviceProgram* on_device() const override { return this; }

 private:
  // What a program has on one device.
  struct Code {
    ~Code();
    Ref<Accelerator> accelerator;
    std::vector<FerruleModule*> modules;
    std::vector<FerruleKernel*> kernels;                  // by function; null for host functions
    std::vector<std::pair<FerruleCall*, int64_t>> calls;  // by call number, with scratch bytes; null for host calls
    Ref<Storage> constants;
  };
  struct Step {
    const StepData* data;
    uint32_t call = 0;  // number of a call step
    Order order;
    std::string name;
  };

  Status PrepareCalls();
  Result<std::unique_ptr<Code>> Build(Accelerator* accelerator, Allocator* memory) const;
  Status BuildCall(const CallData& call, Code* code) const;
  const Code* Find(const Accelerator* accelerator) const;

  struct Running;
  Status RunBlock(Running& r, uint32_t block, const Commands& entry, bool outermost, Commands* exits) const;
  Status RunStep(Running& r, const Step& step, const Commands& after, Command* done) const;
  Status RunWhile(Running& r, const WhileData& loop, const Commands& after, Command* done) const;
  Status RunCounted(Running& r, const WhileData& loop, const Commands& after, Command* done) const;
  Status RunCase(Running& r, const CaseData& branch, const Commands& after, Command* done) const;
  Status RunDeviceCall(Running& r, const Step& step, const CallData& call, const Commands& after, Command* done) const;
  Status RunHostCall(Running& r, const Step& step, const CallData& call, const Commands& after) const;
  Status ReadScalar(Running& r, uint32_t slot, int64_t bytes, const Commands& after, void* value) const;
  Status CheckEnded(Running& r, size_t from) const;

  ProgramData data_;
  std::unique_ptr<CodeImage> image_;                   // functions that host calls get as attributes
  std::vector<std::unique_ptr<Prepared>> host_calls_;  // by call number; null for the driver's
  std::vector<std::vector<Step>> blocks_;
  std::unique_ptr<Hazards> hazards_;

  mutable std::mutex mutex_;  // guards codes_
  mutable std::map<const Accelerator*, std::unique_ptr<Code>> codes_;
};

}  // namespace ferrule

// A loaded program: the binary form of src/ferrule/program.py, its code linked into memory, its library calls prepared.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "awaited.h"
#include "calls.h"
#include "packed.h"
#include "status.h"

namespace ferrule {

class Allocator;
class DeviceProgram;
class Rendezvous;
class ThreadPool;

// What a step may use while a program runs on one device.
struct ExecContext {
  ThreadPool* pool = nullptr;  // never null during a run
  int device_ordinal = 0;      // local ordinal of the device
  int64_t run_id = 0;
  void* ffi_context = nullptr;  // the PJRT_ExecuteContext's user data, or null
  // Scratch memory for library calls; freed when the run ends. Null when memory ran out.
  void* (*allocate)(void* self, int64_t bytes) = nullptr;
  void* allocate_self = nullptr;
  // Other forms of an operand that is the same in other runs, too; null where there are none to be had.
  PackedForms* (*forms)(void* self, const OperandSource& source) = nullptr;
  void* forms_self = nullptr;
  int replica_id = 0, partition_id = 0;
  Rendezvous* rendezvous = nullptr;  // of the devices of this run; null when there is one only
};

struct ParamInfo {
  Shape shape;
  std::vector<int64_t> layout;  // minor to major; empty for row-major
  std::string memory_kind, sharding;
  int64_t alias;  // -1 not donated, -2 donated, k >= 0 donated into output k
};
struct OutputInfo {
  Shape shape;
  std::vector<int64_t> layout;
  std::string memory_kind, sharding;
};

class Program {
 public:
  enum Flags : uint32_t { kSmall = 1, kPython = 2, kTimed = 4, kUnknown = 8 };

  // Checks magic, format, checksum, target and CPU features; links the code; prepares the calls.
  static Result<std::shared_ptr<const Program>> Load(std::string bytes);

  virtual ~Program() = default;

  // Runs to completion on the calling thread (kernels may spread over the pool). `params[i]` and `outputs[i]` are
  // addresses of dense data in the parameters' and outputs' layouts, 64-byte aligned unless they alias host memory
  // (then at least element aligned); `arena` has arena_bytes() bytes at 64-byte alignment. An output may share the
  // address of a parameter that the program donates into it. Thread safe.
  virtual Status Run(void* const* params, void* const* outputs, void* arena, ExecContext& context) const = 0;

  // Other forms of a constant, kept with the program.
  PackedForms* ConstantForms(int64_t offset, Allocator* allocator) const;

  // The program as one for a driver's device; null on the cpu target.
  virtual const DeviceProgram* on_device() const { return nullptr; }

  std::string bytes;  // the serialized form, as given to Load
  std::string compiler, target, features, name, fingerprint, text;
  int64_t replicas = 1, partitions = 1;
  std::vector<int64_t> device_assignment;
  std::vector<ParamInfo> params;
  std::vector<OutputInfo> outputs;
  uint32_t flags = 0;
  std::vector<std::pair<std::string, double>> cost;
  int64_t arena_bytes = 0, constant_bytes = 0, code_bytes = 0;
  // What the last run took; not of a kSmall program.
  mutable std::atomic<std::chrono::nanoseconds> last_run{std::chrono::nanoseconds::zero()};
  const std::shared_ptr<Habit> habit = std::make_shared<Habit>();

 private:
  mutable std::mutex forms_mutex_;
  mutable std::map<int64_t, PackedForms> constant_forms_;  // by offset
};

// Bytes that one element of a PJRT_Buffer_Type takes in device memory; 0 for tokens and unknown types.
int64_t ElementBytes(int dtype);
inline int64_t ByteSize(const Shape& s) { return s.elements() * ElementBytes(s.dtype); }

}  // namespace ferrule

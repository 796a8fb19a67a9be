// Reads the binary form of a program (the layout is told in src/ferrule/program.py). Bytes are not trusted: every
// count, index, offset and size is checked here, so that the interpreter need not.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "calls.h"
#include "program.h"
#include "status.h"

namespace ferrule {

enum class SlotKind : uint8_t { kParam = 0, kOutput = 1, kConstant = 2, kArena = 3 };

struct SlotData {
  SlotKind kind;
  int64_t where, size;
};

struct LaunchData {
  uint32_t function;
  int64_t grid, grain;
  std::vector<uint32_t> slots;
  uint32_t writes;  // how many of the last slots the kernel writes
};
struct CopyData {
  uint32_t dst, src;
  int64_t bytes;
};
struct WhileData {
  uint32_t cond, predicate, body;
  int64_t trips;  // how often the body runs; -1: as long as the predicate is true
};
struct CaseData {
  uint32_t index;
  bool is_bool;
  std::vector<uint32_t> branches;
};
struct CallData {
  CallDesc desc;
  bool ffi;
  std::vector<uint32_t> operands, results;
  double flops = 0;
  std::string where;  // the user's source line, for errors
};
using StepData = std::variant<LaunchData, CopyData, WhileData, CaseData, CallData>;

struct FunctionData {
  uint32_t object;
  std::string symbol;
  double flops, bytes;  // of one whole launch
};

struct ProgramData {
  std::string_view constants;
  std::vector<std::string_view> objects;
  std::vector<FunctionData> functions;
  std::vector<SlotData> slots;
  std::vector<std::vector<StepData>> blocks;  // references between blocks have no cycles
};

class ProgramReader {
 public:
  // `program.bytes` must outlive the reader and the views in `data`.
  explicit ProgramReader(std::string_view bytes) : bytes_(bytes) {}

  // Magic, format, checksum, then everything up to the slots.
  Status ReadHead(Program* program, ProgramData* data);
  // The blocks and the text; `functions` are the addresses of data->functions, for attributes that name one.
  Status ReadBlocks(const std::vector<CompiledFn>& functions, Program* program, ProgramData* data);

 private:
  template <class T>
  T Get();
  std::string_view GetBytes();
  std::string GetString() { return std::string(GetBytes()); }
  // A list's length; each item takes at least `item_bytes`, so a length that cannot fit is found before any allocation.
  uint32_t GetCount(size_t item_bytes);
  template <class T>
  std::vector<T> GetList();
  Shape GetShape();
  std::vector<int64_t> GetLayout(const Shape& shape);
  Value GetValue(const std::vector<CompiledFn>& functions, int depth);
  Dict GetDict(const std::vector<CompiledFn>& functions, int depth);
  void GetOperands(const ProgramData& data, std::vector<Shape>* shapes, std::vector<uint32_t>* slots);
  uint32_t GetSlot(const ProgramData& data, int64_t bytes);
  StepData GetStep(const std::vector<CompiledFn>& functions, const ProgramData& data, uint32_t blocks);
  void Check(bool condition, const char* why);
  void CheckSlots(const Program& program, const ProgramData& data);
  Status Failure() const;

  std::string_view bytes_;
  size_t at_ = 0;
  std::string error_;  // the first thing that was wrong; reads give zeros from then on
};

// The target of a serialized program, without any check; empty when there is none to be found.
std::string PeekTarget(std::string_view bytes);

// The checksum of zlib's crc32.
uint32_t Crc32(std::string_view data);

}  // namespace ferrule

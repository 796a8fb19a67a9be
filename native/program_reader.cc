#include "program_reader.h"

#include <array>
#include <cstring>
#include <limits>

#include "layout.h"

namespace ferrule {
namespace {

constexpr char kMagic[8] = {'F', 'E', 'R', 'R', 'U', 'L', 'E', '\0'};
constexpr uint32_t kFormat = 6;
constexpr int kMaxDepth = 200;  // of nested attributes and of nested blocks
constexpr int64_t kMaxBytes = int64_t{1} << 47;

// Eight tables, so that eight bytes are taken at a time: constants can be large.
const std::array<std::array<uint32_t, 256>, 8>& CrcTables() {
  static const auto tables = [] {
    std::array<std::array<uint32_t, 256>, 8> t{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int k = 0; k < 8; ++k) c = c & 1 ? 0xedb88320u ^ (c >> 1) : c >> 1;
      t[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; ++i)
      for (int k = 1; k < 8; ++k) t[k][i] = t[0][t[k - 1][i] & 255] ^ (t[k - 1][i] >> 8);
    return t;
  }();
  return tables;
}

// The deepest chain of references below each block, or a failure when blocks refer to each other in a circle.
bool BlocksNestWithin(const std::vector<std::vector<StepData>>& blocks, int limit) {
  std::vector<std::vector<uint32_t>> children(blocks.size());
  for (size_t b = 0; b < blocks.size(); ++b) {
    for (const StepData& step : blocks[b]) {
      if (auto* loop = std::get_if<WhileData>(&step)) {
        children[b].push_back(loop->cond);
        children[b].push_back(loop->body);
      } else if (auto* branch = std::get_if<CaseData>(&step)) {
        children[b].insert(children[b].end(), branch->branches.begin(), branch->branches.end());
      }
    }
  }
  // Peel blocks without unpeeled parents, level by level; a circle never gets peeled.
  std::vector<int64_t> parents(blocks.size());
  for (const auto& list : children)
    for (uint32_t child : list) ++parents[child];
  std::vector<uint32_t> level;
  for (uint32_t b = 0; b < blocks.size(); ++b)
    if (parents[b] == 0) level.push_back(b);
  size_t peeled = 0;
  for (int depth = 0; !level.empty(); ++depth) {
    if (depth > limit) return false;
    std::vector<uint32_t> next;
    for (uint32_t b : level) {
      ++peeled;
      for (uint32_t child : children[b])
        if (--parents[child] == 0) next.push_back(child);
    }
    level = std::move(next);
  }
  return peeled == blocks.size();
}

}  // namespace

uint32_t Crc32(std::string_view data) {
  const auto& t = CrcTables();
  uint32_t crc = 0xffffffffu;
  const char* p = data.data();
  size_t left = data.size();
  for (; left >= 8; p += 8, left -= 8) {
    uint32_t low, high;
    std::memcpy(&low, p, 4);
    std::memcpy(&high, p + 4, 4);
    low ^= crc;
    crc = t[7][low & 255] ^ t[6][low >> 8 & 255] ^ t[5][low >> 16 & 255] ^ t[4][low >> 24] ^ t[3][high & 255] ^
          t[2][high >> 8 & 255] ^ t[1][high >> 16 & 255] ^ t[0][high >> 24];
  }
  for (; left; ++p, --left) crc = t[0][(crc ^ static_cast<unsigned char>(*p)) & 255] ^ (crc >> 8);
  return ~crc;
}

std::string PeekTarget(std::string_view bytes) {
  size_t at = 16;  // magic, format, checksum; then the compiler's version, then the target
  std::string_view text;
  for (int field = 0; field < 2; ++field) {
    uint32_t size = 0;
    if (bytes.size() < at + sizeof size) return {};
    std::memcpy(&size, bytes.data() + at, sizeof size);
    at += sizeof size;
    if (bytes.size() - at < size) return {};
    text = bytes.substr(at, size);
    at += size;
  }
  return std::string(text);
}

int64_t ElementBytes(int dtype) {
  switch (dtype) {
    case 3:   // S16
    case 7:   // U16
    case 10:  // F16
    case 13:  // BF16
      return 2;
    case 4:   // S32
    case 8:   // U32
    case 11:  // F32
      return 4;
    case 5:   // S64
    case 9:   // U64
    case 12:  // F64
    case 14:  // C64
      return 8;
    case 15:  // C128
      return 16;
    case 23:  // TOKEN
      return 0;
    default:
      return dtype >= 1 && dtype <= 33 ? 1 : 0;
  }
}

void ProgramReader::Check(bool condition, const char* why) {
  if (!condition && error_.empty()) error_ = why;
}

Status ProgramReader::Failure() const {
  if (error_.empty()) return {};
  return InvalidArgument("the Ferrule program is damaged\n  why: " + error_ + " (near byte " + std::to_string(at_) +
                         ")");
}

template <class T>
T ProgramReader::Get() {
  T value{};
  if (bytes_.size() - at_ < sizeof(T)) {
    Check(false, "it is cut off");
    at_ = bytes_.size();
    return value;
  }
  std::memcpy(&value, bytes_.data() + at_, sizeof(T));
  at_ += sizeof(T);
  return error_.empty() ? value : T{};
}

uint32_t ProgramReader::GetCount(size_t item_bytes) {
  auto count = Get<uint32_t>();
  if (count <= (bytes_.size() - at_) / item_bytes) return count;
  Check(false, "a list is longer than the program");
  return 0;
}

std::string_view ProgramReader::GetBytes() {
  uint32_t size = GetCount(1);
  std::string_view view = bytes_.substr(at_, size);
  at_ += size;
  return view;
}

template <class T>
std::vector<T> ProgramReader::GetList() {
  uint32_t count = GetCount(sizeof(T));
  std::vector<T> list(count);
  if (count) std::memcpy(list.data(), bytes_.data() + at_, count * sizeof(T));
  at_ += count * sizeof(T);
  return list;
}

std::vector<int64_t> ProgramReader::GetLayout(const Shape& shape) {
  auto order = GetList<int64_t>();
  Check(order.empty() || (order.size() == shape.dims.size() && IsPermutation(order.data(), order.size())),
        "a layout is not a permutation of the dimensions");
  return order;
}

Shape ProgramReader::GetShape() {
  Shape shape;
  auto dtype = Get<uint32_t>();
  Check(dtype >= 1 && dtype <= 33, "an element type is unknown");
  shape.dtype = static_cast<int>(dtype);
  shape.dims = GetList<int64_t>();
  // The product of the nonzero sizes is bounded too, so that no order of multiplying can overflow.
  int64_t bytes = 16;
  for (int64_t dim : shape.dims) {
    if (dim < 0 || (dim > 0 && bytes > kMaxBytes / dim)) {
      Check(false, "a shape is negative or too large");
      return {shape.dtype, {}};
    }
    if (dim > 0) bytes *= dim;
  }
  return shape;
}

Value ProgramReader::GetValue(const std::vector<CompiledFn>& functions, int depth) {
  Value value;
  if (depth > kMaxDepth) {
    Check(false, "attributes are nested too deeply");
    return value;
  }
  switch (Get<uint8_t>()) {
    case 0:
      value.data = Get<int64_t>();
      break;
    case 1:
      value.data = Get<double>();
      break;
    case 2:
      value.data = GetString();
      break;
    case 3:
      value.data = GetList<int64_t>();
      break;
    case 4:
      value.data = GetList<double>();
      break;
    case 5:
      value.data = std::make_shared<Dict>(GetDict(functions, depth + 1));
      break;
    case 6:
      value.data = Get<uint8_t>() != 0;
      break;
    case 7: {
      TypedScalar scalar{};
      scalar.dtype = static_cast<int>(Get<uint32_t>());
      for (char& byte : scalar.raw) byte = Get<char>();
      value.data = scalar;
      break;
    }
    case 8: {
      TypedArray array;
      array.dtype = static_cast<int>(Get<uint32_t>());
      array.raw = GetString();
      value.data = std::move(array);
      break;
    }
    case 9: {
      auto index = Get<uint32_t>();
      Check(index < functions.size(), "an attribute names a function that does not exist");
      value.data = index < functions.size() ? functions[index] : nullptr;
      break;
    }
    case 10: {
      std::vector<Value> list;
      uint32_t count = GetCount(1);
      for (uint32_t i = 0; i < count && error_.empty(); ++i) list.push_back(GetValue(functions, depth + 1));
      value.data = std::move(list);
      break;
    }
    default:
      Check(false, "an attribute has an unknown kind");
  }
  return value;
}

Dict ProgramReader::GetDict(const std::vector<CompiledFn>& functions, int depth) {
  Dict dict;
  uint32_t count = GetCount(5);
  for (uint32_t i = 0; i < count && error_.empty(); ++i) {
    std::string key = GetString();
    dict.insert_or_assign(std::move(key), GetValue(functions, depth));
  }
  return dict;
}

uint32_t ProgramReader::GetSlot(const ProgramData& data, int64_t bytes) {
  auto slot = Get<uint32_t>();
  if (slot >= data.slots.size()) {
    Check(false, "a step names a slot that does not exist");
    return 0;
  }
  Check(data.slots[slot].size >= bytes, "a step needs more bytes than its slot has");
  return slot;
}

void ProgramReader::GetOperands(const ProgramData& data, std::vector<Shape>* shapes, std::vector<uint32_t>* slots) {
  uint32_t count = GetCount(12);
  for (uint32_t i = 0; i < count && error_.empty(); ++i) {
    slots->push_back(GetSlot(data, 0));
    shapes->push_back(GetShape());
    if (error_.empty())
      Check(data.slots[slots->back()].size >= ByteSize(shapes->back()), "a call's operand is larger than its slot");
  }
}

StepData ProgramReader::GetStep(const std::vector<CompiledFn>& functions, const ProgramData& data, uint32_t blocks) {
  auto block = [&](uint32_t index) {
    Check(index < blocks, "a step names a block that does not exist");
    return index;
  };
  switch (Get<uint8_t>()) {
    case 1: {
      LaunchData step{};
      step.function = Get<uint32_t>();
      step.grid = Get<int64_t>();
      step.grain = Get<int64_t>();
      step.slots = GetList<uint32_t>();
      Check(step.function < functions.size(), "a launch names a function that does not exist");
      Check(step.grid >= 0, "a launch has a negative grid");
      for (uint32_t slot : step.slots) Check(slot < data.slots.size(), "a launch names a slot that does not exist");
      step.writes = Get<uint32_t>();
      Check(step.writes <= step.slots.size(), "a launch writes more slots than it has");
      return step;
    }
    case 2: {
      size_t slots_at = at_;
      at_ = std::min(at_ + 8, bytes_.size());
      CopyData step{};
      step.bytes = Get<int64_t>();
      Check(step.bytes >= 0, "a copy has a negative size");
      size_t end = at_;
      at_ = slots_at;
      step.dst = GetSlot(data, step.bytes);
      step.src = GetSlot(data, step.bytes);
      at_ = end;
      return step;
    }
    case 3: {
      WhileData step{};
      step.cond = block(Get<uint32_t>());
      step.predicate = GetSlot(data, 1);
      step.body = block(Get<uint32_t>());
      step.trips = Get<int64_t>();
      Check(step.trips >= -1, "a loop runs a negative number of times");
      return step;
    }
    case 4: {
      CaseData step{};
      size_t kind_at = at_ + 4;
      step.is_bool = kind_at < bytes_.size() && bytes_[kind_at] != 0;
      step.index = GetSlot(data, step.is_bool ? 1 : 4);
      Get<uint8_t>();
      step.branches = GetList<uint32_t>();
      Check(step.branches.size() >= (step.is_bool ? 2u : 1u), "a case has too few branches");
      for (uint32_t branch : step.branches) block(branch);
      return step;
    }
    case 5: {
      CallData step{};
      step.desc.target = GetString();
      step.ffi = Get<uint8_t>() != 0;
      GetOperands(data, &step.desc.operands, &step.operands);
      GetOperands(data, &step.desc.results, &step.results);
      step.desc.attrs = GetDict(functions, 0);
      step.flops = Get<double>();
      step.where = GetString();
      return step;
    }
    default:
      Check(false, "a step has an unknown code");
      return CopyData{};
  }
}

void ProgramReader::CheckSlots(const Program& program, const ProgramData& data) {
  auto within = [&](const SlotData& slot, int64_t size) {
    return slot.where >= 0 && slot.where <= size && slot.size <= size - slot.where;
  };
  for (const SlotData& slot : data.slots) {
    bool good = slot.size >= 0;
    switch (slot.kind) {
      case SlotKind::kParam:
        good &= slot.where >= 0 && slot.where < static_cast<int64_t>(program.params.size()) &&
                slot.size <= ByteSize(program.params[slot.where].shape);
        break;
      case SlotKind::kOutput:
        good &= slot.where >= 0 && slot.where < static_cast<int64_t>(program.outputs.size()) &&
                slot.size <= ByteSize(program.outputs[slot.where].shape);
        break;
      case SlotKind::kConstant:
        good &= within(slot, static_cast<int64_t>(data.constants.size()));
        break;
      case SlotKind::kArena:
        good &= within(slot, program.arena_bytes);
        break;
      default:
        good = false;
    }
    Check(good, "a slot lies outside of its memory");
  }
}

Status ProgramReader::ReadHead(Program* program, ProgramData* data) {
  if (bytes_.size() < sizeof(kMagic) || std::memcmp(bytes_.data(), kMagic, sizeof(kMagic)) != 0)
    return InvalidArgument("this is not a Ferrule program\n  why: it does not begin with Ferrule's magic bytes");
  at_ = sizeof(kMagic);
  auto format = Get<uint32_t>();
  auto checksum = Get<uint32_t>();
  FERRULE_RETURN_IF_ERROR(Failure());
  if (format != kFormat)
    return FailedPrecondition("the program has format " + std::to_string(format) + ", this Ferrule reads format " +
                              std::to_string(kFormat) + "\n  fix: compile it again");
  if (Crc32(bytes_.substr(at_)) != checksum)
    return InvalidArgument("the Ferrule program is damaged\n  why: its checksum does not match");
  program->compiler = GetString();
  program->target = GetString();
  program->features = GetString();
  program->name = GetString();
  program->fingerprint = GetString();
  program->replicas = Get<int64_t>();
  program->partitions = Get<int64_t>();
  Check(program->replicas >= 1 && program->partitions >= 1 && program->replicas < (1 << 30) &&
            program->partitions < (1 << 30),
        "the number of replicas or partitions is impossible");
  program->device_assignment = GetList<int64_t>();
  uint32_t params = GetCount(28);
  for (uint32_t i = 0; i < params && error_.empty(); ++i) {
    ParamInfo& param = program->params.emplace_back();
    param.shape = GetShape();
    param.memory_kind = GetString();
    param.sharding = GetString();
    param.alias = Get<int64_t>();
    param.layout = GetLayout(param.shape);
  }
  uint32_t outputs = GetCount(20);
  for (uint32_t i = 0; i < outputs && error_.empty(); ++i) {
    OutputInfo& output = program->outputs.emplace_back();
    output.shape = GetShape();
    output.memory_kind = GetString();
    output.sharding = GetString();
    output.layout = GetLayout(output.shape);
  }
  for (const ParamInfo& param : program->params)
    Check(param.alias >= -2 && param.alias < static_cast<int64_t>(outputs),
          "a parameter is donated into an output that does not exist");
  program->flags = Get<uint32_t>();
  uint32_t costs = GetCount(12);
  for (uint32_t i = 0; i < costs && error_.empty(); ++i) {
    std::string key = GetString();
    program->cost.emplace_back(std::move(key), Get<double>());
  }
  program->arena_bytes = Get<int64_t>();
  Check(program->arena_bytes >= 0 && program->arena_bytes <= kMaxBytes, "the arena's size is impossible");
  data->constants = GetBytes();
  program->constant_bytes = static_cast<int64_t>(data->constants.size());
  uint32_t objects = GetCount(4);
  for (uint32_t i = 0; i < objects && error_.empty(); ++i) data->objects.push_back(GetBytes());
  uint32_t functions = GetCount(8);
  for (uint32_t i = 0; i < functions && error_.empty(); ++i) {
    auto object = Get<uint32_t>();
    Check(object < data->objects.size(), "a function is in an object that does not exist");
    FunctionData& function = data->functions.emplace_back();
    function.object = object;
    function.symbol = GetString();
    function.flops = Get<double>();
    function.bytes = Get<double>();
  }
  uint32_t slots = GetCount(17);
  for (uint32_t i = 0; i < slots && error_.empty(); ++i) {
    SlotData slot{};
    slot.kind = static_cast<SlotKind>(Get<uint8_t>());
    slot.where = Get<int64_t>();
    slot.size = Get<int64_t>();
    data->slots.push_back(slot);
  }
  FERRULE_RETURN_IF_ERROR(Failure());
  CheckSlots(*program, *data);
  return Failure();
}

Status ProgramReader::ReadBlocks(const std::vector<CompiledFn>& functions, Program* program, ProgramData* data) {
  uint32_t blocks = GetCount(4);
  Check(blocks >= 1, "it has no steps");
  for (uint32_t i = 0; i < blocks && error_.empty(); ++i) {
    std::vector<StepData>& block = data->blocks.emplace_back();
    uint32_t steps = GetCount(9);
    for (uint32_t k = 0; k < steps && error_.empty(); ++k) block.push_back(GetStep(functions, *data, blocks));
  }
  program->text = GetString();
  if (error_.empty()) Check(at_ == bytes_.size(), "it has bytes after its end");
  FERRULE_RETURN_IF_ERROR(Failure());
  Check(BlocksNestWithin(data->blocks, kMaxDepth), "its blocks are nested too deeply or contain themselves");
  return Failure();
}

}  // namespace ferrule

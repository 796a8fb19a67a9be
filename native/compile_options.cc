#include "compile_options.h"

#include "protobuf.h"

namespace ferrule {
namespace {

// Reads the fields of one protocol buffer message in turn.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  // False at the end or when the bytes are malformed (then ok() is false).
  bool Next() {
    if (!ok_ || bytes_.empty()) return false;
    const uint64_t key = Varint();
    field_ = static_cast<int>(key >> 3);
    switch (key & 7) {
      case 0:
        number_ = Varint();
        break;
      case 1:
        Skip(8);
        break;
      case 2:
        payload_ = Skip(Varint());
        break;
      case 5:
        Skip(4);
        break;
      default:
        ok_ = false;
    }
    wire_ = static_cast<int>(key & 7);
    return ok_;
  }

  bool ok() const { return ok_; }
  int field() const { return field_; }
  bool is_bytes() const { return wire_ == 2; }
  int64_t number() const { return static_cast<int64_t>(number_); }
  std::string_view payload() const { return payload_; }
  bool empty() const { return bytes_.empty(); }

  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !bytes_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes_.front());
      bytes_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    ok_ = false;
    return 0;
  }

 private:
  std::string_view Skip(uint64_t size) {
    if (size > bytes_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view skipped = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return skipped;
  }

  std::string_view bytes_, payload_;
  bool ok_ = true;
  int field_ = 0, wire_ = 0;
  uint64_t number_ = 0;
};

// DeviceAssignmentProto: 1 replica_count, 2 computation_count, 3 per computation {1: device of each replica}.
bool ParseAssignment(std::string_view bytes, DeviceAssignment* out) {
  std::vector<std::vector<int64_t>> computations;
  Reader reader(bytes);
  while (reader.Next()) {
    if (reader.field() == 1) out->replicas = reader.number();
    if (reader.field() == 2) out->partitions = reader.number();
    if (reader.field() != 3 || !reader.is_bytes()) continue;
    auto& ids = computations.emplace_back();
    Reader computation(reader.payload());
    while (computation.Next()) {
      if (computation.field() != 1) continue;
      if (!computation.is_bytes()) {
        ids.push_back(computation.number());
        continue;
      }
      Reader packed(computation.payload());
      while (packed.ok() && !packed.empty()) ids.push_back(static_cast<int64_t>(packed.Varint()));
      if (!packed.ok()) return false;
    }
    if (!computation.ok()) return false;
  }
  if (!reader.ok() || out->replicas < 1 || out->partitions < 1) return false;
  if (computations.size() != static_cast<size_t>(out->partitions)) return false;
  for (const auto& ids : computations) {
    if (ids.size() != static_cast<size_t>(out->replicas)) return false;
  }
  out->devices.clear();
  for (int64_t r = 0; r < out->replicas; ++r) {
    for (int64_t p = 0; p < out->partitions; ++p) out->devices.push_back(computations[p][r]);
  }
  return true;
}

}  // namespace

std::string DeviceAssignment::Serialize() const {
  std::string out;
  if (devices.empty()) return out;
  PutInt(out, 1, replicas);
  PutInt(out, 2, partitions);
  for (int64_t p = 0; p < partitions; ++p) {
    std::string ids, computation;
    for (int64_t r = 0; r < replicas; ++r) PutVarint(ids, static_cast<uint64_t>(devices[r * partitions + p]));
    PutBytes(computation, 1, ids);
    PutBytes(out, 3, computation);
  }
  return out;
}

Result<CompileOptions> ParseCompileOptions(std::string_view bytes) {
  CompileOptions options;
  Reader top(bytes);
  bool good = true;
  while (top.Next()) {
    if (top.field() != 3 || !top.is_bytes()) continue;  // executable_build_options
    Reader build(top.payload());
    while (build.Next()) {
      if (build.field() == 1) options.device_ordinal = build.number();
      if (build.field() == 9 && build.is_bytes()) {
        good = good && ParseAssignment(build.payload(), &options.assignment.emplace());
      }
    }
    good = good && build.ok();
  }
  if (!good || !top.ok()) return InvalidArgument("the compile options are not a valid CompileOptionsProto");
  return options;
}

}  // namespace ferrule

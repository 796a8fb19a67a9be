#include "topology.h"

#include <cstring>
#include <thread>

#include "buffer.h"
#include "driver_library.h"
#include "entry.h"
#include "ffi.h"
#include "platform.h"
#include "program.h"
#include "protobuf.h"

namespace ferrule {

uint64_t Hash(std::string_view bytes, uint64_t seed) {
  for (unsigned char c : bytes) seed = (seed ^ c) * 0x100000001b3u;
  return seed;
}

namespace {

std::string DeviceText(const std::string& target, int id, int process_index) {
  return (target == "xpu" ? "IntelXpuDevice(id=" : "FerruleCpuDevice(id=") + std::to_string(id) +
         ", process_index=" + std::to_string(process_index) + ")";
}

}  // namespace

DeviceDescription::DeviceDescription(int id, int process_index, const std::string& target, const DeviceFacts& facts)
    : id(id),
      process_index(process_index),
      kind(facts.kind.empty() ? target : facts.kind),
      text(DeviceText(target, id, process_index)) {
  attributes_.Add("target", target);
  for (const auto& [name, value] : facts.texts) attributes_.Add(name, value);
  for (const auto& [name, value] : facts.numbers) attributes_.Add(name, value);
  if (target == "cpu") attributes_.Add("core_count", static_cast<int64_t>(std::thread::hardware_concurrency()));
}

// Fields with tabs between them, each with a letter in front; what drivers tell holds neither tabs nor line ends.
std::string DeviceFacts::Serialize() const {
  std::string line = "k" + kind;
  for (const auto& [name, value] : texts) line += "\tt" + name + "=" + value;
  for (const auto& [name, value] : numbers) line += "\tn" + name + "=" + std::to_string(value);
  return line;
}

Result<DeviceFacts> DeviceFacts::Deserialize(std::string_view line) {
  DeviceFacts facts;
  while (!line.empty()) {
    const std::string_view field = line.substr(0, line.find('\t'));
    line.remove_prefix(std::min(field.size() + 1, line.size()));
    const size_t equals = std::min(field.find('='), field.size());
    if (field.empty() || (field[0] != 'k' && equals == field.size())) {
      return InvalidArgument("the serialized Ferrule topology is damaged");
    }
    const std::string name(field.substr(1, equals - 1));
    const std::string_view value = field.substr(std::min(equals + 1, field.size()));
    if (field[0] == 'k') facts.kind = field.substr(1);
    if (field[0] == 't') facts.texts.emplace_back(name, value);
    if (field[0] == 'n') {
      auto number = ParseNumber(value, "an attribute of the topology's devices");
      if (!number.ok()) return number.status();
      facts.numbers.emplace_back(name, *number);
    }
  }
  return facts;
}

Topology::Topology(std::string platform_name, std::string platform_version, std::string compiler_target,
                   int num_devices, std::vector<DeviceFacts> facts)
    : platform_name(std::move(platform_name)),
      platform_version(std::move(platform_version)),
      compiler_target(std::move(compiler_target)),
      target(this->compiler_target.substr(0, this->compiler_target.find(':'))),
      facts_(std::move(facts)) {
  for (int i = 0; i < num_devices; ++i) {
    pointers_.push_back(
        new DeviceDescription(i, 0, target, facts_.empty() ? DeviceFacts() : facts_[i % facts_.size()]));
  }
  attributes_.Add("target", target);
  attributes_.Add("num_devices", static_cast<int64_t>(num_devices));
}

Topology::~Topology() {
  for (DeviceDescription* description : pointers_) delete description;
}

namespace {
constexpr std::string_view kTopologyMagic = "FERRULE-TOPOLOGY-2\n";

}

std::string Topology::Serialize() const {
  std::string text = std::string(kTopologyMagic) + platform_name + "\n" + platform_version + "\n" + compiler_target +
                     "\n" + std::to_string(pointers_.size()) + "\n";
  for (const DeviceFacts& facts : facts_) text += facts.Serialize() + "\n";
  return text;
}

Result<Ref<Topology>> Topology::Deserialize(std::string_view bytes) {
  if (!bytes.starts_with(kTopologyMagic)) {
    return InvalidArgument("these bytes are not a Ferrule topology of this version");
  }
  bytes.remove_prefix(kTopologyMagic.size());
  std::vector<std::string> lines;
  for (size_t end; (end = bytes.find('\n')) != std::string_view::npos; bytes.remove_prefix(end + 1)) {
    lines.emplace_back(bytes.substr(0, end));
  }
  if (lines.size() < 4 || !bytes.empty()) return InvalidArgument("the serialized Ferrule topology is damaged");
  auto count = ParseNumber(lines[3], "the topology's device count");
  if (!count.ok()) return count.status();
  FERRULE_RETURN_IF_ERROR(CheckDeviceCount(*count));
  std::vector<DeviceFacts> facts;
  for (size_t i = 4; i < lines.size(); ++i) {
    auto read = DeviceFacts::Deserialize(lines[i]);
    if (!read.ok()) return read.status();
    facts.push_back(std::move(*read));
  }
  return Ref<Topology>::Make(lines[0], lines[1], lines[2], static_cast<int>(*count), std::move(facts));
}

uint64_t Topology::Fingerprint() const { return Hash(Serialize()); }

namespace api {

Status PJRT_TopologyDescription_Create(PJRT_TopologyDescription_Create_Args& args) {
  auto options = Options::Parse(args.create_options, args.num_options, {"num_devices", "platform_name", "target"},
                                "PJRT_TopologyDescription_Create");
  if (!options.ok()) return options.status();
  // The name is `[target][:devices]` or `devices`, e.g. "cpu:8", "cpu:2x4", "2x4", "xpu:pvc" (a target with a colon).
  std::string_view name = Text(args.topology_name, args.topology_name_size);
  int64_t devices = 1;
  const size_t colon = name.find(':');
  const std::string_view extents = colon != std::string_view::npos ? name.substr(colon + 1) : name;
  if (!name.empty() && extents.find_first_not_of("0123456789x") == std::string_view::npos) {
    std::string_view grid = colon != std::string_view::npos ? name.substr(colon + 1) : name;
    name = colon != std::string_view::npos ? name.substr(0, colon) : std::string_view();
    for (bool more = true; more;) {
      const size_t end = std::min(grid.find('x'), grid.size());
      auto extent = ParseNumber(grid.substr(0, end), "each extent of the device grid in a topology's name");
      if (!extent.ok()) return extent.status();
      FERRULE_RETURN_IF_ERROR(CheckDeviceCount(*extent));
      devices *= *extent;
      FERRULE_RETURN_IF_ERROR(CheckDeviceCount(devices));
      more = end < grid.size();
      if (more) grid.remove_prefix(end + 1);
    }
  }
  auto count = options->Int("num_devices", devices);
  if (!count.ok()) return count.status();
  FERRULE_RETURN_IF_ERROR(CheckDeviceCount(*count));
  auto platform = options->String("platform_name", PlatformName());
  if (!platform.ok()) return platform.status();
  auto wanted = options->String("target", "");
  if (!wanted.ok()) return wanted.status();
  if (wanted->empty() && !name.empty() && name != *platform && name != "ferrule") *wanted = std::string(name);
  auto target = ChooseTarget(*wanted, *platform);
  if (!target.ok()) return target.status();
  if (*target == "xpu") {
    // Compiling for whatever is here: what the compiler must know comes from the driver.
    auto found = FindDevices(*target);
    if (!found.ok()) return found.status();
    args.topology = To(DriverTopology(*platform, *found, static_cast<int>(*count)).release());
    return {};
  }
  args.topology = To(Ref<Topology>::Make(*platform, PlatformVersion(), *target, static_cast<int>(*count)).release());
  return {};
}

Status PJRT_TopologyDescription_Destroy(PJRT_TopologyDescription_Destroy_Args& args) {
  From(args.topology)->Release();
  return {};
}

Status PJRT_TopologyDescription_PlatformName(PJRT_TopologyDescription_PlatformName_Args& args) {
  const std::string& name = From(args.topology)->platform_name;
  args.platform_name = name.c_str();
  args.platform_name_size = name.size();
  return {};
}

Status PJRT_TopologyDescription_PlatformVersion(PJRT_TopologyDescription_PlatformVersion_Args& args) {
  const std::string& version = From(args.topology)->platform_version;
  args.platform_version = version.c_str();
  args.platform_version_size = version.size();
  return {};
}

Status PJRT_TopologyDescription_GetDeviceDescriptions(PJRT_TopologyDescription_GetDeviceDescriptions_Args& args) {
  const auto& devices = From(args.topology)->devices();
  args.descriptions = reinterpret_cast<PJRT_DeviceDescription* const*>(devices.data());
  args.num_descriptions = devices.size();
  return {};
}

Status PJRT_TopologyDescription_Serialize(PJRT_TopologyDescription_Serialize_Args& args) {
  auto* bytes = new std::string(From(args.topology)->Serialize());
  args.serialized_bytes = bytes->data();
  args.serialized_bytes_size = bytes->size();
  args.serialized_topology = reinterpret_cast<PJRT_SerializedTopology*>(bytes);
  args.serialized_topology_deleter = [](PJRT_SerializedTopology* t) { delete reinterpret_cast<std::string*>(t); };
  return {};
}

Status PJRT_TopologyDescription_Deserialize(PJRT_TopologyDescription_Deserialize_Args& args) {
  auto topology = Topology::Deserialize(Text(args.serialized_topology, args.serialized_topology_size));
  if (!topology.ok()) return topology.status();
  args.topology = To(topology->release());
  return {};
}

Status PJRT_TopologyDescription_Attributes(PJRT_TopologyDescription_Attributes_Args& args) {
  const Attributes& attributes = From(args.topology)->attributes();
  args.attributes = attributes.data();
  args.num_attributes = attributes.size();
  return {};
}

Status PJRT_TopologyDescription_Fingerprint(PJRT_TopologyDescription_Fingerprint_Args& args) {
  args.fingerprint = From(args.topology)->Fingerprint();
  return {};
}

Status PJRT_TopologyDescription_GetMemorySpaceKindIds(PJRT_TopologyDescription_GetMemorySpaceKindIds_Args& args) {
  static constexpr int kIds[kNumMemoryKinds] = {0, 1, 2};
  args.memory_space_kind_ids = kIds;
  args.num_memory_space_kind_ids = kNumMemoryKinds;
  return {};
}

// An xla.ShapeProto. Arrays are dense in every memory, in the order that the caller asks for or row-major.
Status PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace(
    PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace_Args& args) {
  constexpr const char* kWhere = "PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace";
  if (args.memory_space_kind_id < 0 || args.memory_space_kind_id >= kNumMemoryKinds) {
    return InvalidArgument(std::string(kWhere) + ": no memory has the kind id " +
                           std::to_string(args.memory_space_kind_id));
  }
  auto bytes = CheckedBytes(args.element_type, args.dims, args.num_dims, kWhere);
  if (!bytes.ok()) return bytes.status();
  auto found = LayoutFrom(args.layout, args.dims, args.num_dims, ElementBytes(args.element_type), kWhere);
  if (!found.ok()) return found.status();
  const std::vector<int64_t>& minor_to_major = LayoutOrder(*found, args.num_dims);
  std::string dims, order, fixed;
  for (size_t i = 0; i < args.num_dims; ++i) {
    PutVarint(dims, static_cast<uint64_t>(args.dims[i]));
    PutVarint(order, static_cast<uint64_t>(minor_to_major[i]));
    fixed.push_back(0);
  }
  std::string layout, shape;
  if (args.num_dims > 0) PutBytes(layout, 1, order);  // minor_to_major
  PutInt(shape, 2, XlaType(args.element_type));
  if (args.num_dims > 0) PutBytes(shape, 3, dims);
  PutBytes(shape, 5, layout);
  if (args.num_dims > 0) PutBytes(shape, 6, fixed);  // is_dynamic_dimension
  auto* out = new char[shape.size()];
  std::memcpy(out, shape.data(), shape.size());
  args.serialized_shape = out;
  args.serialized_shape_size = shape.size();
  args.serialized_shape_deleter = [](const char* bytes) { delete[] bytes; };
  return {};
}

Status PJRT_DeviceDescription_Id(PJRT_DeviceDescription_Id_Args& args) {
  args.id = From(args.device_description)->id;
  return {};
}

Status PJRT_DeviceDescription_ProcessIndex(PJRT_DeviceDescription_ProcessIndex_Args& args) {
  args.process_index = From(args.device_description)->process_index;
  return {};
}

Status PJRT_DeviceDescription_Attributes(PJRT_DeviceDescription_Attributes_Args& args) {
  const Attributes& attributes = From(args.device_description)->attributes();
  args.attributes = attributes.data();
  args.num_attributes = attributes.size();
  return {};
}

Status PJRT_DeviceDescription_Kind(PJRT_DeviceDescription_Kind_Args& args) {
  const std::string& kind = From(args.device_description)->kind;
  args.device_kind = kind.c_str();
  args.device_kind_size = kind.size();
  return {};
}

Status PJRT_DeviceDescription_DebugString(PJRT_DeviceDescription_DebugString_Args& args) {
  const std::string& text = From(args.device_description)->text;
  args.debug_string = text.c_str();
  args.debug_string_size = text.size();
  return {};
}

Status PJRT_DeviceDescription_ToString(PJRT_DeviceDescription_ToString_Args& args) {
  const std::string& text = From(args.device_description)->text;
  args.to_string = text.c_str();
  args.to_string_size = text.size();
  return {};
}

}  // namespace api
}  // namespace ferrule

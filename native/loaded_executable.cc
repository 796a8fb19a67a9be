#include <algorithm>

#include "device_program.h"
#include "entry.h"
#include "executable.h"
#include "python.h"

namespace ferrule {

Result<Ref<Executable>> Executable::Compile(const PJRT_Program* program, std::string_view options,
                                            std::string_view target) {
  if (program == nullptr || program->code == nullptr) return InvalidArgument("there is no program to compile");
  FERRULE_RETURN_IF_ERROR(ParseCompileOptions(options).status());
  auto bytes = CompileInPython(Text(program->code, program->code_size), Text(program->format, program->format_size),
                               options, target);
  if (!bytes.ok()) return bytes.status();
  auto loaded = Program::Load(std::move(*bytes));
  if (!loaded.ok()) return loaded.status();
  return Ref<Executable>::Make(std::move(*loaded), std::string(options));
}

Result<Ref<LoadedExecutable>> LoadedExecutable::Load(Client* client, Ref<Executable> executable,
                                                     std::string_view options) {
  const Program& program = *executable->program;
  auto parsed = ParseCompileOptions(options);
  if (!parsed.ok()) return parsed.status();
  DeviceAssignment assignment{program.replicas, program.partitions, program.device_assignment};
  if (parsed->assignment) assignment = *parsed->assignment;
  const auto needed = static_cast<size_t>(program.replicas * program.partitions);
  if (assignment.devices.empty()) {
    assignment = {program.replicas, program.partitions, {}};
    for (size_t i = 0; i < needed; ++i) {
      const bool ordinal = needed == 1 && parsed->device_ordinal > 0;
      assignment.devices.push_back(ordinal ? parsed->device_ordinal : static_cast<int64_t>(i));
    }
  }
  if (assignment.replicas != program.replicas || assignment.partitions != program.partitions ||
      assignment.devices.size() != needed) {
    return InvalidArgument("the device assignment is for " + std::to_string(assignment.replicas) + " x " +
                           std::to_string(assignment.partitions) + " devices, the program `" + program.name +
                           "` was compiled for " + std::to_string(program.replicas) + " replicas x " +
                           std::to_string(program.partitions) + " partitions");
  }
  std::vector<Device*> devices;
  std::vector<PJRT_LogicalDeviceIds> logical;
  for (size_t i = 0; i < needed; ++i) {
    const int64_t id = assignment.devices[i];
    Device* device = client->FindDevice(id);
    if (device == nullptr) {
      return InvalidArgument("the program `" + program.name + "` is assigned to device " + std::to_string(id) +
                             ", this client has " + std::to_string(client->devices().size()) +
                             " (ids from 0); set FERRULE_NUM_DEVICES");
    }
    if (std::find(devices.begin(), devices.end(), device) != devices.end()) {
      return InvalidArgument("the device assignment names device " + std::to_string(id) + " twice");
    }
    devices.push_back(device);
    logical.push_back({static_cast<int>(i / assignment.partitions), static_cast<int>(i % assignment.partitions)});
  }
  if (program.target != client->target()) {
    return FailedPrecondition("the program `" + program.name + "` was compiled for the target `" + program.target +
                              "`, this client runs `" + client->target() + "`; compile it again");
  }
  if (const DeviceProgram* on_device = program.on_device()) {
    // Errors of the device's own compiler belong to the compile.
    for (Device* device : devices) {
      FERRULE_RETURN_IF_ERROR(on_device->Prepare(device->accelerator.get(), device->allocator()));
    }
  }
  return Ref<LoadedExecutable>::Make(Ref<Client>::Share(client), std::move(executable), std::move(assignment),
                                     std::move(devices), std::move(logical));
}

namespace api {

Status PJRT_Compile(PJRT_Compile_Args& args) {
  auto compiled = Executable::Compile(args.program, Text(args.compile_options, args.compile_options_size),
                                      From(args.topology)->compiler_target);
  if (!compiled.ok()) return compiled.status();
  args.executable = To(compiled->release());
  return {};
}

Status PJRT_Client_Compile(PJRT_Client_Compile_Args& args) {
  const std::string_view options = Text(args.compile_options, args.compile_options_size);
  auto compiled = Executable::Compile(args.program, options, From(args.client)->topology().compiler_target);
  if (!compiled.ok()) return compiled.status();
  auto loaded = LoadedExecutable::Load(From(args.client), std::move(*compiled), options);
  if (!loaded.ok()) return loaded.status();
  args.executable = To(loaded->release());
  return {};
}

Status PJRT_Client_Load(PJRT_Client_Load_Args& args) {
  if (args.executable == nullptr) return InvalidArgument("PJRT_Client_Load: `executable` is null");
  Ref<Executable> executable = Ref<Executable>::Share(From(args.executable));
  std::string_view options = Text(args.compile_options, args.compile_options_size);
  if (options.empty()) options = executable->options;
  auto loaded = LoadedExecutable::Load(From(args.client), executable, options);
  if (!loaded.ok()) return loaded.status();
  args.loaded_executable = To(loaded->release());
  return {};
}

Status PJRT_Executable_DeserializeAndLoad(PJRT_Executable_DeserializeAndLoad_Args& args) {
  const std::string_view options =
      Text(args.overridden_serialized_compile_options, args.overridden_serialized_compile_options_size);
  auto program = Program::Load(std::string(Text(args.serialized_executable, args.serialized_executable_size)));
  if (!program.ok()) return program.status();
  auto loaded = LoadedExecutable::Load(From(args.client),
                                       Ref<Executable>::Make(std::move(*program), std::string(options)), options);
  if (!loaded.ok()) return loaded.status();
  args.loaded_executable = To(loaded->release());
  return {};
}

Status PJRT_LoadedExecutable_Destroy(PJRT_LoadedExecutable_Destroy_Args& args) {
  From(args.executable)->Release();
  return {};
}

Status PJRT_LoadedExecutable_GetExecutable(PJRT_LoadedExecutable_GetExecutable_Args& args) {
  args.executable = To(Ref<Executable>(From(args.loaded_executable)->executable).release());
  return {};
}

Status PJRT_LoadedExecutable_GetDeviceAssignment(PJRT_LoadedExecutable_GetDeviceAssignment_Args& args) {
  auto* bytes = new std::string(From(args.executable)->assignment.Serialize());
  args.serialized_bytes = bytes->data();
  args.serialized_bytes_size = bytes->size();
  args.serialized_device_assignment = reinterpret_cast<PJRT_DeviceAssignmentSerialized*>(bytes);
  args.serialized_device_assignment_deleter = [](PJRT_DeviceAssignmentSerialized* a) {
    delete reinterpret_cast<std::string*>(a);
  };
  return {};
}

Status PJRT_LoadedExecutable_AddressableDevices(PJRT_LoadedExecutable_AddressableDevices_Args& args) {
  const auto& devices = From(args.executable)->devices;
  args.addressable_devices = reinterpret_cast<PJRT_Device* const*>(devices.data());
  args.num_addressable_devices = devices.size();
  return {};
}

Status PJRT_LoadedExecutable_AddressableDeviceLogicalIds(PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args& args) {
  const auto& ids = From(args.executable)->logical_ids;
  args.addressable_device_logical_ids = const_cast<PJRT_LogicalDeviceIds*>(ids.data());
  args.num_addressable_device_logical_ids = ids.size();
  return {};
}

Status PJRT_LoadedExecutable_Delete(PJRT_LoadedExecutable_Delete_Args& args) {
  From(args.executable)->deleted = true;
  return {};
}

Status PJRT_LoadedExecutable_IsDeleted(PJRT_LoadedExecutable_IsDeleted_Args& args) {
  args.is_deleted = From(args.executable)->deleted;
  return {};
}

Status PJRT_LoadedExecutable_Fingerprint(PJRT_LoadedExecutable_Fingerprint_Args& args) {
  const std::string& fingerprint = From(args.executable)->executable->program->fingerprint;
  args.executable_fingerprint = fingerprint.c_str();
  args.executable_fingerprint_size = fingerprint.size();
  return {};
}

}  // namespace api
}  // namespace ferrule

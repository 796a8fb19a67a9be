#include "executable.h"

#include <algorithm>

#include "entry.h"

namespace ferrule {

Executable::Executable(std::shared_ptr<const Program> loaded, std::string options)
    : program(std::move(loaded)), options(std::move(options)) {
  for (const ParamInfo& param : program->params) {
    param_memory_kinds.Add(param.memory_kind);
    param_shardings.Add(param.sharding);
    param_bytes.push_back(ByteSize(param.shape));
    param_layouts.push_back(param.layout.empty() ? nullptr : FindLayout(param.layout.data(), param.layout.size()));
  }
  for (const OutputInfo& output : program->outputs) {
    output_memory_kinds.Add(output.memory_kind);
    output_shardings.Add(output.sharding);
    output_bytes.push_back(ByteSize(output.shape));
    output_layouts.push_back(output.layout.empty() ? nullptr : FindLayout(output.layout.data(), output.layout.size()));
    output_types.push_back(static_cast<PJRT_Buffer_Type>(output.shape.dtype));
    output_dims.insert(output_dims.end(), output.shape.dims.begin(), output.shape.dims.end());
    output_ranks.push_back(output.shape.dims.size());
  }
  for (const OutputInfo& output : program->outputs) {
    const auto* kind = std::find(std::begin(kMemoryKinds), std::end(kMemoryKinds), output.memory_kind);
    output_kind_ids.push_back(kind == std::end(kMemoryKinds) ? 0 : static_cast<int>(kind - kMemoryKinds));
  }
  donors.assign(program->outputs.size(), -1);
  for (size_t i = 0; i < program->params.size(); ++i) {
    const int64_t k = program->params[i].alias;
    if (k >= 0 && k < static_cast<int64_t>(donors.size())) donors[k] = static_cast<int64_t>(i);
  }
  for (const auto& [name, value] : program->cost) cost.Add(name, static_cast<float>(value));
}

namespace api {

Status PJRT_Executable_Destroy(PJRT_Executable_Destroy_Args& args) {
  From(args.executable)->Release();
  return {};
}

Status PJRT_Executable_Name(PJRT_Executable_Name_Args& args) {
  const std::string& name = From(args.executable)->program->name;
  args.executable_name = name.c_str();
  args.executable_name_size = name.size();
  return {};
}

Status PJRT_Executable_NumReplicas(PJRT_Executable_NumReplicas_Args& args) {
  args.num_replicas = static_cast<size_t>(From(args.executable)->program->replicas);
  return {};
}

Status PJRT_Executable_NumPartitions(PJRT_Executable_NumPartitions_Args& args) {
  args.num_partitions = static_cast<size_t>(From(args.executable)->program->partitions);
  return {};
}

Status PJRT_Executable_NumOutputs(PJRT_Executable_NumOutputs_Args& args) {
  args.num_outputs = From(args.executable)->program->outputs.size();
  return {};
}

Status PJRT_Executable_SizeOfGeneratedCodeInBytes(PJRT_Executable_SizeOfGeneratedCodeInBytes_Args& args) {
  args.size_in_bytes = From(args.executable)->program->code_bytes;
  return {};
}

Status PJRT_Executable_Fingerprint(PJRT_Executable_Fingerprint_Args& args) {
  const std::string& fingerprint = From(args.executable)->program->fingerprint;
  args.executable_fingerprint = fingerprint.c_str();
  args.executable_fingerprint_size = fingerprint.size();
  return {};
}

Status PJRT_Executable_GetCostAnalysis(PJRT_Executable_GetCostAnalysis_Args& args) {
  args.num_properties = From(args.executable)->cost.size();
  args.properties = From(args.executable)->cost.data();
  return {};
}

Status PJRT_Executable_GetCompiledMemoryStats(PJRT_Executable_GetCompiledMemoryStats_Args& args) {
  const Executable& e = *From(args.executable);
  const Program& program = *e.program;
  int64_t arguments = 0, outputs = 0, aliased = 0;
  for (int64_t bytes : e.param_bytes) arguments += bytes;
  for (int64_t bytes : e.output_bytes) outputs += bytes;
  for (size_t i = 0; i < program.params.size(); ++i) {
    if (program.params[i].alias >= 0) aliased += e.param_bytes[i];
  }
  args.generated_code_size_in_bytes = program.code_bytes + program.constant_bytes;
  args.argument_size_in_bytes = arguments;
  args.output_size_in_bytes = outputs;
  args.alias_size_in_bytes = aliased;
  args.temp_size_in_bytes = program.arena_bytes;
  args.host_generated_code_size_in_bytes = 0;
  args.host_argument_size_in_bytes = 0;
  args.host_output_size_in_bytes = 0;
  args.host_alias_size_in_bytes = 0;
  args.host_temp_size_in_bytes = 0;
  args.peak_memory_in_bytes = arguments + outputs - aliased + program.arena_bytes;
  args.total_size_in_bytes = args.peak_memory_in_bytes + args.generated_code_size_in_bytes;
  args.total_allocation_bytes = args.total_size_in_bytes;
  args.indefinite_allocations = 0;
  args.peak_unpadded_heap_bytes = args.peak_memory_in_bytes;
  return {};
}

Status PJRT_Executable_OutputElementTypes(PJRT_Executable_OutputElementTypes_Args& args) {
  auto& types = From(args.executable)->output_types;
  args.output_types = types.data();
  args.num_output_types = types.size();
  return {};
}

Status PJRT_Executable_OutputDimensions(PJRT_Executable_OutputDimensions_Args& args) {
  const Executable& e = *From(args.executable);
  args.num_outputs = e.output_ranks.size();
  args.dims = e.output_dims.data();
  args.dim_sizes = e.output_ranks.data();
  return {};
}

Status PJRT_Executable_ParameterMemoryKinds(PJRT_Executable_ParameterMemoryKinds_Args& args) {
  const auto& kinds = From(args.executable)->param_memory_kinds;
  args.num_parameters = kinds.data.size();
  args.memory_kinds = kinds.data.data();
  args.memory_kind_sizes = kinds.sizes.data();
  return {};
}

Status PJRT_Executable_OutputMemoryKinds(PJRT_Executable_OutputMemoryKinds_Args& args) {
  const auto& kinds = From(args.executable)->output_memory_kinds;
  args.num_outputs = kinds.data.size();
  args.memory_kinds = kinds.data.data();
  args.memory_kind_sizes = kinds.sizes.data();
  return {};
}

Status PJRT_Executable_OptimizedProgram(PJRT_Executable_OptimizedProgram_Args& args) {
  if (args.program == nullptr) return InvalidArgument("PJRT_Executable_OptimizedProgram: `program` is null");
  const std::string& text = From(args.executable)->program->text;
  if (text.empty()) {
    return Unimplemented(
        "a program of this size or form is not kept as StableHLO; set FERRULE_DUMP=<folder> before compiling to see "
        "every stage");
  }
  static constexpr std::string_view kFormat = "mlir";
  PJRT_Program& out = *args.program;
  out.format = kFormat.data();
  out.format_size = kFormat.size();
  if (out.code == nullptr) {
    out.code_size = text.size();
    return {};
  }
  if (out.code_size < text.size()) {
    return InvalidArgument("PJRT_Executable_OptimizedProgram: the buffer has " + std::to_string(out.code_size) +
                           " bytes, the program needs " + std::to_string(text.size()));
  }
  std::memcpy(out.code, text.data(), text.size());
  out.code_size = text.size();
  return {};
}

Status PJRT_Executable_Serialize(PJRT_Executable_Serialize_Args& args) {
  // The bytes stay with the program; the holder is a reference that keeps them alive.
  auto* executable = const_cast<Executable*>(From(args.executable));
  executable->AddRef();
  args.serialized_bytes = executable->program->bytes.data();
  args.serialized_bytes_size = executable->program->bytes.size();
  args.serialized_executable = reinterpret_cast<PJRT_SerializedExecutable*>(executable);
  args.serialized_executable_deleter = [](PJRT_SerializedExecutable* e) {
    reinterpret_cast<Executable*>(e)->Release();
  };
  return {};
}

Status PJRT_Executable_GetCompileOptions(PJRT_Executable_GetCompileOptions_Args& args) {
  Executable* executable = From(args.executable);
  if (executable->options.empty()) {
    return Unimplemented("the compile options of a deserialized executable are not stored; keep them beside its bytes");
  }
  executable->AddRef();
  args.serialized_bytes = executable->options.data();
  args.serialized_bytes_size = executable->options.size();
  args.serialized_compile_options = reinterpret_cast<PJRT_SerializedCompileOptions*>(executable);
  args.serialized_compile_options_deleter = [](PJRT_SerializedCompileOptions* o) {
    reinterpret_cast<Executable*>(o)->Release();
  };
  return {};
}

}  // namespace api
}  // namespace ferrule

// Compiled programs: an Executable knows the code, a LoadedExecutable the devices that run it.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "client.h"
#include "compile_options.h"
#include "handles.h"
#include "layout.h"
#include "named_value.h"
#include "program.h"
#include "ref.h"
#include "status.h"

namespace ferrule {

class Executable : public RefCounted {
 public:
  // `options` are the serialized compile options, empty when they are not known.
  Executable(std::shared_ptr<const Program> program, std::string options);

  // Compiles in Python, then loads. `options` is checked there.
  static Result<Ref<Executable>> Compile(const PJRT_Program* program, std::string_view options,
                                         std::string_view target);

  const std::shared_ptr<const Program> program;
  const std::string options;

  // What the C API wants as arrays.
  struct Strings {
    std::vector<const char*> data;
    std::vector<size_t> sizes;
    void Add(const std::string& text) { data.push_back(text.data()), sizes.push_back(text.size()); }
  };
  Strings param_memory_kinds, output_memory_kinds, param_shardings, output_shardings;
  std::vector<PJRT_Buffer_Type> output_types;
  std::vector<int64_t> output_dims;
  std::vector<size_t> output_ranks;
  Attributes cost;
  std::vector<int64_t> param_bytes, output_bytes;
  std::vector<Layout> param_layouts, output_layouts;
  std::vector<int64_t> donors;       // per output, the parameter whose memory it may take, or -1
  std::vector<int> output_kind_ids;  // per output, index into a device's memories
};

class LoadedExecutable : public RefCounted {
 public:
  // Places the program on the devices that `options` (or, without any there, the program) names.
  static Result<Ref<LoadedExecutable>> Load(Client* client, Ref<Executable> executable, std::string_view options);

  Status Execute(const PJRT_LoadedExecutable_Execute_Args& args, const PJRT_ExecuteOptions& options);

  const Ref<Client> client;
  const Ref<Executable> executable;
  const DeviceAssignment assignment;
  const std::vector<Device*> devices;  // replica-major
  const std::vector<PJRT_LogicalDeviceIds> logical_ids;
  std::atomic<bool> deleted{false};

 private:
  template <class T>
  friend class Ref;
  LoadedExecutable(Ref<Client> client, Ref<Executable> executable, DeviceAssignment assignment,
                   std::vector<Device*> devices, std::vector<PJRT_LogicalDeviceIds> logical_ids)
      : client(std::move(client)),
        executable(std::move(executable)),
        assignment(std::move(assignment)),
        devices(std::move(devices)),
        logical_ids(std::move(logical_ids)) {}
};

}  // namespace ferrule

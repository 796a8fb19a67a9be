// The Layouts extension. A layout is the text of its order; the texts are shared and never freed.
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "buffer.h"
#include "entry.h"
#include "executable.h"
#include "extensions.h"

namespace ferrule {
namespace {

// "{2,1,0}" for three dimensions in row-major order.
PJRT_Layouts_MemoryLayout* Handle(Layout layout, size_t rank) {
  return reinterpret_cast<PJRT_Layouts_MemoryLayout*>(const_cast<std::string*>(&LayoutText(layout, rank)));
}

Status Destroy(PJRT_Layouts_MemoryLayout_Destroy_Args&) { return {}; }

Status Serialize(PJRT_Layouts_MemoryLayout_Serialize_Args& args) {
  const auto& text = *reinterpret_cast<std::string*>(args.layout);
  args.serialized_bytes = text.data();
  args.serialized_bytes_size = text.size();
  args.serialized_layout = reinterpret_cast<PJRT_Layouts_SerializedLayout*>(args.layout);
  args.serialized_layout_deleter = [](PJRT_Layouts_SerializedLayout*) {};
  return {};
}

Status ClientDefault(PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args& args) {
  args.layout = Handle(nullptr, args.num_dims);
  return {};
}

Status TopologyDefault(PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args& args) {
  args.layout = Handle(nullptr, args.num_dims);
  return {};
}

Status OfBuffer(PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args& args) {
  args.layout = Handle(From(args.buffer)->layout, From(args.buffer)->dims.size());
  return {};
}

// An array of layouts that lives as long as the process: one per distinct list.
PJRT_Layouts_MemoryLayout** Shared(const std::vector<PJRT_Layouts_MemoryLayout*>& layouts) {
  static std::mutex& mutex = *new std::mutex;
  static auto& lists = *new std::map<std::vector<PJRT_Layouts_MemoryLayout*>, int>;
  std::lock_guard lock(mutex);
  return const_cast<PJRT_Layouts_MemoryLayout**>(lists.try_emplace(layouts).first->first.data());
}

template <class Infos>
std::vector<PJRT_Layouts_MemoryLayout*> LayoutsOf(const Infos& infos, const std::vector<Layout>& layouts) {
  std::vector<PJRT_Layouts_MemoryLayout*> handles;
  for (size_t i = 0; i < infos.size(); ++i) handles.push_back(Handle(layouts[i], infos[i].shape.dims.size()));
  return handles;
}

Status Outputs(PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args& args) {
  const auto& outputs = From(args.executable)->program->outputs;
  args.num_outputs = outputs.size();
  args.layouts = Shared(LayoutsOf(outputs, From(args.executable)->output_layouts));
  return {};
}

Status Parameters(PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args& args) {
  const auto& params = From(args.executable)->program->params;
  args.num_parameters = params.size();
  args.layouts = Shared(LayoutsOf(params, From(args.executable)->param_layouts));
  return {};
}

}  // namespace

PJRT_Extension_Base* LayoutsExtension() {
  static PJRT_Layouts_Extension extension = {
      {PJRT_Layouts_Extension_STRUCT_SIZE, PJRT_Extension_Type_Layouts, nullptr},
      Entry<PJRT_Layouts_MemoryLayout_Destroy_Args, Destroy>::Call,
      Entry<PJRT_Layouts_MemoryLayout_Serialize_Args, Serialize>::Call,
      Entry<PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args, ClientDefault>::Call,
      Entry<PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args, OfBuffer>::Call,
      Entry<PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args, TopologyDefault>::Call,
      Entry<PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args, Outputs>::Call,
      Entry<PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args, Parameters>::Call,
  };
  return &extension.base;
}

}  // namespace ferrule

// The Shardings extension: the OpSharding bytes that the compiler stored with each parameter and output.
#include "entry.h"
#include "executable.h"
#include "extensions.h"

namespace ferrule {
namespace {

Status Parameters(PJRT_Shardings_PJRT_Executable_ParameterShardings_Args& args) {
  const auto& shardings = From(args.executable)->param_shardings;
  args.num_parameters = shardings.data.size();
  args.shardings = shardings.data.data();
  args.sharding_sizes = shardings.sizes.data();
  return {};
}

Status Outputs(PJRT_Shardings_PJRT_Executable_OutputShardings_Args& args) {
  const auto& shardings = From(args.executable)->output_shardings;
  args.num_outputs = shardings.data.size();
  args.shardings = shardings.data.data();
  args.sharding_sizes = shardings.sizes.data();
  return {};
}

}  // namespace

PJRT_Extension_Base* ShardingsExtension() {
  static PJRT_Shardings_Extension extension = {
      {PJRT_Shardings_Extension_STRUCT_SIZE, PJRT_Extension_Type_Shardings, nullptr},
      Entry<PJRT_Shardings_PJRT_Executable_ParameterShardings_Args, Parameters>::Call,
      Entry<PJRT_Shardings_PJRT_Executable_OutputShardings_Args, Outputs>::Call,
  };
  return &extension.base;
}

}  // namespace ferrule

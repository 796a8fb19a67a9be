// The plugin as a whole: initialisation and attributes.
#include <cstdlib>

#include "entry.h"
#include "named_value.h"
#include "python.h"

namespace ferrule::api {

Status PJRT_Plugin_Initialize(PJRT_Plugin_Initialize_Args&) { return InitializePython(); }

Status PJRT_Plugin_Attributes(PJRT_Plugin_Attributes_Args& args) {
  static const Attributes& attributes = *[] {
    auto* a = new Attributes;
    a->Add("xla_version", int64_t{2});
    // The framework serializes to the current version at most, and refuses below the minimum.
    a->Add("stablehlo_current_version", std::vector<int64_t>{1, 17, 0});
    a->Add("stablehlo_minimum_version", std::vector<int64_t>{0, 9, 0});
    a->Add("ferrule_version", std::string(FERRULE_VERSION));
    return a;
  }();
  args.attributes = attributes.data();
  args.num_attributes = attributes.size();
  return {};
}

}  // namespace ferrule::api

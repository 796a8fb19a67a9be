// GetPjrtApi: the table through which a framework reaches everything else.
#include "entry.h"
#include "extensions.h"

namespace ferrule {
namespace {

PJRT_Extension_Base* ChainExtensions() {
  PJRT_Extension_Base* const chain[] = {LayoutsExtension(), ShardingsExtension(), MemoryDescriptionsExtension(),
                                        FfiExtension()};
  for (size_t i = 0; i + 1 < std::size(chain); ++i) chain[i]->next = chain[i + 1];
  return chain[0];
}

PJRT_Api MakeTable() {
  PJRT_Api table{};
  table.struct_size = PJRT_Api_STRUCT_SIZE;
  table.extension_start = ChainExtensions();
  table.pjrt_api_version = {PJRT_Api_Version_STRUCT_SIZE, nullptr, PJRT_API_MAJOR, PJRT_API_MINOR};
  table.PJRT_Error_Destroy = ErrorDestroy;
  table.PJRT_Error_Message = ErrorMessage;
#define FERRULE_FILL(name) table.name = Entry<name##_Args, api::name>::Call;
  FERRULE_PJRT_FUNCTIONS(FERRULE_FILL)
#undef FERRULE_FILL
  return table;
}

}  // namespace
}  // namespace ferrule

extern "C" __attribute__((visibility("default"))) const PJRT_Api* GetPjrtApi() {
  static const PJRT_Api table = ferrule::MakeTable();
  return &table;
}

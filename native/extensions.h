// The chain of extensions that the table publishes.
#pragma once

#include "pjrt_abi.h"

namespace ferrule {

PJRT_Extension_Base* LayoutsExtension();
PJRT_Extension_Base* ShardingsExtension();
PJRT_Extension_Base* MemoryDescriptionsExtension();
PJRT_Extension_Base* FfiExtension();

}  // namespace ferrule

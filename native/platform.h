// Which platform this library is in this process, and which target it compiles for.
#pragma once

#include <cstdint>
#include <string>

#include "status.h"

namespace ferrule {

// The folder and file from which this library was loaded.
const std::string& LibraryPath();

// The name under which PJRT_NAMES_AND_LIBRARY_PATHS lists this library, else "ferrule".
std::string PlatformName();

// Version of Ferrule and identity of its compiler; part of the frameworks' compile-cache keys, so it changes whenever
// the library or the Python compiler beside it does.
const std::string& PlatformVersion();

// The target that `wanted` (an option, may be empty), FERRULE_TARGET or the platform's name ask for.
// "cpu", "xpu", or "xpu:name" for a device that need not be here. UNIMPLEMENTED for a known one that this version
// cannot serve, INVALID_ARGUMENT for an unknown one.
Result<std::string> ChooseTarget(const std::string& wanted, const std::string& platform);

Status CheckDeviceCount(int64_t count);

}  // namespace ferrule

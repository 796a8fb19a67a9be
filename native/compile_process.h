// Compiling in a Python process of its own, for when the lock of the process's own interpreter cannot be had.
#pragma once

#include <string>
#include <string_view>

#include "status.h"

namespace ferrule {

// Runs `python -m ferrule.compile_process` with the interpreter and module path that Python handed over at start
// ("python.executable", "python.path", see ferrule.bridge.initialize), and waits for it.
Result<std::string> CompileInProcess(std::string_view code, std::string_view format, std::string_view options,
                                     std::string_view target);

}  // namespace ferrule

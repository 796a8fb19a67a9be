// The bridge to the Python compiler. libferrule.so has no link-time need of libpython: it looks the interpreter's
// functions up in the process, and opens a libpython when there is none (FERRULE_PYTHON_LIBRARY, else `python3`'s own).
#pragma once

#include <string>
#include <string_view>

#include "status.h"

namespace ferrule {

// Makes the compiler importable (adds the folder above libferrule.so's to sys.path when `import ferrule` fails) and
// calls ferrule.bridge.initialize(library_path). Safe to call again, from any thread, with or without the GIL.
Status InitializePython();

// Calls ferrule.bridge.compile(code, format, options, target) -> bytes on an own thread with a large stack, and waits
// without holding the GIL. A FerruleError's `code` attribute becomes the status code, str(error) the message.
// `code` is the program as PJRT hands it over, `options` a serialized CompileOptionsProto, `target` a target's name.
Result<std::string> CompileInPython(std::string_view code, std::string_view format, std::string_view options,
                                    std::string_view target);

// Calls ferrule.bridge.<function>(payload: bytes) -> bytes under the GIL on the calling thread.
Result<std::string> CallPython(const char* function, std::string_view payload);

}  // namespace ferrule

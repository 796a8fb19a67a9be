// Preparing the calls that run on the host: the same for every target.
#pragma once

#include <memory>
#include <string>

#include "calls.h"
#include "program_reader.h"
#include "status.h"

namespace ferrule {

// Finds the call in Ferrule's registry, or the FFI handler, and prepares it. `program` and `compiler` are for errors.
Result<std::unique_ptr<Prepared>> PrepareHostCall(const CallData& call, const std::string& program,
                                                  const std::string& compiler);

// The error with the user's source line behind its first line, where every error of Ferrule has it.
Status Located(const Status& status, const std::string& where);

}  // namespace ferrule

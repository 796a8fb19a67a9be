#include "host_call.h"

#include <algorithm>

#include "ffi.h"
#include "part_call.h"

namespace ferrule {

Status Located(const Status& status, const std::string& where) {
  if (status.ok()) return status;
  if (where.empty()) return status;
  std::string text = status.message();
  text.insert(std::min(text.find('\n'), text.size()), "\n  where: " + where);
  return {status.code(), std::move(text)};
}

Result<std::unique_ptr<Prepared>> PrepareHostCall(const CallData& call, const std::string& program,
                                                  const std::string& compiler) {
  if (call.ffi) {
    auto prepared = PrepareFfiCall(call.desc);
    if (!prepared.ok()) return Located(prepared.status(), call.where);
    return prepared;
  }
  Factory factory = FindCall(call.desc.target);
  if (!factory) {
    return NotFound("the program '" + program + "' calls '" + call.desc.target +
                    "', which this build of Ferrule does not have\n  fix: load it with the Ferrule that compiled it (" +
                    compiler + ")");
  }
  auto prepared = call.desc.attrs.count("parts") ? PrepareParts(call.desc, factory) : factory(call.desc);
  if (!prepared.ok()) return Located(prepared.status(), call.where);
  return prepared;
}

}  // namespace ferrule

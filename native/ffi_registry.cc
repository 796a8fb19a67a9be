// The handlers, types and user data that FFI calls find by name and number.
#include <algorithm>
#include <cctype>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "ffi.h"
#include "ffi_context.h"
#include "platform.h"

namespace ferrule {
namespace {

using Deleter = void (*)(void*);

// Never destroyed: programs may be freed while the process exits.
struct Registry {
  std::mutex mutex;
  std::map<std::pair<std::string, std::string>, FfiHandler> handlers;  // by platform and name
  std::map<std::string, int64_t> types;
  std::map<int64_t, Deleter> deleters;
  int64_t next_type = 1;
};

Registry& TheRegistry() {
  static auto* registry = new Registry;
  return *registry;
}

// Callers name a platform by XLA's name of the hardware or by what our clients call themselves.
std::string Canonical(std::string platform) {
  if (platform == PlatformName()) return "cpu";
  for (char& c : platform) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  // Programs for xpu call handlers on the host, too.
  return platform == "host" || platform == "ferrule" || platform == "xpu" ? "cpu" : platform;
}

// Asks the handler which interface it was compiled for.
Status QueryMetadata(const std::string& name, FfiHandler* handler) {
  XLA_FFI_Metadata metadata{};
  metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
  metadata.api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension{};
  extension.extension_base = {XLA_FFI_Metadata_Extension_STRUCT_SIZE, XLA_FFI_Extension_Metadata, nullptr};
  extension.metadata = &metadata;
  XLA_FFI_CallFrame frame{};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.extension_start = &extension.extension_base;
  frame.api = &ffi::TheApi();
  frame.stage = XLA_FFI_ExecutionStage_EXECUTE;
  Status status = ffi::TakeError(reinterpret_cast<XLA_FFI_Handler*>(handler->execute)(&frame));
  if (!status.ok())
    return Status(status.code(), "the FFI handler '" + name +
                                     "' does not tell which interface it was made for\n  why: " + status.message());
  const XLA_FFI_Api_Version& version = metadata.api_version;
  if (version.major_version != XLA_FFI_API_MAJOR || version.minor_version > XLA_FFI_API_MINOR)
    return FailedPrecondition("the FFI handler '" + name + "' was compiled for version " +
                              std::to_string(version.major_version) + "." + std::to_string(version.minor_version) +
                              " of XLA's FFI; this Ferrule offers version " + std::to_string(XLA_FFI_API_MAJOR) + "." +
                              std::to_string(XLA_FFI_API_MINOR));
  handler->traits |= metadata.traits;
  return {};
}

// How many single-letter edits lie between two names.
size_t Distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t k = 1; k <= b.size(); ++k) {
      size_t above = row[k];
      row[k] = std::min({above + 1, row[k - 1] + 1, diagonal + (a[i - 1] != b[k - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

Status RegisterFfiHandler(const std::string& name, const std::string& platform, const FfiHandler& handler) {
  if (name.empty()) return InvalidArgument("an FFI handler needs a name");
  if (!handler.execute) return InvalidArgument("the FFI handler '" + name + "' has no function to execute");
  FfiHandler checked = handler;
  FERRULE_RETURN_IF_ERROR(QueryMetadata(name, &checked));
  Registry& r = TheRegistry();
  std::lock_guard lock(r.mutex);
  auto [entry, is_new] = r.handlers.try_emplace({Canonical(platform), name}, checked);
  const FfiHandler& old = entry->second;
  if (!is_new && (old.instantiate != handler.instantiate || old.prepare != handler.prepare ||
                  old.initialize != handler.initialize || old.execute != handler.execute))
    return Status(Code::kAlreadyExists, "another FFI handler is registered as '" + name + "' already");
  return {};
}

Status RegisterFfiType(const std::string& name, int64_t* id, void (*deleter)(void*)) {
  Registry& r = TheRegistry();
  std::lock_guard lock(r.mutex);
  if (auto found = r.types.find(name); found != r.types.end()) {
    if (*id != 0 && *id != found->second)
      return Status(Code::kAlreadyExists, "the FFI type '" + name + "' has the number " +
                                              std::to_string(found->second) + ", not " + std::to_string(*id));
    *id = found->second;
    return {};
  }
  if (*id == 0) {
    while (r.deleters.contains(r.next_type)) ++r.next_type;
    *id = r.next_type++;
  } else if (r.deleters.contains(*id)) {
    return Status(Code::kAlreadyExists, "the FFI type number " + std::to_string(*id) + " is taken already");
  }
  r.types.emplace(name, *id);
  r.deleters.emplace(*id, deleter);
  return {};
}

struct FfiUserData::Rep {
  std::map<int64_t, std::pair<void*, Deleter>> objects;
};

FfiUserData::FfiUserData() : rep_(new Rep) {}

FfiUserData::~FfiUserData() {
  for (const auto& [id, entry] : rep_->objects)
    if (entry.first && entry.second) entry.second(entry.first);
}

Status FfiUserData::Add(int64_t type_id, void* data) {
  Deleter deleter = nullptr;
  if (!ffi::FindType(type_id, &deleter))
    return NotFound("user data of the FFI type " + std::to_string(type_id) + ", which is not registered");
  if (!rep_->objects.try_emplace(type_id, data, deleter).second)
    return Status(Code::kAlreadyExists,
                  "user data of the FFI type " + std::to_string(type_id) + " was added to this context already");
  return {};
}

void* FfiUserData::Get(int64_t type_id) const {
  auto found = rep_->objects.find(type_id);
  return found == rep_->objects.end() ? nullptr : found->second.first;
}

namespace ffi {

bool FindType(int64_t id, void (**deleter)(void*)) {
  Registry& r = TheRegistry();
  std::lock_guard lock(r.mutex);
  auto found = r.deleters.find(id);
  *deleter = found == r.deleters.end() ? nullptr : found->second;
  return found != r.deleters.end();
}

Result<FfiHandler> FindHandler(const std::string& name) {
  Registry& r = TheRegistry();
  std::lock_guard lock(r.mutex);
  // "xla_cpu": what is registered for XLA's own CPU platform serves ours, too, unless somebody says otherwise by name.
  for (const char* platform : {"cpu", "xla_cpu"}) {
    if (auto found = r.handlers.find({platform, name}); found != r.handlers.end()) return found->second;
  }
  std::vector<std::pair<size_t, std::string>> near;
  size_t total = 0;
  for (const auto& [key, handler] : r.handlers) {
    if (key.first != "cpu") continue;
    ++total;
    size_t distance = Distance(name, key.second);
    bool contains = key.second.find(name) != std::string::npos || name.find(key.second) != std::string::npos;
    if (contains || distance <= std::max<size_t>(3, name.size() / 3)) near.emplace_back(distance, key.second);
  }
  std::sort(near.begin(), near.end());
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(near.size(), 6); ++i) text += (i ? ", " : "") + near[i].second;
  return NotFound("no FFI handler is registered as '" + name + "' for the platform cpu\n  why: " +
                  (text.empty() ? "none of the " + std::to_string(total) + " registered handlers has a similar name"
                                : "similar names that are registered: " + text) +
                  "\n  fix: register it before compiling (jax.ffi.register_ffi_target with platform='cpu')");
}

}  // namespace ffi
}  // namespace ferrule

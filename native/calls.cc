// The registries behind CALL steps: builtin targets, symbols and library paths handed over by Python.
#include "calls.h"

#include <mutex>

namespace ferrule {
namespace {

// Never destroyed: static initialisers of other files fill it, and threads may read it while the process exits.
struct Registry {
  std::mutex mutex;
  std::map<std::string, Factory> factories;
  std::map<std::string, void*> symbols;
  std::map<std::string, std::string> paths;
};

Registry& TheRegistry() {
  static auto* registry = new Registry;
  return *registry;
}

}  // namespace

bool RegisterCall(const char* target, Factory factory) {
  Registry& r = TheRegistry();
  std::lock_guard lock(r.mutex);
  return r.factories.emplace(target, factory).second;
}

Factory FindCall(const std::string& target) {
  Registry& r = TheRegistry();
  std::lock_guard lock(r.mutex);
  auto found = r.factories.find(target);
  return found == r.factories.end() ? nullptr : found->second;
}

std::vector<std::string> CallTargets() {
  Registry& r = TheRegistry();
  std::lock_guard lock(r.mutex);
  std::vector<std::string> names;
  for (const auto& [name, factory] : r.factories) names.push_back(name);
  return names;
}

void SetSymbol(const std::string& name, void* address) {
  Registry& r = TheRegistry();
  std::lock_guard lock(r.mutex);
  r.symbols[name] = address;
}

void* GetSymbol(const std::string& name) {
  Registry& r = TheRegistry();
  std::lock_guard lock(r.mutex);
  auto found = r.symbols.find(name);
  return found == r.symbols.end() ? nullptr : found->second;
}

void SetPath(const std::string& name, const std::string& path) {
  Registry& r = TheRegistry();
  std::lock_guard lock(r.mutex);
  r.paths[name] = path;
}

std::string GetPath(const std::string& name) {
  Registry& r = TheRegistry();
  std::lock_guard lock(r.mutex);
  auto found = r.paths.find(name);
  return found == r.paths.end() ? std::string() : found->second;
}

}  // namespace ferrule

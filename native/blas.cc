#include "blas.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace ferrule {
namespace {

void* OpenBlas() {
  static std::once_flag tried;
  static void* library = nullptr;
  std::string path = GetPath("path.openblas");
  if (path.empty()) return nullptr;
  std::call_once(tried, [&] {
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    const char* level = std::getenv("FERRULE_DEBUG");
    if (!library && level && std::atoi(level) >= 1) std::fprintf(stderr, "ferrule: no OpenBLAS: %s\n", dlerror());
  });
  return library;
}

}  // namespace

void* BlasRoutine(const std::string& name) {
  for (const char* prefix : {"blas.", "lapack."}) {
    if (void* address = GetSymbol(prefix + name)) return address;
  }
  void* library = OpenBlas();
  // The library in SciPy's wheels has its names marked, so that they meet no other BLAS in the process.
  return library ? dlsym(library, ("scipy_" + name + "_").c_str()) : nullptr;
}

}  // namespace ferrule

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

struct Threads {
  std::mutex mutex;
  int users = 0, before = 0;
};
Threads& BlasThreads() {
  static auto* threads = new Threads;
  return *threads;
}

int (*ThreadCount())() {
  void* library = OpenBlas();
  return reinterpret_cast<int (*)()>(library ? dlsym(library, "scipy_openblas_get_num_threads") : nullptr);
}
void (*SetThreadCount())(int) {
  void* library = OpenBlas();
  return reinterpret_cast<void (*)(int)>(library ? dlsym(library, "scipy_openblas_set_num_threads") : nullptr);
}

}  // namespace

OneBlasThread::OneBlasThread() {
  static const auto count = ThreadCount();
  static const auto set = SetThreadCount();
  Threads& threads = BlasThreads();
  std::lock_guard lock(threads.mutex);
  if (threads.users++ > 0 || !count || !set) return;
  threads.before = count();
  if (threads.before != 1) set(1);
}

OneBlasThread::~OneBlasThread() {
  static const auto set = SetThreadCount();
  Threads& threads = BlasThreads();
  std::lock_guard lock(threads.mutex);
  if (--threads.users == 0 && set && threads.before > 1) set(threads.before);
}

void* BlasRoutine(const std::string& name) {
  for (const char* prefix : {"blas.", "lapack."}) {
    if (void* address = GetSymbol(prefix + name)) return address;
  }
  void* library = OpenBlas();
  // The library in SciPy's wheels has its names marked, so that they meet no other BLAS in the process.
  return library ? dlsym(library, ("scipy_" + name + "_").c_str()) : nullptr;
}

}  // namespace ferrule

#include "mkl_api.h"

#include <dlfcn.h>

#include <mutex>

namespace ferrule_sycl {
namespace {

std::mutex path_mutex;
std::string path;

constexpr char kWhatToDo[] = " (pip install 'ferrule[xpu,mkl]', or FERRULE_LIBRARIES_OFF=mkl-sycl to do without)";

MklPrepare Open() {
  std::lock_guard lock(path_mutex);
  if (path.empty()) throw Error{kNotFound, std::string("oneMKL is not installed") + kWhatToDo};
  // Lazily: much of what oneMKL's libraries need of each other is never called.
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (!library) throw Error{kNotFound, std::string("oneMKL cannot be opened: ") + dlerror() + kWhatToDo};
  auto prepare = reinterpret_cast<MklPrepare>(dlsym(library, "ferrule_mkl_prepare"));
  if (!prepare) throw Error{kNotFound, path + " is not of this driver: it exports no ferrule_mkl_prepare"};
  return prepare;
}

}  // namespace

void SetMklPath(std::string given) {
  std::lock_guard lock(path_mutex);
  path = std::move(given);
}

std::unique_ptr<FerruleCall> PrepareMkl(FerruleDevice* device, const FerruleCallDesc& desc) {
  static const MklPrepare prepare = Open();  // tried again after a failure: the path may still be handed over
  return std::unique_ptr<FerruleCall>(prepare(device, &desc));
}

}  // namespace ferrule_sycl

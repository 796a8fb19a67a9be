#include "platform.h"

#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "calls.h"
#include "topology.h"

namespace ferrule {
namespace {

const char kAnchor = 0;  // an address inside this library

std::string RealPath(const std::string& path) {
  char* real = realpath(path.c_str(), nullptr);
  std::string result = real != nullptr ? real : path;
  std::free(real);
  return result;
}

// The linker's build id of this library, in hex; empty when there is none.
std::string BuildId() {
  std::string id;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        const auto anchor = reinterpret_cast<uintptr_t>(&kAnchor);
        bool ours = false;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& p = info->dlpi_phdr[i];
          const uintptr_t start = info->dlpi_addr + p.p_vaddr;
          ours |= p.p_type == PT_LOAD && anchor >= start && anchor < start + p.p_memsz;
        }
        if (!ours) return 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& p = info->dlpi_phdr[i];
          if (p.p_type != PT_NOTE) continue;
          const char* at = reinterpret_cast<const char*>(info->dlpi_addr + p.p_vaddr);
          const char* end = at + p.p_memsz;
          while (at + sizeof(ElfW(Nhdr)) <= end) {
            ElfW(Nhdr) note;
            std::memcpy(&note, at, sizeof note);
            const char* name = at + sizeof note;
            const char* data = name + (note.n_namesz + 3) / 4 * 4;
            if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
              static constexpr char kHex[] = "0123456789abcdef";
              for (unsigned k = 0; k < note.n_descsz; ++k) {
                const auto byte = static_cast<unsigned char>(data[k]);
                *static_cast<std::string*>(out) += {kHex[byte >> 4], kHex[byte & 15]};
              }
              return 1;
            }
            at = data + (note.n_descsz + 3) / 4 * 4;
          }
        }
        return 1;
      },
      &id);
  return id;
}

// Hash of every Python file below `folder`, in the order of their names.
uint64_t HashPython(const std::string& folder, uint64_t hash, int depth) {
  DIR* directory = opendir(folder.c_str());
  if (directory == nullptr || depth > 6) {
    if (directory != nullptr) closedir(directory);
    return hash;
  }
  std::vector<std::string> names;
  while (dirent* entry = readdir(directory)) names.emplace_back(entry->d_name);
  closedir(directory);
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    if (name.starts_with(".") || name == "__pycache__") continue;
    const std::string path = folder + "/" + name;
    struct stat info;
    if (stat(path.c_str(), &info) != 0) continue;
    if (S_ISDIR(info.st_mode)) {
      hash = HashPython(path, hash, depth + 1);
    } else if (name.ends_with(".py")) {
      std::ifstream file(path, std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      hash = Hash(text, Hash(name, hash));
    }
  }
  return hash;
}

}  // namespace

const std::string& LibraryPath() {
  static const std::string& path = *new std::string([] {
    Dl_info info;
    if (dladdr(&kAnchor, &info) == 0 || info.dli_fname == nullptr) return std::string();
    return RealPath(info.dli_fname);
  }());
  return path;
}

std::string PlatformName() {
  const char* listed = std::getenv("PJRT_NAMES_AND_LIBRARY_PATHS");
  std::string list = listed != nullptr ? listed : "";
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    const std::string item = list.substr(at, end - at);
    at = end + 1;
    const size_t colon = item.find(':');
    if (colon == std::string::npos || colon == 0) continue;
    if (RealPath(item.substr(colon + 1)) == LibraryPath()) return item.substr(0, colon);
  }
  return "ferrule";
}

const std::string& PlatformVersion() {
  static const std::string& version = *new std::string([] {
    // ferrule.bridge says where the Python compiler is; without it, it may lie beside the library.
    std::string folder = GetPath("path.package");
    if (folder.empty()) folder = LibraryPath().substr(0, LibraryPath().rfind('/'));
    std::string text = std::string("Ferrule ") + FERRULE_VERSION + " build " + BuildId().substr(0, 16);
    if (std::ifstream(folder + "/bridge.py").good()) {
      char hash[32];
      std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(HashPython(folder, Hash(""), 0)));
      text += std::string(" compiler ") + hash;
    }
    return text;
  }());
  return version;
}

Result<std::string> ChooseTarget(const std::string& wanted, const std::string& platform) {
  std::string target = wanted;
  if (target.empty()) {
    if (const char* env = std::getenv("FERRULE_TARGET"); env != nullptr) target = env;
  }
  if (target.empty() && (platform == "xpu" || platform == "cuda")) target = platform;
  if (target.empty() || target == "auto" || target == "cpu") return std::string("cpu");
  if (target == "xpu" || target.starts_with("xpu:")) return target;
  if (target == "cuda") {
    return Unimplemented(
        "the cuda (NVIDIA GPU) target is not in this version of Ferrule; use the platform `ferrule`, or set "
        "FERRULE_TARGET=cpu to run on the CPU under this name");
  }
  return InvalidArgument("unknown target `" + target +
                         "` (from the option `target` or FERRULE_TARGET); known: auto, cpu, xpu, and for compiling "
                         "without a device xpu:<name>, such as xpu:pvc");
}

Status CheckDeviceCount(int64_t count) {
  if (count >= 1 && count <= 1024) return {};
  return InvalidArgument("num_devices must be between 1 and 1024, got " + std::to_string(count));
}

}  // namespace ferrule

#include "driver_library.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>

#include "platform.h"
#include "profile.h"
#include "python.h"

namespace ferrule {
namespace {

// What Python found (ferrule/targets/xpu.py): name=value lines.
struct Files {
  std::string lines, driver, icd, dnnl, mkl, missing, fix;
  std::vector<std::string> preload;
};

Result<Files> FindFiles(const std::string& target) {
  auto found = CallPython("device_libraries", target);
  if (!found.ok()) return found.status();
  Files files;
  files.lines = *found;
  std::stringstream lines(*found);
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = line.substr(0, equals), value = line.substr(equals + 1);
    if (name == "driver") files.driver = value;
    if (name == "icd") files.icd = value;
    if (name == "dnnl") files.dnnl = value;
    if (name == "mkl") files.mkl = value;
    if (name == "missing") files.missing = value;
    if (name == "fix") files.fix = value;
    if (name == "preload") files.preload.push_back(value);
  }
  return files;
}

Status NoDevice(const std::string& target, const Files& files, const std::string& why) {
  std::string text = "no device for the platform " + target + " was found";
  text += "\n  looked for: an Intel GPU through Level Zero or OpenCL, then the SYCL CPU device that stands in for one";
  if (!why.empty()) text += "\n  why: " + why;
  if (!files.missing.empty()) text += (why.empty() ? "\n  why: " : "; ") + files.missing;
  if (!files.fix.empty()) text += "\n  fix: " + files.fix;
  return {Code::kFailedPrecondition, std::move(text)};
}

// The loader of OpenCL drivers reads the variable when it first looks for devices.
void AddOpenClDriver(const std::string& icd) {
  const char* old = std::getenv("OCL_ICD_FILENAMES");
  const std::string list = old != nullptr ? old : "";
  if (icd.empty() || list.find(icd) != std::string::npos) return;
  setenv("OCL_ICD_FILENAMES", (list.empty() ? icd : list + ":" + icd).c_str(), 1);
}

// Intel's compiler for the processor that stands in for a GPU (intel-opencl-rt 2026.2) ends the process while it
// vectorizes some kernels in f64 for processors without AVX-512: it reads what it has freed. Kernels stay scalar there.
void AvoidVectorizer() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx512f")) setenv("CL_CONFIG_CPU_VECTORIZER_MODE", "1", 0);
#endif
}

Result<const FerruleDriver*> Open(const std::string& target, const Files& files) {
  if (files.driver.empty()) return NoDevice(target, files, "");
  AddOpenClDriver(files.icd);
  AvoidVectorizer();
  std::string failed;
  for (const std::string& path : files.preload) {
    // What is missing here shows when the driver is opened; most of it only some devices need.
    if (dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) failed += std::string("; ") + dlerror();
  }
  void* library = dlopen(files.driver.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const std::string why = dlerror();
    return NoDevice(target, files, "the driver cannot be opened: " + why + failed);
  }
  auto get = reinterpret_cast<FerruleGetDriver>(dlsym(library, "ferrule_get_driver"));
  const FerruleDriver* driver = get != nullptr ? get(FERRULE_DRIVER_ABI, files.lines.c_str()) : nullptr;
  if (driver == nullptr || driver->abi != FERRULE_DRIVER_ABI || driver->struct_size < sizeof(FerruleDriver)) {
    return FailedPrecondition(
        "the driver " + files.driver + " does not serve this version of Ferrule\n  why: " +
        (get == nullptr ? "it exports no ferrule_get_driver" : "its interface is another version") +
        "\n  fix: install both from one package");
  }
  return driver;
}

struct Opened {
  Files files;
  DriverDevices found;
  Status status;
};

// Kept for the life of the process: libraries of this size are never closed.
const Opened& OpenOnce(const std::string& target) {
  static std::mutex& mutex = *new std::mutex;
  static auto& opened = *new std::map<std::string, Opened>;
  std::lock_guard lock(mutex);
  auto [at, is_new] = opened.try_emplace(target);
  Opened& result = at->second;
  if (!is_new && result.status.ok()) return result;
  result = {};
  auto files = FindFiles(target);
  result.status = files.status();
  if (!files.ok()) return result;
  result.files = std::move(*files);
  auto driver = Open(target, result.files);
  result.status = driver.status();
  if (!driver.ok()) return result;
  const FerruleDeviceInfo* const* infos = nullptr;
  size_t count = 0;
  const char* tiles = std::getenv("FERRULE_XPU_TILES");
  const bool split = tiles != nullptr && std::string_view(tiles) == "1";
  if (const int code = (*driver)->devices(split ? "tiles=1" : nullptr, &infos, &count); code != 0 || count == 0) {
    result.status = NoDevice(target, result.files, (*driver)->last_error());
    return result;
  }
  if (DebugLevel() >= 1 && result.files.dnnl.empty()) {
    std::fprintf(stderr,
                 "ferrule: oneDNN for the platform %s is switched off or missing (pip install 'onednn>=2026.1,<2027'): "
                 "products and convolutions run as generated kernels\n",
                 target.c_str());
  }
  if (DebugLevel() >= 1 && result.files.mkl.empty()) {
    std::fprintf(stderr,
                 "ferrule: oneMKL for the platform %s is switched off or missing (pip install 'ferrule[xpu,mkl]'): "
                 "transforms run as generated kernels or on the host, factorizations on the host\n",
                 target.c_str());
  }
  result.found.driver = *driver;
  for (size_t i = 0; i < count; ++i) result.found.devices.push_back({i, infos[i]});
  return result;
}

bool IsGpu(const DriverDevice& device) { return std::string_view(device.info->kind) == "gpu"; }

}  // namespace

Result<DriverDevices> FindDevices(const std::string& target) {
  const Opened& opened = OpenOnce(target);
  if (!opened.status.ok()) return opened.status;
  const char* text = std::getenv("FERRULE_XPU_DEVICE");
  const std::string wanted = text != nullptr ? text : "";
  if (!wanted.empty() && wanted != "gpu" && wanted != "cpu") {
    return InvalidArgument("FERRULE_XPU_DEVICE=" + wanted + " is not known; it is `gpu`, `cpu` or not set");
  }
  DriverDevices chosen{target, !opened.files.dnnl.empty(), !opened.files.mkl.empty(), opened.found.driver, {}};
  for (const DriverDevice& device : opened.found.devices) {
    if (wanted != "cpu" && IsGpu(device)) chosen.devices.push_back(device);
  }
  if (!chosen.devices.empty()) return chosen;
  std::string names;
  for (const DriverDevice& device : opened.found.devices) {
    names += (names.empty() ? "" : ", ") + std::string(device.info->name) + " (" + device.info->kind + ")";
    if (wanted != "gpu" && !IsGpu(device)) chosen.devices.push_back(device);
  }
  if (chosen.devices.empty()) {
    return NoDevice(target, opened.files, "FERRULE_XPU_DEVICE=" + wanted + ", and what was found is " + names);
  }
  chosen.devices.resize(1);
  if (wanted.empty()) {
    static std::once_flag said;
    std::call_once(said, [&] {
      std::fprintf(stderr,
                   "ferrule: no Intel GPU can be used (%s); the platform %s runs on the processor through SYCL: %s. "
                   "FERRULE_XPU_DEVICE=cpu says that this is wanted, `ferrule doctor` what a GPU needs.\n",
                   opened.files.missing.c_str(), target.c_str(), chosen.devices[0].info->name);
    });
  }
  return chosen;
}

bool HostAccess(const FerruleDeviceInfo& info) {
  const char* text = std::getenv("FERRULE_HOST_ACCESS");
  return info.host_access != 0 && !(text != nullptr && std::string_view(text) == "0");
}

Ref<Topology> DriverTopology(const std::string& platform, const DriverDevices& found, int count) {
  const std::string compiler_target = DescribeForCompiler(found);
  std::vector<DeviceFacts> list;
  for (const DriverDevice& device : found.devices) {
    const FerruleDeviceInfo& info = *device.info;
    DeviceFacts& facts = list.emplace_back();
    facts.kind = IsGpu(device) ? info.name : std::string(info.name) + " (SYCL CPU device)";
    std::string formats;
    const std::pair<uint32_t, const char*> known[] = {
        {FERRULE_FORMAT_F16, "f16"}, {FERRULE_FORMAT_F64, "f64"}, {FERRULE_FORMAT_ATOMIC64, "atomic64"}};
    for (const auto& [bit, name] : known) {
      if ((info.formats & bit) != 0) formats += (formats.empty() ? "" : ", ") + std::string(name);
    }
    facts.texts = {{"backend", info.backend},
                   {"driver_version", info.driver_version},
                   {"formats", formats},
                   {"compiler_target", compiler_target}};
    facts.numbers = {{"core_count", info.compute_units},
                     {"memory_bytes", info.memory_bytes},
                     {"stand_in", !IsGpu(device)},
                     {"host_access", HostAccess(info)}};
  }
  return Ref<Topology>::Make(platform, PlatformVersion(), compiler_target, count, std::move(list));
}

std::string DescribeForCompiler(const DriverDevices& found) {
  const FerruleDeviceInfo& info = *found.devices.front().info;
  std::string text = found.target + ":arch=" + info.arch + ",kind=" + info.kind;
  const auto add = [&text](const char* name, int64_t value) {
    text += std::string(",") + name + "=" + std::to_string(value);
  };
  add("units", info.compute_units);
  add("group", info.max_group_size);
  add("local", info.local_memory_bytes);
  text += ",sub_groups=";
  for (size_t i = 0; i < std::size(info.sub_group_sizes) && info.sub_group_sizes[i] != 0; ++i) {
    text += (i > 0 ? "/" : "") + std::to_string(info.sub_group_sizes[i]);
  }
  add("f16", (info.formats & FERRULE_FORMAT_F16) != 0);
  add("f64", (info.formats & FERRULE_FORMAT_F64) != 0);
  add("atomic64", (info.formats & FERRULE_FORMAT_ATOMIC64) != 0);
  add("host", HostAccess(info));
  add("dnnl", found.has_dnnl);
  add("mkl", found.has_mkl);
  add("clock", info.clock_mhz);
  add("memory", info.memory_bytes);
  return text;
}

}  // namespace ferrule

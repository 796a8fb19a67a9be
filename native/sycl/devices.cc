// Which devices there are, best first: GPUs of Level Zero, other GPUs, a CPU that stands in for one.
#include <sycl/ext/oneapi/experimental/device_architecture.hpp>

#include "device.h"

namespace ferrule_sycl {
namespace {

// The architectures that compilers know by name, as in "xpu:pvc".
std::string ArchOf(const sycl::device& device) {
  using A = sycl::ext::oneapi::experimental::architecture;
  try {
    switch (device.get_info<sycl::ext::oneapi::experimental::info::device::architecture>()) {
      case A::intel_gpu_tgllp:
      case A::intel_gpu_rkl:
      case A::intel_gpu_adl_s:
      case A::intel_gpu_adl_p:
      case A::intel_gpu_adl_n:
      case A::intel_gpu_dg1:
        return "tgl";  // one generation: Xe-LP
      case A::intel_gpu_acm_g10:
      case A::intel_gpu_acm_g11:
      case A::intel_gpu_acm_g12:
        return "dg2";
      case A::intel_gpu_pvc:
      case A::intel_gpu_pvc_vg:
        return "pvc";
      case A::intel_gpu_mtl_u:
      case A::intel_gpu_mtl_h:
        return "mtl";
      case A::intel_gpu_arl_h:
        return "arl";
      case A::intel_gpu_bmg_g21:
      case A::intel_gpu_bmg_g31:
        return "bmg";
      case A::intel_gpu_lnl_m:
        return "lnl";
      case A::intel_gpu_ptl_h:
      case A::intel_gpu_ptl_u:
        return "ptl";
      default:
        return "";
    }
  } catch (const sycl::exception&) {  // newer than the runtime
    return "";
  }
}

std::unique_ptr<Found> Look(const sycl::device& device, const sycl::context& context) {
  namespace info = sycl::info::device;
  auto found = std::make_unique<Found>();
  found->device = device;
  found->context = context;
  found->name = device.get_info<info::name>();
  found->kind = device.is_gpu() ? "gpu" : "cpu";
  found->backend = device.get_backend() == sycl::backend::ext_oneapi_level_zero ? "level_zero" : "opencl";
  found->driver_version = device.get_info<info::driver_version>();
  found->arch = device.is_gpu() ? ArchOf(device) : "";
  FerruleDeviceInfo& about = found->info;
  about.name = found->name.c_str();
  about.kind = found->kind.c_str();
  about.backend = found->backend.c_str();
  about.driver_version = found->driver_version.c_str();
  about.arch = found->arch.c_str();
  about.memory_bytes = static_cast<int64_t>(device.get_info<info::global_mem_size>());
  about.max_allocation_bytes = static_cast<int64_t>(device.get_info<info::max_mem_alloc_size>());
  about.local_memory_bytes = static_cast<int64_t>(device.get_info<info::local_mem_size>());
  about.compute_units = static_cast<int32_t>(device.get_info<info::max_compute_units>());
  about.max_group_size = static_cast<int32_t>(device.get_info<info::max_work_group_size>());
  about.clock_mhz = static_cast<int32_t>(device.get_info<info::max_clock_frequency>());
  size_t i = 0;
  for (size_t size : device.get_info<info::sub_group_sizes>()) {
    if (i < 8) about.sub_group_sizes[i++] = static_cast<int32_t>(size);
  }
  if (device.has(sycl::aspect::fp16)) about.formats |= FERRULE_FORMAT_F16;
  if (device.has(sycl::aspect::fp64)) about.formats |= FERRULE_FORMAT_F64;
  if (device.has(sycl::aspect::atomic64)) about.formats |= FERRULE_FORMAT_ATOMIC64;
  about.host_access = device.is_cpu();  // a GPU's own memory is not mapped, even where it is the host's
  return found;
}

bool IsIntel(const sycl::platform& platform) {
  return platform.get_info<sycl::info::platform::vendor>().find("Intel") != std::string::npos;
}

void AddGpus(const sycl::platform& platform, bool tiles, Devices* all) {
  for (const sycl::device& device : platform.get_devices(sycl::info::device_type::gpu)) {
    std::vector<sycl::device> parts;
    if (tiles && device.get_info<sycl::info::device::partition_max_sub_devices>() > 1) {
      parts = device.create_sub_devices<sycl::info::partition_property::partition_by_affinity_domain>(
          sycl::info::partition_affinity_domain::next_partitionable);
    }
    if (parts.size() < 2) {
      all->list.push_back(Look(device, platform.khr_get_default_context()));
      continue;
    }
    sycl::context context(parts);
    for (size_t i = 0; i < parts.size(); ++i) {
      all->list.push_back(Look(parts[i], context));
      Found& tile = *all->list.back();
      tile.name += " tile " + std::to_string(i);
      tile.info.name = tile.name.c_str();
    }
  }
}

// What SYCL shows, when there is no device. Which packages are missing is for others to say: they know where to look.
std::string WhyNone(const std::string& error) {
  if (!error.empty()) return error;
  std::string platforms;
  for (const sycl::platform& platform : sycl::platform::get_platforms()) {
    platforms += (platforms.empty() ? "" : ", ") + platform.get_info<sycl::info::platform::name>();
  }
  return "SYCL shows no Intel GPU and no OpenCL CPU device; its platforms: " + (platforms.empty() ? "none" : platforms);
}

Devices Enumerate(bool tiles) {
  Devices all;
  std::string error;
  try {
    std::vector<sycl::platform> platforms = sycl::platform::get_platforms();
    for (const sycl::platform& platform : platforms) {
      if (platform.get_backend() == sycl::backend::ext_oneapi_level_zero) AddGpus(platform, tiles, &all);
    }
    bool level_zero = !all.list.empty();
    for (const sycl::platform& platform : platforms) {
      if (platform.get_backend() != sycl::backend::opencl) continue;
      // Level Zero's devices are shown by OpenCL once more.
      if (!(level_zero && IsIntel(platform))) AddGpus(platform, tiles, &all);
    }
    // One CPU, Intel's runtime before another's; a system's copy of it shows the same CPU once more.
    std::unique_ptr<Found> cpu;
    for (const sycl::platform& platform : platforms) {
      if (platform.get_backend() != sycl::backend::opencl || (cpu && !IsIntel(platform))) continue;
      for (const sycl::device& device : platform.get_devices(sycl::info::device_type::cpu)) {
        cpu = Look(device, platform.khr_get_default_context());
      }
      if (cpu && IsIntel(platform)) break;
    }
    if (cpu) all.list.push_back(std::move(cpu));
  } catch (const sycl::exception& e) {
    error = std::string("SYCL's enumeration failed: ") + e.what();
  }
  for (const auto& found : all.list) all.infos.push_back(&found->info);
  if (all.list.empty()) all.why_none = WhyNone(error);
  return all;
}

}  // namespace

const Devices& FindDevices(bool tiles) {
  // Never destroyed: SYCL takes itself down at exit, in its own order.
  if (tiles) {
    static const Devices* with_tiles = new Devices(Enumerate(true));
    return *with_tiles;
  }
  static const Devices* all = new Devices(Enumerate(false));
  return *all;
}

}  // namespace ferrule_sycl

#include "module.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "binary_cache.h"

namespace ferrule_sycl {
namespace {

namespace experimental = sycl::ext::oneapi::experimental;

// Walks over the module's instructions. The device's compiler ends the process at one that is cut short.
void Check(const char* code, size_t size) {
  constexpr uint32_t kMagic = 0x07230203;
  constexpr size_t kHeader = 5;  // words
  auto word = [&](size_t i) {
    uint32_t value;
    std::memcpy(&value, code + i * sizeof value, sizeof value);
    return value;
  };
  size_t words = size / sizeof(uint32_t), at = kHeader;
  if (size % sizeof(uint32_t) || words < kHeader || word(0) != kMagic) {
    throw Error{kInvalidArgument,
                "the code is no SPIR-V module (" + std::to_string(size) + " bytes; a module begins with 0x07230203)"};
  }
  while (at < words) {
    size_t length = word(at) >> 16;
    if (length == 0 || length > words - at) {
      throw Error{kInvalidArgument, "the SPIR-V module is damaged: an instruction at byte " +
                                        std::to_string(at * sizeof(uint32_t)) + " of " + std::to_string(size) +
                                        " has no end"};
    }
    at += length;
  }
}

// What the code of a CPU device depends on besides its name, which is the same for many ("AMD EPYC" in a cloud).
void AddProcessor(Hasher* hasher) {
#if defined(__x86_64__)
  for (unsigned leaf : {1u, 7u}) {
    for (unsigned part : {0u, 1u}) {
      unsigned a = 0, b = 0, c = 0, d = 0;
      __get_cpuid_count(leaf, part, &a, &b, &c, &d);
      if (leaf == 1) b = 0;  // the number of the core that asks
      for (unsigned value : {a, b, c, d}) hasher->Add(&value, sizeof value);
    }
  }
#endif
  for (const char* name : {"CL_CONFIG_CPU_TARGET_ARCH", "CL_CONFIG_CPU_VECTORIZER_MODE"}) {
    if (const char* wish = std::getenv(name)) hasher->Add(std::string(name) + "=" + wish);
  }
}

ClProgram LoadOpenCl(const FerruleDevice& device, const char* code, size_t size) {
  const Found& found = *device.found;
  ClContext context(sycl::get_native<sycl::backend::opencl>(found.context));
  cl_device_id id = sycl::get_native<sycl::backend::opencl>(found.device);
  static const BinaryCache cache;
  if (!cache.on()) return BuildSpirv(context.get(), id, code, size);
  Hasher hasher;
  hasher.Add(std::to_string(FERRULE_DRIVER_ABI));
  for (const std::string* text : {&found.name, &found.backend, &found.driver_version}) hasher.Add(*text);
  if (found.kind == "cpu") AddProcessor(&hasher);
  hasher.Add(code, size);
  Hash key = hasher.value();
  if (std::optional<Binary> binary = cache.Get(key)) {
    try {
      return BuildBinary(context.get(), id, *binary);
    } catch (const Error& e) {
      Say(1, "a cached binary is not used: " + e.message);
      cache.Remove(key);
    }
  }
  ClProgram program = BuildSpirv(context.get(), id, code, size);
  if (Binary binary = BinaryOf(program.get()); !binary.empty()) cache.Put(key, binary);
  return program;
}

sycl::kernel_bundle<sycl::bundle_state::executable> LoadBundle(const FerruleDevice& device, const char* code,
                                                               size_t size) {
  std::vector<std::byte> bytes(size);
  std::memcpy(bytes.data(), code, size);
  auto source = experimental::create_kernel_bundle_from_source(device.found->context,
                                                               experimental::source_language::spirv, bytes);
  std::string log;
  try {
    return experimental::build(source, {device.found->device}, experimental::properties{experimental::save_log{&log}});
  } catch (const sycl::exception& e) {
    throw Error{kInternal, std::string("the device's compiler rejects the module (") + e.what() +
                               "); its log: " + (log.empty() ? "(empty)" : log)};
  }
}

}  // namespace

int Load(FerruleDevice* device, const char* code, size_t size, FerruleModule** module) {
  return Guard([&] { return device->In("loading a module of " + std::to_string(size) + " bytes"); },
               [&] {
                 Check(code, size);
                 auto made = std::make_unique<FerruleModule>();
                 made->device = device;
                 if (device->queue.get_backend() == sycl::backend::opencl) {
                   made->program = LoadOpenCl(*device, code, size);
                 } else {
                   made->bundle = LoadBundle(*device, code, size);
                 }
                 *module = made.release();
               });
}

void Unload(FerruleModule* module) { delete module; }

int GetKernel(FerruleModule* module, const char* name, FerruleKernel** kernel) {
  auto what = [&] { return module->device->In(std::string("looking for kernel ") + name); };
  return Guard(what, [&] {
    std::lock_guard lock(module->mutex);
    auto at = module->kernels.find(name);
    if (at == module->kernels.end()) {
      std::optional<sycl::kernel> made;
      if (module->bundle) {
        made = module->bundle->ext_oneapi_get_kernel(name);
      } else {
        cl_int status = CL_SUCCESS;
        ClKernel found(OpenCl::Get().CreateKernel(module->program.get(), name, &status));
        if (!found) {
          throw Error{status == CL_INVALID_KERNEL_NAME ? kNotFound : kInternal,
                      "the module has no such kernel (OpenCL error " + std::to_string(status) + ")"};
        }
        made = sycl::make_kernel<sycl::backend::opencl>(found.get(), module->device->found->context);
      }
      size_t arguments = made->get_info<sycl::info::kernel::num_args>();
      at = module->kernels.emplace(name, FerruleKernel{name, std::move(*made), arguments}).first;
    }
    *kernel = &at->second;
  });
}

}  // namespace ferrule_sycl

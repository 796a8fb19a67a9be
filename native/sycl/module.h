// SPIR-V modules and their kernels.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "device.h"
#include "opencl.h"

struct FerruleKernel {
  std::string name;
  sycl::kernel kernel;
  size_t arguments;
};

struct FerruleModule {
  FerruleDevice* device;
  // One of the two, by backend: OpenCL programs are made through OpenCL itself, because only there binaries can be kept
  // and the compiler's log is to be had.
  ferrule_sycl::ClProgram program;
  std::optional<sycl::kernel_bundle<sycl::bundle_state::executable>> bundle;
  std::mutex mutex;
  std::map<std::string, FerruleKernel> kernels;
};

namespace ferrule_sycl {

int Load(FerruleDevice* device, const char* code, size_t size, FerruleModule** module);
void Unload(FerruleModule* module);
int GetKernel(FerruleModule* module, const char* name, FerruleKernel** kernel);

}  // namespace ferrule_sycl

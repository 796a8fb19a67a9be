// Opening the library of a target's driver, once per process.
#pragma once

#include <string>
#include <vector>

#include "driver.h"
#include "ref.h"
#include "status.h"
#include "topology.h"

namespace ferrule {

struct DriverDevice {
  size_t index;  // for FerruleDriver::open
  const FerruleDeviceInfo* info;
};

struct DriverDevices {
  std::string target;
  bool has_dnnl;  // the oneDNN that the driver needs is there
  bool has_mkl;   // the driver's library of oneMKL's calls is there, and oneMKL
  const FerruleDriver* driver;
  std::vector<DriverDevice> devices;  // at least one
};

// The devices of a target ("xpu"): its GPUs, or without any the CPU device that stands in for one. FERRULE_XPU_DEVICE
// is "gpu" or "cpu" to take only these. The error says what was looked for, what was found, and what to do.
Result<DriverDevices> FindDevices(const std::string& target);

// What the compiler is told of the first of these devices: "xpu:arch=pvc,kind=gpu,units=512,…".
std::string DescribeForCompiler(const DriverDevices& found);

// The topology of `count` devices, logical ones if there are fewer.
Ref<Topology> DriverTopology(const std::string& platform, const DriverDevices& found, int count);

// Whether the host may touch the device's memory. FERRULE_HOST_ACCESS=0 makes a stand-in behave like a GPU here.
bool HostAccess(const FerruleDeviceInfo& info);

}  // namespace ferrule

// The driver for Intel GPUs, through SYCL: devices of Level Zero and OpenCL, or OpenCL's CPU device.
//
// This library is linked to libsycl.so.9 and has no path of its own. Before it is opened with dlopen, these must have
// been opened by absolute path, in this order, as far as they are there (RTLD_LOCAL is enough: the linker then finds
// them by their SONAMEs):
//
//   needed by the OpenCL CPU device:  libintlc.so.5, libimf.so, libirng.so, libsvml.so, libtbb.so.12, libOpenCL.so.1
//   always needed:                    libur_loader.so.0, libsycl.so.9
//
// and the path of libintelocl.so must be in the environment variable OCL_ICD_FILENAMES (colons between several): SYCL
// enumerates platforms once, in its first call. Real GPUs need only the latter. `paths` of ferrule_get_driver: "dnnl"
// is libdnnl.so.3 of the package onednn, which is built for SYCL and needs the former, too; "mkl" is libferrule_mkl.so.
#include <cstring>

#include "device.h"
#include "dnnl_api.h"
#include "library_call.h"
#include "mkl_api.h"
#include "module.h"

namespace ferrule_sycl {
namespace {

bool WantsTiles(const char* options) { return options && std::strstr(options, "tiles=1"); }

// `open` takes an index of the list that `devices` gave last.
std::atomic<bool> shown_tiles{false};

int ListDevices(const char* options, const FerruleDeviceInfo* const** infos, size_t* count) {
  return Guard([] { return "looking for devices"; },
               [&] {
                 bool tiles = WantsTiles(options);
                 const Devices& all = FindDevices(tiles);
                 shown_tiles = tiles;
                 *infos = all.infos.data();
                 *count = all.infos.size();
                 if (all.infos.empty()) Fail({kOk, all.why_none});
               });
}

int OpenIndex(size_t index, FerruleDevice** device) {
  const Devices& all = FindDevices(shown_tiles);
  if (index >= all.list.size()) {
    return Fail({kNotFound, "there is no device " + std::to_string(index) + " among " +
                                std::to_string(all.list.size()) + (all.list.empty() ? ": " + all.why_none : "")});
  }
  return Open(*all.list[index], device);
}

// `text` has "name=value" lines.
std::string ValueOf(const std::string& text, const std::string& name) {
  size_t at = ("\n" + text).find("\n" + name + "=");
  if (at == std::string::npos) return "";
  at += name.size() + 1;
  return text.substr(at, text.find('\n', at) - at);
}

const FerruleDriver table = {
    sizeof(FerruleDriver),
    FERRULE_DRIVER_ABI,
    LastError,
    ListDevices,
    OpenIndex,
    Close,
    Allocate,
    Free,
    Copy,
    Launch,
    Call,
    Join,
    Wait,
    Retain,
    Release,
    Times,
    Load,
    Unload,
    GetKernel,
    Prepare,
    Discard,
};

}  // namespace
}  // namespace ferrule_sycl

extern "C" __attribute__((visibility("default"))) const FerruleDriver* ferrule_get_driver(uint32_t abi,
                                                                                          const char* paths) {
  if (abi != FERRULE_DRIVER_ABI) return nullptr;
  if (paths) {
    ferrule_sycl::Dnnl::SetPath(ferrule_sycl::ValueOf(paths, "dnnl"));
    ferrule_sycl::SetMklPath(ferrule_sycl::ValueOf(paths, "mkl"));
  }
  return &ferrule_sycl::table;
}

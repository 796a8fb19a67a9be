#include "opencl.h"

#include <dlfcn.h>

#include "errors.h"

namespace ferrule_sycl {
namespace {

OpenCl Find() {
  // SYCL has opened it by this name before any OpenCL device could be shown.
  void* library = dlopen("libOpenCL.so.1", RTLD_NOW);
  if (!library) throw Error{kInternal, std::string("the OpenCL loader cannot be opened: ") + dlerror()};
  OpenCl cl;
  auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (!function) throw Error{kInternal, std::string("the OpenCL loader libOpenCL.so.1 has no function ") + name};
  };
#define FERRULE_FIND(name) find(cl.name, "cl" #name)
  FERRULE_FIND(CreateProgramWithIL);
  FERRULE_FIND(CreateProgramWithBinary);
  FERRULE_FIND(BuildProgram);
  FERRULE_FIND(GetProgramInfo);
  FERRULE_FIND(GetProgramBuildInfo);
  FERRULE_FIND(ReleaseProgram);
  FERRULE_FIND(CreateKernel);
  FERRULE_FIND(ReleaseKernel);
  FERRULE_FIND(ReleaseContext);
#undef FERRULE_FIND
  return cl;
}

void Build(cl_program program, cl_device_id device) {
  const OpenCl& cl = OpenCl::Get();
  cl_int status = cl.BuildProgram(program, 1, &device, "", nullptr, nullptr);
  if (status == CL_SUCCESS) return;
  size_t size = 0;
  std::string log;
  if (cl.GetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size) == CL_SUCCESS && size > 1) {
    log.resize(size);
    cl.GetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, size, log.data(), nullptr);
    log.resize(size - 1);
  }
  int code = status == CL_OUT_OF_HOST_MEMORY || status == CL_OUT_OF_RESOURCES ? kResourceExhausted : kInternal;
  throw Error{code, "the device's compiler rejects the module (OpenCL error " + std::to_string(status) +
                        "); its log: " + (log.empty() ? "(empty)" : log)};
}

}  // namespace

const OpenCl& OpenCl::Get() {
  static const OpenCl cl = Find();
  return cl;
}

ClProgram BuildSpirv(cl_context context, cl_device_id device, const char* code, size_t size) {
  cl_int status = CL_SUCCESS;
  ClProgram program(OpenCl::Get().CreateProgramWithIL(context, code, size, &status));
  if (!program) {
    throw Error{kInternal, "the device does not take the module as SPIR-V (OpenCL error " + std::to_string(status) +
                               ", " + std::to_string(size) + " bytes)"};
  }
  Build(program.get(), device);
  return program;
}

ClProgram BuildBinary(cl_context context, cl_device_id device, const std::vector<unsigned char>& binary) {
  cl_int status = CL_SUCCESS, binary_status = CL_SUCCESS;
  size_t size = binary.size();
  const unsigned char* data = binary.data();
  ClProgram program(OpenCl::Get().CreateProgramWithBinary(context, 1, &device, &size, &data, &binary_status, &status));
  if (!program || binary_status != CL_SUCCESS) {
    throw Error{kInternal, "the device does not take the binary (OpenCL error " + std::to_string(status) + ")"};
  }
  Build(program.get(), device);
  return program;
}

std::vector<unsigned char> BinaryOf(cl_program program) {
  const OpenCl& cl = OpenCl::Get();
  size_t size = 0;  // built for one device: one binary
  std::vector<unsigned char> binary;
  if (cl.GetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, nullptr) != CL_SUCCESS) return binary;
  binary.resize(size);
  unsigned char* data = binary.data();
  if (cl.GetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof data, &data, nullptr) != CL_SUCCESS) binary.clear();
  return binary;
}

}  // namespace ferrule_sycl

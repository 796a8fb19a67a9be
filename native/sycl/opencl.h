// The few OpenCL functions that the driver calls itself, found at run time in the loader that SYCL uses.
#pragma once

#include <CL/cl.h>

#include <memory>
#include <string>
#include <vector>

namespace ferrule_sycl {

struct OpenCl {
  // The functions; throws Error when the loader or one of them is missing.
  static const OpenCl& Get();

  decltype(&clCreateProgramWithIL) CreateProgramWithIL;
  decltype(&clCreateProgramWithBinary) CreateProgramWithBinary;
  decltype(&clBuildProgram) BuildProgram;
  decltype(&clGetProgramInfo) GetProgramInfo;
  decltype(&clGetProgramBuildInfo) GetProgramBuildInfo;
  decltype(&clReleaseProgram) ReleaseProgram;
  decltype(&clCreateKernel) CreateKernel;
  decltype(&clReleaseKernel) ReleaseKernel;
  decltype(&clReleaseContext) ReleaseContext;
};

struct ClRelease {
  void operator()(cl_program program) const { OpenCl::Get().ReleaseProgram(program); }
  void operator()(cl_kernel kernel) const { OpenCl::Get().ReleaseKernel(kernel); }
  void operator()(cl_context context) const { OpenCl::Get().ReleaseContext(context); }
};
using ClProgram = std::unique_ptr<_cl_program, ClRelease>;
using ClKernel = std::unique_ptr<_cl_kernel, ClRelease>;
using ClContext = std::unique_ptr<_cl_context, ClRelease>;

// Built programs. Both throw Error; the message has the compiler's log.
ClProgram BuildSpirv(cl_context context, cl_device_id device, const char* code, size_t size);
ClProgram BuildBinary(cl_context context, cl_device_id device, const std::vector<unsigned char>& binary);
std::vector<unsigned char> BinaryOf(cl_program program);

}  // namespace ferrule_sycl

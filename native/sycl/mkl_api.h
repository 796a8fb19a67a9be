// Calls of oneMKL ("mkl.…", see mkl/calls.h). They are in a library of their own, libferrule_mkl.so, which is linked to
// oneMKL and opened when such a call is first prepared: most programs have none, and oneMKL need not be installed.
#pragma once

#include <memory>
#include <string>

#include "library_call.h"

namespace ferrule_sycl {

// Where libferrule_mkl.so is, as the runtime was told; empty when oneMKL is not installed.
void SetMklPath(std::string path);

// kNotFound when the library is not there or cannot be opened.
std::unique_ptr<FerruleCall> PrepareMkl(FerruleDevice* device, const FerruleCallDesc& desc);

// What libferrule_mkl.so exports, "ferrule_mkl_prepare". Both libraries are parts of one driver, built together: Error
// may be thrown across, as SYCL's exceptions are.
using MklPrepare = FerruleCall* (*)(FerruleDevice* device, const FerruleCallDesc* desc);

}  // namespace ferrule_sycl

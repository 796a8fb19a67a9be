// What libferrule_mkl.so exports.
#include <cstring>

#include "../mkl_api.h"
#include "calls.h"

namespace ferrule_sycl {

void MklCannotDo(const std::string& what) { throw Error{kUnimplemented, "oneMKL has no " + what}; }

}  // namespace ferrule_sycl

extern "C" __attribute__((visibility("default"))) FerruleCall* ferrule_mkl_prepare(FerruleDevice* device,
                                                                                   const FerruleCallDesc* desc) {
  using Prepare = std::unique_ptr<FerruleCall> (*)(FerruleDevice*, const FerruleCallDesc&);
  static const struct {
    const char* target;
    Prepare prepare;
  } calls[] = {
      {"mkl.dft", ferrule_sycl::PrepareDft},
  };
  std::string known;
  for (const auto& call : calls) {
    if (std::strcmp(desc->target, call.target) == 0) return call.prepare(device, *desc).release();
    known += (known.empty() ? "" : ", ") + std::string(call.target);
  }
  throw ferrule_sycl::Error{ferrule_sycl::kNotFound, "there is no such call of oneMKL (there is " + known + ")"};
}

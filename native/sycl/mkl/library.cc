// What libferrule_mkl.so exports, and what its calls share.
#include <cstring>

#include "../mkl_api.h"
#include "calls.h"

namespace ferrule_sycl {

void MklCannotDo(const std::string& what) { throw Error{kUnimplemented, "oneMKL has no " + what}; }

int64_t ElementsOf(const FerruleShape& shape) {
  int64_t elements = 1;
  for (int32_t d = 0; d < shape.rank; ++d) elements *= shape.dims[d];
  return elements;
}

Matrices MatricesOf(const FerruleShape& shape) {
  if (shape.rank < 2) Refuse("a matrix has two dimensions or more");
  Matrices m{1, shape.dims[shape.rank - 2], shape.dims[shape.rank - 1]};
  for (int32_t d = 0; d + 2 < shape.rank; ++d) m.batch *= shape.dims[d];
  if (m.batch < 1 || m.size() < 1) MklCannotDo("factor of nothing: sizes must be at least 1");
  return m;
}

void Expect(const FerruleShape& shape, int dtype, int64_t elements, const char* what) {
  if (shape.dtype != dtype || ElementsOf(shape) != elements) {
    Refuse(std::string(what) + " must have " + std::to_string(elements) + " elements of PJRT's type " +
           std::to_string(dtype));
  }
}

}  // namespace ferrule_sycl

extern "C" __attribute__((visibility("default"))) FerruleCall* ferrule_mkl_prepare(FerruleDevice* device,
                                                                                   const FerruleCallDesc* desc) {
  using Prepare = std::unique_ptr<FerruleCall> (*)(FerruleDevice*, const FerruleCallDesc&);
  static const struct {
    const char* target;
    size_t operands, results;
    Prepare prepare;
  } calls[] = {
      {"mkl.dft", 1, 1, ferrule_sycl::PrepareDft},     {"mkl.trsm", 2, 1, ferrule_sycl::PrepareTrsm},
      {"mkl.potrf", 1, 1, ferrule_sycl::PreparePotrf}, {"mkl.getrf", 1, 2, ferrule_sycl::PrepareGetrf},
      {"mkl.geqrf", 1, 2, ferrule_sycl::PrepareGeqrf}, {"mkl.orgqr", 2, 1, ferrule_sycl::PrepareOrgqr},
      {"mkl.syevd", 1, 3, ferrule_sycl::PrepareSyevd}, {"mkl.gesvd", 1, 4, ferrule_sycl::PrepareGesvd},
  };
  std::string known;
  for (const auto& call : calls) {
    known += (known.empty() ? "" : ", ") + std::string(call.target);
    if (std::strcmp(desc->target, call.target) != 0) continue;
    if (desc->num_operands != call.operands || desc->num_results != call.results) {
      ferrule_sycl::Refuse("the call has " + std::to_string(call.operands) + " operands and " +
                           std::to_string(call.results) + " results");
    }
    return call.prepare(device, *desc).release();
  }
  throw ferrule_sycl::Error{ferrule_sycl::kNotFound, "there is no such call of oneMKL (there is " + known + ")"};
}

// What a call of a matrix product says of it.
#pragma once

#include "attributes.h"
#include "calls.h"
#include "gemm_blocked.h"

namespace ferrule {

// The shape in the attributes `batch`, `m`, `n`, `k`, `a_strides` and `b_strides`, and in the types of the call's first
// two operands and of `product`. Leaves what does not fit there as a failure.
GemmShape GemmShapeOf(const CallDesc& call, const Shape& product, Attributes* attributes);

}  // namespace ferrule

// Products one side of which is mostly zeros: a one-hot matrix, the weights of an interpolation, a permutation.
#pragma once

#include <memory>

#include "epilogue.h"
#include "gemm_blocked.h"
#include "program.h"

namespace ferrule {

// A call that looks at both sides when it runs. Where one is mostly zeros and the other one finite, so that zeros times
// it are zeros, only what is not zero is multiplied; else `dense` does it all. Gives `dense` itself where that could
// not pay or the types are others than f32 and f64.
std::unique_ptr<Prepared> SparseOrNot(const GemmShape& shape, const EpilogueCall& epilogue,
                                      std::unique_ptr<Prepared> dense);

}  // namespace ferrule

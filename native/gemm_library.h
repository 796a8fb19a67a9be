// The matrix product through libraries, and which to use when: the measurements are in docs/measurements.md.
#pragma once

#include <memory>

#include "calls.h"
#include "gemm_blocked.h"

namespace ferrule {

// SciPy's BLAS: f32, f64 and complex. Null when it is absent or cannot take the operands.
std::unique_ptr<Prepared> BlasGemmCall(const GemmShape& shape);
// oneDNN's matmul: f32, bf16 and 8-bit integers to i32. Null likewise. Where the right side has a source, it is kept in
// oneDNN's own layout (packed.h).
std::unique_ptr<Prepared> OneDnnGemmCall(const GemmShape& shape, const OperandSource& right = {});

// The fastest library for this product, or null when Ferrule's own loops are the fastest. FERRULE_GEMM=own, blas or
// onednn overrules the choice where that library can do it. `finished`: an epilogue follows.
std::unique_ptr<Prepared> LibraryGemm(const GemmShape& shape, bool finished, const OperandSource& right = {});

}  // namespace ferrule

// Products of bf16, of 8-bit integers and of floats, in parts of bf16, on tile registers (AMX), in Ferrule's own loops.
#pragma once

#include <functional>
#include <memory>

#include "calls.h"
#include "epilogue.h"
#include "gemm_blocked.h"

namespace ferrule {

// Null where the processor has no tile registers, for other types and orders, and where a library is faster; with
// FERRULE_GEMM=tiles not for that reason, with a library's name (gemm_library.h) always.
// Floats that are not finite, or whose parts' products would leave the range of floats, are left to `otherwise`.
std::unique_ptr<Prepared> TileGemm(const GemmShape& shape, const OperandSource& right, const EpilogueCall& epilogue,
                                   const std::function<std::unique_ptr<Prepared>()>& otherwise);

}  // namespace ferrule

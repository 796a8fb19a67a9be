// Products of bf16 and of 8-bit integers on tile registers (AMX), in Ferrule's own loops.
#pragma once

#include <memory>

#include "calls.h"
#include "gemm_blocked.h"
#include "gemm_epilogue.h"

namespace ferrule {

// Null where the processor has no tile registers, for other types and orders, and where a library is faster; with
// FERRULE_GEMM=tiles not for that reason, with a library's name (gemm_library.h) always.
std::unique_ptr<Prepared> TileGemm(const GemmShape& shape, const OperandSource& right, const EpilogueCall& epilogue);

}  // namespace ferrule

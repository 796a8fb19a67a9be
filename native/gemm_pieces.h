// oneDNN's matrix product in pieces, some rows or the matrices of a batch: each runs on one thread of Ferrule's pool,
// with what follows it elementwise. oneDNN's own threads are others than the pool's, and where the two take turns each
// waits for the other to fall asleep: a product of 128 x 512 x 512 and its GELU take 1.5 times as long, three times
// with 16 threads (docs/measurements.md).
#pragma once

#include <memory>

#include "calls.h"
#include "epilogue.h"
#include "gemm_blocked.h"

namespace ferrule {

// `whole` is the same product with its epilogue on oneDNN's threads. It does what pays there, such as every call for
// which the right side of a single product is not kept in oneDNN's layout: the pieces would convert it on one thread.
// It is returned as it is where all calls are such.
std::unique_ptr<Prepared> GemmInPieces(std::unique_ptr<Prepared> whole, const GemmShape& shape,
                                       const OperandSource& right, const EpilogueCall& epilogue);

}  // namespace ferrule

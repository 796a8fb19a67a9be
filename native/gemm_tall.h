// Sums of many outer products of short vectors: A^T B of two matrices with many rows and few columns, as in normal
// equations, covariances and the gradients of narrow layers.
#pragma once

#include "gemm_blocked.h"

namespace ferrule {

// What is read once for little work is not worth packing. False when the case is another one, or panels are faster.
template <class T>
bool TallProduct(const GemmShape& shape, const void* a, const void* b, void* d, ThreadPool* pool,
                 const Epilogue* epilogue);

}  // namespace ferrule

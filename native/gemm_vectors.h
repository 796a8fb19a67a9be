// Products of a few vectors with a matrix of narrow elements, which is read once, where it lies.
#pragma once

#include "gemm_blocked.h"

namespace ferrule {

// False when the case is another one: T is what sums are kept in.
template <class T>
bool NarrowVectorProduct(const GemmShape& shape, const void* a, const void* b, void* d, ThreadPool* pool,
                         const Epilogue* epilogue);

}  // namespace ferrule

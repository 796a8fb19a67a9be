// Matrix products with few columns on the right.
#pragma once

#include "gemm_blocked.h"

namespace ferrule {

// Rows of A times a B of few columns; false when the case is another one, or panels are faster.
template <class T>
bool FewColumnsProduct(const GemmShape& shape, const void* a, const void* b, void* d, ThreadPool* pool,
                       const Epilogue* epilogue);

}  // namespace ferrule

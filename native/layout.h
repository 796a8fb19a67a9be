// The order of an array's dimensions in memory. Row-major is the rule and costs nothing: a null pointer. Any other
// order is dense, too: a permutation, kept once per process and never freed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pjrt_abi.h"
#include "status.h"

namespace ferrule {

// The dimensions from the fastest to the slowest in memory, or null for row-major.
using Layout = const std::vector<int64_t>*;

bool IsPermutation(const int64_t* order, size_t rank);

// The layout with this order, which must be a permutation.
Layout FindLayout(const int64_t* minor_to_major, size_t rank);

// The layout that a caller of the C API describes; null means row-major. UNIMPLEMENTED for tiles and for strides that
// are not row-major.
Result<Layout> LayoutFrom(const PJRT_Buffer_MemoryLayout* layout, const int64_t* dims, size_t rank,
                          int64_t element_bytes, const char* where);

// Byte strides of a dense array.
std::vector<int64_t> LayoutStrides(Layout layout, const int64_t* dims, size_t rank, int64_t element_bytes);

// "{1,0}", for good.
const std::string& LayoutText(Layout layout, size_t rank);

// The order itself, for good; row-major for null.
const std::vector<int64_t>& LayoutOrder(Layout layout, size_t rank);

}  // namespace ferrule

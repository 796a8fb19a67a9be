// Copies between arrays of the same shape with any strides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ferrule {

// Strides of a dense row-major array, in bytes.
std::vector<int64_t> RowMajorStrides(const int64_t* dims, size_t rank, int64_t element_bytes);

// Whether the strides describe a dense row-major array. Strides of dimensions of size 1 do not matter.
bool IsRowMajor(const int64_t* dims, const int64_t* strides, size_t rank, int64_t element_bytes);

// dst[i] = src[i] for every index; strides in bytes, of any sign or 0 (0 only on the source side).
void StridedCopy(char* dst, const int64_t* dst_strides, const char* src, const int64_t* src_strides,
                 const int64_t* dims, size_t rank, int64_t element_bytes);

}  // namespace ferrule

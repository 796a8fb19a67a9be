#include "strided_copy.h"

#include <algorithm>
#include <cstring>

namespace ferrule {

std::vector<int64_t> RowMajorStrides(const int64_t* dims, size_t rank, int64_t element_bytes) {
  std::vector<int64_t> strides(rank);
  int64_t stride = element_bytes;
  for (size_t i = rank; i-- > 0;) {
    strides[i] = stride;
    stride *= dims[i];
  }
  return strides;
}

bool IsRowMajor(const int64_t* dims, const int64_t* strides, size_t rank, int64_t element_bytes) {
  int64_t expected = element_bytes;
  for (size_t i = rank; i-- > 0;) {
    if (dims[i] == 0) return true;
    if (dims[i] != 1 && strides[i] != expected) return false;
    expected *= dims[i];
  }
  return true;
}

namespace {

struct Axis {
  int64_t size, dst, src;
};

// A line of single elements; the size is a constant, so each copy is one load and one store.
template <int64_t kBytes>
void Line(char* dst, int64_t dst_stride, const char* src, int64_t src_stride, int64_t count) {
  for (int64_t i = 0; i < count; ++i) std::memcpy(dst + i * dst_stride, src + i * src_stride, kBytes);
}

void CopyLine(char* dst, const char* src, const Axis& axis, int64_t bytes) {
  if (axis.dst == bytes && axis.src == bytes) {
    std::memcpy(dst, src, static_cast<size_t>(axis.size * bytes));
    return;
  }
  switch (bytes) {
    case 1:
      return Line<1>(dst, axis.dst, src, axis.src, axis.size);
    case 2:
      return Line<2>(dst, axis.dst, src, axis.src, axis.size);
    case 4:
      return Line<4>(dst, axis.dst, src, axis.src, axis.size);
    case 8:
      return Line<8>(dst, axis.dst, src, axis.src, axis.size);
    case 16:
      return Line<16>(dst, axis.dst, src, axis.src, axis.size);
    default:
      for (int64_t i = 0; i < axis.size; ++i) {
        std::memcpy(dst + i * axis.dst, src + i * axis.src, static_cast<size_t>(bytes));
      }
  }
}

void Copy(char* dst, const char* src, const Axis* axes, size_t rank, int64_t bytes) {
  if (rank == 1) return CopyLine(dst, src, axes[0], bytes);
  if (rank == 2 && axes[1].src != bytes && axes[0].src == bytes) {
    // A transposition: go in blocks, so that a cache line that was fetched is used whole.
    constexpr int64_t kBlock = 32;
    for (int64_t i = 0; i < axes[0].size; i += kBlock) {
      const int64_t rows = std::min(kBlock, axes[0].size - i);
      for (int64_t j = 0; j < axes[1].size; j += kBlock) {
        const Axis line{std::min(kBlock, axes[1].size - j), axes[1].dst, axes[1].src};
        for (int64_t r = i; r < i + rows; ++r) {
          CopyLine(dst + r * axes[0].dst + j * line.dst, src + r * axes[0].src + j * line.src, line, bytes);
        }
      }
    }
    return;
  }
  for (int64_t i = 0; i < axes[0].size; ++i) {
    Copy(dst + i * axes[0].dst, src + i * axes[0].src, axes + 1, rank - 1, bytes);
  }
}

}  // namespace

void StridedCopy(char* dst, const int64_t* dst_strides, const char* src, const int64_t* src_strides,
                 const int64_t* dims, size_t rank, int64_t element_bytes) {
  std::vector<Axis> axes;
  for (size_t i = 0; i < rank; ++i) {
    if (dims[i] == 0) return;
    if (dims[i] == 1) continue;
    const Axis axis{dims[i], dst_strides[i], src_strides[i]};
    // Neighbours that both sides store contiguously become one axis.
    if (!axes.empty() && axes.back().dst == axis.dst * axis.size && axes.back().src == axis.src * axis.size) {
      axes.back() = {axes.back().size * axis.size, axis.dst, axis.src};
    } else {
      axes.push_back(axis);
    }
  }
  if (axes.empty()) axes.push_back({1, element_bytes, element_bytes});
  Copy(dst, src, axes.data(), axes.size(), element_bytes);
}

}  // namespace ferrule

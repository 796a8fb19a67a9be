#include "layout.h"

#include <map>
#include <mutex>
#include <numeric>

#include "strided_copy.h"

namespace ferrule {
namespace {

struct Table {
  std::mutex mutex;
  std::map<std::vector<int64_t>, std::string> texts;  // a node's address never changes

  const std::pair<const std::vector<int64_t>, std::string>& Find(std::vector<int64_t> order) {
    std::lock_guard lock(mutex);
    auto [entry, is_new] = texts.try_emplace(std::move(order));
    if (is_new) {
      for (int64_t d : entry->first) entry->second += (entry->second.empty() ? "{" : ",") + std::to_string(d);
      entry->second += entry->second.empty() ? "{}" : "}";
    }
    return *entry;
  }
};

Table& TheTable() {
  static auto* table = new Table;
  return *table;
}

std::vector<int64_t> RowMajorOrder(size_t rank) {
  std::vector<int64_t> order(rank);
  std::iota(order.rbegin(), order.rend(), int64_t{0});
  return order;
}

bool IsRowMajorOrder(const int64_t* order, size_t rank) {
  for (size_t i = 0; i < rank; ++i) {
    if (order[i] != static_cast<int64_t>(rank - 1 - i)) return false;
  }
  return true;
}

}  // namespace

bool IsPermutation(const int64_t* order, size_t rank) {
  std::vector<bool> seen(rank);
  for (size_t i = 0; i < rank; ++i) {
    if (order[i] < 0 || order[i] >= static_cast<int64_t>(rank) || seen[order[i]]) return false;
    seen[order[i]] = true;
  }
  return true;
}

Layout FindLayout(const int64_t* minor_to_major, size_t rank) {
  if (IsRowMajorOrder(minor_to_major, rank)) return nullptr;
  return &TheTable().Find(std::vector<int64_t>(minor_to_major, minor_to_major + rank)).first;
}

Result<Layout> LayoutFrom(const PJRT_Buffer_MemoryLayout* layout, const int64_t* dims, size_t rank,
                          int64_t element_bytes, const char* where) {
  if (layout == nullptr) return Layout{nullptr};
  if (layout->type == PJRT_Buffer_MemoryLayout_Type_Tiled) {
    const auto& t = layout->tiled;
    if (t.num_tiles != 0) {
      return Unimplemented(std::string(where) +
                           ": tiled layouts are not supported; ask for a plain order of the dimensions");
    }
    if (t.minor_to_major_size != rank || !IsPermutation(t.minor_to_major, rank)) {
      return InvalidArgument(std::string(where) + ": the layout's minor-to-major order is not a permutation of the " +
                             std::to_string(rank) + " dimensions");
    }
    return FindLayout(t.minor_to_major, rank);
  }
  const auto& s = layout->strides;
  if (s.num_byte_strides == rank && IsRowMajor(dims, s.byte_strides, rank, element_bytes)) return Layout{nullptr};
  return Unimplemented(std::string(where) +
                       ": a device layout given by strides must be dense and row-major; give the order of the "
                       "dimensions instead, or leave the layout out");
}

std::vector<int64_t> LayoutStrides(Layout layout, const int64_t* dims, size_t rank, int64_t element_bytes) {
  if (layout == nullptr) return RowMajorStrides(dims, rank, element_bytes);
  std::vector<int64_t> strides(rank);
  int64_t stride = element_bytes;
  for (int64_t axis : *layout) {
    strides[axis] = stride;
    stride *= dims[axis];
  }
  return strides;
}

const std::string& LayoutText(Layout layout, size_t rank) {
  return TheTable().Find(layout ? *layout : RowMajorOrder(rank)).second;
}

const std::vector<int64_t>& LayoutOrder(Layout layout, size_t rank) {
  return layout ? *layout : TheTable().Find(RowMajorOrder(rank)).first;
}

}  // namespace ferrule

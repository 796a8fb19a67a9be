#include "sort_loops.h"

#include "cpu_features.h"

namespace ferrule {
namespace {

const AllSortLoops& Chosen() {
#if defined(__x86_64__)
  if (ChosenIsa() == Isa::kAvx512) return kAvx512SortLoops;
  if (ChosenIsa() == Isa::kAvx2) return kAvx2SortLoops;
#endif
  return kBaselineSortLoops;
}

}  // namespace

template <>
const SortLoops<uint32_t>& ChosenSortLoops() {
  return Chosen().u32;
}
template <>
const SortLoops<uint64_t>& ChosenSortLoops() {
  return Chosen().u64;
}

}  // namespace ferrule

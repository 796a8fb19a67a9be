// What a set of innermost loops offers to sorts; one table per instruction set.
#pragma once

#include <cstdint>

namespace ferrule {

// Rows that are sorted beside one another: item i of all of them lies in a row of so many columns.
constexpr int64_t kNetworkColumns = 32;

// The smaller items go to row `low`, the larger ones to row `high`.
struct Exchange {
  uint16_t low, high;
};

template <class U>
struct SortLoops {
  void (*keys)(U* keys, const Exchange* exchanges, int64_t count);
  // Equal keys are in the order of what goes with them.
  void (*with)(U* keys, U* with, const Exchange* exchanges, int64_t count);
  // The keys of floats as FloatBitsKey (sort_keys.h) has them, `flip` exclusive or-ed. Whether there is a zero or a NaN
  // among them that its key does not tell; never with `total`.
  bool (*of_floats)(const U* bits, int64_t count, U infinity, bool total, U flip, U* keys);
  // The bits that keys were made of.
  void (*to_floats)(const U* keys, int64_t count, U flip, U* bits);
};

struct AllSortLoops {
  SortLoops<uint32_t> u32;
  SortLoops<uint64_t> u64;
};

extern const AllSortLoops kBaselineSortLoops;
#if defined(__x86_64__)
extern const AllSortLoops kAvx2SortLoops, kAvx512SortLoops;
#endif

}  // namespace ferrule

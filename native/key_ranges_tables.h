// What a set of innermost loops offers to sorts in ranges; one table per instruction set. The functions are those of
// key_ranges.h.
#pragma once

#include "key_ranges.h"

namespace ferrule {

struct KeyRangeLoops {
  void (*measure)(const uint32_t* keys, int64_t count, const uint32_t* borders, int64_t number, KeyExtent* extent);
  int64_t (*pick_pairs)(const uint32_t* keys, const uint32_t* others, int64_t count, uint32_t first, uint32_t last,
                        uint64_t* to, int64_t room);
  int64_t (*pick)(const uint32_t* keys, int64_t count, uint32_t first, uint32_t last, uint32_t* to, int64_t room);
  // The first out of order, or the first that was not looked at, as it and what follows fill no vector.
  int64_t (*first_pair)(const uint64_t* items, int64_t from, int64_t end);
  int64_t (*first_key)(const uint32_t* items, int64_t from, int64_t end);
};

extern const KeyRangeLoops kAvx2KeyRanges, kAvx512KeyRanges;

}  // namespace ferrule

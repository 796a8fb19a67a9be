// Keys of a range out of many, a vector of them at a time (key_ranges_avx2.cc, key_ranges_avx512.cc).
#pragma once

#include <cstdint>

namespace ferrule {

constexpr int64_t kMostRanges = 32;

// Where keys lie: the least, the greatest, and how many are less than each of some borders.
struct KeyExtent {
  uint32_t least = UINT32_MAX, greatest = 0;
  int64_t below[kMostRanges - 1] = {};

  void Add(const KeyExtent& other);
};

// Whether this processor has what the functions below need; where it has not they must not be called.
bool PicksKeys();

void MeasureKeys(const uint32_t* keys, int64_t count, const uint32_t* borders, int64_t number, KeyExtent* extent);

// The keys from `first` to `last`, both included, in their order, each in the upper half of a number and what goes
// with it in the lower: others[i], or where there are none its position. Returns how many they are; nothing is written
// from `room` on.
int64_t PickKeys(const uint32_t* keys, const uint32_t* others, int64_t count, uint32_t first, uint32_t last,
                 uint64_t* to, int64_t room);
// The keys alone.
int64_t PickKeys(const uint32_t* keys, int64_t count, uint32_t first, uint32_t last, uint32_t* to, int64_t room);

// The first of [from, end) whose key is less than the one before it, or `end`; from > 0. The keys of the former are the
// upper halves.
int64_t FirstOutOfOrder(const uint64_t* items, int64_t from, int64_t end);
int64_t FirstOutOfOrder(const uint32_t* items, int64_t from, int64_t end);

}  // namespace ferrule

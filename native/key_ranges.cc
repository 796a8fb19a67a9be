#include "key_ranges.h"

#include <algorithm>

#include "cpu_features.h"
#include "key_ranges_tables.h"

namespace ferrule {
namespace {

// Null without vectors whose lanes move by a table of numbers.
const KeyRangeLoops* Loops() {
#if defined(__x86_64__)
  static const KeyRangeLoops* const loops = ChosenIsa() == Isa::kAvx512 ? &kAvx512KeyRanges
                                            : ChosenIsa() == Isa::kAvx2 ? &kAvx2KeyRanges
                                                                        : nullptr;
  return loops;
#else
  return nullptr;
#endif
}

template <class T>
int64_t OneByOne(const T* items, int64_t i, int64_t end) {
  constexpr int kPastKey = 8 * (sizeof(T) - 4);
  while (i < end && items[i] >> kPastKey >= items[i - 1] >> kPastKey) ++i;
  return i;
}

}  // namespace

void KeyExtent::Add(const KeyExtent& other) {
  least = std::min(least, other.least);
  greatest = std::max(greatest, other.greatest);
  for (int64_t i = 0; i < kMostRanges - 1; ++i) below[i] += other.below[i];
}

bool PicksKeys() { return Loops() != nullptr; }

void MeasureKeys(const uint32_t* keys, int64_t count, const uint32_t* borders, int64_t number, KeyExtent* extent) {
  Loops()->measure(keys, count, borders, number, extent);
}

int64_t PickKeys(const uint32_t* keys, const uint32_t* others, int64_t count, uint32_t first, uint32_t last,
                 uint64_t* to, int64_t room) {
  return Loops()->pick_pairs(keys, others, count, first, last, to, room);
}

int64_t PickKeys(const uint32_t* keys, int64_t count, uint32_t first, uint32_t last, uint32_t* to, int64_t room) {
  return Loops()->pick(keys, count, first, last, to, room);
}

int64_t FirstOutOfOrder(const uint64_t* items, int64_t from, int64_t end) {
  return OneByOne(items, Loops()->first_pair(items, from, end), end);
}

int64_t FirstOutOfOrder(const uint32_t* items, int64_t from, int64_t end) {
  return OneByOne(items, Loops()->first_key(items, from, end), end);
}

}  // namespace ferrule

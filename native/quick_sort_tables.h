// Quicksorts in vectors; one table per instruction set.
#pragma once

#include <cstdint>

namespace ferrule {

struct QuickSorts {
  void (*narrow)(uint32_t* keys, int64_t n);
  void (*wide)(uint64_t* keys, int64_t n);
  // Keys in upper halves with what goes with them in lower ones; `spare` has room for n.
  void (*pairs)(uint64_t* pairs, uint32_t* spare, int64_t n);
  // Puts the keys less than the border before the others, and returns how many they are.
  int64_t (*partition)(uint64_t* keys, int64_t n, uint64_t border);
};

extern const QuickSorts kAvx512QuickSorts;

}  // namespace ferrule

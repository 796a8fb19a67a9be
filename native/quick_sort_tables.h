// Quicksorts in vectors; one table per instruction set.
#pragma once

#include <cstdint>

namespace ferrule {

struct QuickSorts {
  void (*narrow)(uint32_t* keys, int64_t n);
  void (*wide)(uint64_t* keys, int64_t n);
};

extern const QuickSorts kAvx512QuickSorts;

}  // namespace ferrule

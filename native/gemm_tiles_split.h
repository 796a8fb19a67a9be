// What the innermost loops on tile registers (AMX) offer to products of floats, beside those of gemm_tiles_tables.h.
#pragma once

#include <cstdint>

#include "gemm_tiles_tables.h"

namespace ferrule {

// A float is the sum of three bf16. A step of a panel has each pair of tiles three times, for 32 elements along k: of
// the first parts, of the second ones and of the third.
constexpr int64_t kTileParts = 3;

struct SplitKernels {
  TilePack pack[2][2];  // side, order
  // (a, b, steps, add, sums): the products of parts, but for those that are too small for a float's last place.
  void (*multiply)(const char*, const char*, int64_t, bool, float*);
  // (x, count, least, most): the bits of the smallest magnitude that is not zero, and of the largest.
  void (*range)(const float*, int64_t, uint32_t*, uint32_t*);
};

extern const SplitKernels kAmxSplit;

}  // namespace ferrule

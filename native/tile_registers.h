// Tile registers (AMX): whether this process may use them, and how a side of a product lies in memory and is packed.
#pragma once

#include <cstdint>

#include "gemm_tiles_tables.h"

namespace ferrule {

// False where the processor has none, or not all of their instructions, or the system does not give them.
bool MayUseTiles();

struct TilePacking {
  TilePack pack;
  int64_t panel, along;  // bytes from a panel to the next, and from a step along k to the next
  int64_t stride;        // of the elements that are not adjacent, in bytes
};

// For elements of so many bytes that are `across` and `along` elements apart; false when neither is 1.
bool MakeTilePacking(TileSide side, int64_t bytes, int64_t across, int64_t along, TilePacking* made);

}  // namespace ferrule

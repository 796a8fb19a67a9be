// What the innermost loops on tile registers (AMX) offer to the product in gemm_tiles.cc.
#pragma once

#include <cstdint>

namespace ferrule {

// A side of a product is packed in panels of kTilePanel rows of A, or columns of B. A panel holds, for each step of
// kTileBytes along k, two tiles of sixteen lines: of A, a line is a step of one row; of B, it is four bytes along k of
// each of sixteen columns. What lies behind an end is zero.
constexpr int64_t kTilePanel = 32, kTileBytes = 64, kTileStep = kTilePanel * kTileBytes;
constexpr int64_t kTileSums = kTilePanel * kTilePanel;

// Types of A and B.
enum TileType { kTileBf16, kTileS8S8, kTileS8U8, kTileU8S8, kTileU8U8, kTileF32 };
enum TileSide { kTileLeft, kTileRight };
enum TileOrder { kTileAlongK, kTileAcrossK };  // which elements are adjacent in memory

// (first, stride in bytes, rows or columns up to kTilePanel, k, panel). The stride is that of the direction whose
// elements are not adjacent.
using TilePack = void (*)(const void*, int64_t, int64_t, int64_t, char*);

struct TileKernels {
  // On each thread, before and after it multiplies.
  void (*begin)();
  void (*end)();
  // (a, a_line, a_step, b, steps, add, sums): one panel of A times one of B. A's may lie where it is: from line to line
  // and from step to step it is so many bytes. The sums are four tiles of 16 x 16, row by row.
  void (*multiply[5])(const char*, int64_t, int64_t, const char*, int64_t, bool, uint32_t*);
  // (first, lines): into the second-level cache.
  void (*fetch)(const char*, int64_t);
  TilePack pack[2][2][2];  // elements of one or two bytes, side, order
  // (sums, rows, columns, d, d_row in bytes): as bf16, or as they are.
  void (*put[2])(const uint32_t*, int64_t, int64_t, char*, int64_t);
};

extern const TileKernels kAmxTiles;

}  // namespace ferrule

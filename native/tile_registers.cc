#include "tile_registers.h"

#include "cpu_features.h"
#include "gemm_tiles_split.h"

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ferrule {

#if defined(__x86_64__) && defined(__linux__)

// A system saves the registers only for processes that have asked.
bool MayUseTiles() {
  static const bool may = [] {
    constexpr int kRequestState = 0x1023, kTileData = 18;
    return ChosenIsa() == Isa::kAvx512 && MissingCpuFeatures("amx-tile,amx-bf16,amx-int8,avx512bf16").empty() &&
           syscall(SYS_arch_prctl, kRequestState, kTileData) == 0;
  }();
  return may;
}

bool MakeTilePacking(TileSide side, int64_t bytes, int64_t across, int64_t along, TilePacking* made) {
  if (across != 1 && along != 1) return false;
  const TileOrder order = along == 1 ? kTileAlongK : kTileAcrossK;
  const bool split = bytes == 4;
  *made = {split ? kAmxSplit.pack[side][order] : kAmxTiles.pack[bytes - 1][side][order], kTilePanel * across * bytes,
           (split ? 2 : 1) * kTileBytes * along, (along == 1 ? across : along) * bytes};
  return true;
}

#else

bool MayUseTiles() { return false; }
bool MakeTilePacking(TileSide, int64_t, int64_t, int64_t, TilePacking*) { return false; }

#endif

}  // namespace ferrule

// The products of attention's gradients on tile registers (AMX), in bf16 with sums in f32, where the program's own are.
#pragma once

#include <cstdint>
#include <memory>

#include "attention_block.h"
#include "attention_shape.h"
#include "tile_registers.h"

namespace ferrule {

class TiledSlopes {
 public:
  // Null as TiledAttention::Make's; `g` is the gradient of attention's result. The shape must stay where it is.
  static std::unique_ptr<TiledSlopes> Make(const AttentionShape& shape, const AttentionView& g);

  // On each thread, before and after it calls what follows.
  static void Begin();
  static void End();

  // Packs keys and values of a member for this thread's next calls of Rows.
  void Member(const AttentionBlocks& blocks) const;

  // Adds what rows [first, first + rows), at most AttentionBlocks::kMostRows, and keys [from, to) contribute to the
  // gradients of the keys and values, lines of whole panels, as many as whole panels have. `from` begins a panel, `to`
  // ends one or the keys. Returns the gradients of the rows' queries, lines of whole panels, until the next call.
  // `state` is of AttentionKernels::gradient: m, r and d, each of whole panels, 0 behind the rows.
  float* Rows(const AttentionBlocks& blocks, const char* gradient, int64_t first, int64_t rows, int64_t from,
              int64_t to, const float* state, float* key_sums, float* value_sums) const;

 private:
  explicit TiledSlopes(const AttentionShape& shape) : s_(shape) {}

  const AttentionShape& s_;
  int64_t g_row_ = 0;
  // Queries and the result's gradient along their features and along the rows; keys along both, and values.
  TilePacking q_, g_, q_rows_, g_rows_, k_, k_keys_, v_;
};

}  // namespace ferrule

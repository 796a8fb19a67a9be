// Attention of bf16 on tile registers (AMX): both products in bf16 with sums in f32, where the program's own are.
#pragma once

#include <cstdint>
#include <memory>

#include "attention_shape.h"
#include "thread_pool.h"
#include "tile_registers.h"

namespace ferrule {

class TiledAttention {
 public:
  // Null where the processor has no tile registers, for other types, and for arrays whose rows and columns both are
  // apart. The shape must stay where it is.
  static std::unique_ptr<TiledAttention> Make(const AttentionShape& shape);

  // `finite`, of each member's values: whether masked blocks may be left out; empty when there are no bands.
  void Run(void* const* operands, void* const* results, const uint8_t* finite, ThreadPool* pool) const;

 private:
  explicit TiledAttention(const AttentionShape& shape) : s_(shape) {}
  void Part(void* const* operands, void* const* results, int64_t member, int64_t first, int64_t end, bool skip) const;
  void Rows(void* const* operands, void* const* results, int64_t member, int64_t first, int64_t rows, bool skip) const;

  const AttentionShape& s_;
  TilePacking q_, k_, v_;
};

}  // namespace ferrule

// Attention of few queries (a token that is decoded with a cache of keys): bound by memory, so the keys and values are
// read once and nothing is packed.
#pragma once

#include "attention_shape.h"
#include "program.h"

namespace ferrule {

// Whether the way below is the faster one.
bool FewQueries(const AttentionShape& shape);
Status AttentionOfFew(const AttentionShape& shape, void* const* operands, void* const* results, ExecContext& context);

}  // namespace ferrule

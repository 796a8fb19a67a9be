// What the innermost loops on tile registers (AMX) offer to attention_tiles.cc, beside those of gemm_tiles_tables.h. As
// in attention_tables.h, a block of logits S[keys][ld] has the rows of the queries in its lanes; ld is whole panels.
#pragma once

#include <cstdint>

#include "gemm_tiles_tables.h"

namespace ferrule {

struct AttentionTileKernels {
  // C[32][32] (+)= A[32][k] * B[k][32], of bf16: (a, a_line, a_step, b, steps, add, c, c_row). Of A so many bytes lie
  // from line to line and from step to step; B is a panel; C's lines are c_row floats apart.
  void (*multiply)(const char*, int64_t, int64_t, const char*, int64_t, bool, float*, int64_t);
  // AttentionKernels::softmax of scale * S, but the exponentials go, as bf16, to right sides of a product along the
  // keys, one panel for 32 rows: (s, ld, keys, rows, scale, m, l, factor, to, panel). Keys up to a whole step are 0.
  bool (*softmax)(const float*, int64_t, int64_t, int64_t, float, float*, float*, float*, char*, int64_t);
  // S as such panels: (s, ld, keys, rows, to, panel)
  void (*pairs)(const float*, int64_t, int64_t, int64_t, char*, int64_t);
  // S as bf16, to lines of ld elements, 0 behind the rows: (s, ld, keys, rows, to)
  void (*narrow)(const float*, int64_t, int64_t, int64_t, char*);
  // x[count] -= x as bf16, but 0 where that is not finite; the count in whole sixteens
  void (*rest)(float*, int64_t);
  // O[lines][rows] *= factor[rows]: (o, ld, lines, rows, factor)
  void (*fade)(float*, int64_t, int64_t, int64_t, const float*);
  // to[rows][to_row] = O[lines][ld] turned: (o, ld, lines, rows, to, to_row); lines and rows in whole sixteens
  void (*turn)(const float*, int64_t, int64_t, int64_t, float*, int64_t);
};

extern const AttentionTileKernels kAmxAttention;

}  // namespace ferrule

// What a set of innermost loops offers to attention; one table per instruction set. A block of logits S[keys][rows]
// has the rows of the queries in its lanes: what is done along the keys needs no sum over the lanes of a vector.
#pragma once

#include <cstdint>

namespace ferrule {

struct AttentionKernels {
  // m, l: maximum and sum of each row so far. S becomes exp(S - m); `factor` is what older sums are multiplied by.
  // (s, ld, keys, rows, m, l, factor); true when a factor is not 1
  bool (*softmax)(float*, int64_t, int64_t, int64_t, float*, float*, float*);
  // The same for one row with adjacent keys: (s, keys, m, l), returns the factor.
  float (*softmax_row)(float*, int64_t, float*, float*);
  // O[rows][width] *= factor[row]: (o, ld, rows, width, factor)
  void (*scale)(float*, int64_t, int64_t, int64_t, const float*);
  // S = mask != drop ? S : value: (s, ld, keys, rows, mask, mask_ld, drop, value)
  void (*choose)(float*, int64_t, int64_t, int64_t, const uint8_t*, int64_t, uint8_t, float);
  // S += B: (s, ld, keys, rows, b, b_ld)
  void (*add)(float*, int64_t, int64_t, int64_t, const float*, int64_t);
  // Backward: S becomes P = exp(S - m) * r, G becomes P * (G - d): (s, g, ld, keys, rows, m, r, d)
  void (*gradient)(float*, float*, int64_t, int64_t, int64_t, const float*, const float*, const float*);
  // bf16 to f32: (from, count, to)
  void (*widen)(const uint16_t*, int64_t, float*);
  // out[keys] = rows of K times q: (q, depth, k, k_row, keys, out)
  void (*dots)(const float*, int64_t, const float*, int64_t, int64_t, float*);
  // o[width] = o * factor + p[keys] times rows of V: (p, keys, v, v_row, width, factor, o)
  void (*mix)(const float*, int64_t, const float*, int64_t, int64_t, float, float*);
  // to[column][16 * blocks] = from[row][column], 16 x 16 bytes: (from, from_row, to, to_row)
  void (*turn)(const uint8_t*, int64_t, uint8_t*, int64_t);
  // x[count] *= y
  void (*multiply)(float*, int64_t, float);
  // x[count] = tanh(x)
  void (*tanh)(float*, int64_t);
};

extern const AttentionKernels kBaselineAttention;
#if defined(__x86_64__)
extern const AttentionKernels kAvx2Attention, kAvx512Attention;
#endif

}  // namespace ferrule

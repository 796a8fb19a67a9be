// What a call of attention computes: softmax(f(scale * Q Kᵀ)) V for each member of a batch, where f is a chain of
// factors, additions of a bias, masks, and tanh. Everything is described by strides in elements, so nothing is copied
// or transposed first, and a head of keys may serve several heads of queries (stride 0).
#pragma once

#include <cstdint>
#include <vector>

#include "attributes.h"
#include "calls.h"
#include "element.h"

namespace ferrule {

// A matrix for each member of the batch: element (i, j) is at offset + member . batch + i * row + j * column.
struct AttentionView {
  Element type = Element::kF32;
  int64_t offset = 0, row = 0, column = 0;
  std::vector<int64_t> batch;
};

struct AttentionStep {
  enum Kind : int64_t { kScale, kAdd, kChoose, kBand, kTanh };
  Kind kind = kScale;
  float value = 0;            // the factor; what masked logits become
  int64_t operand = 0;        // of kAdd and kChoose: logits are rows, keys columns
  uint8_t drop = 0;           // kChoose: this value of the mask drops the logit
  int64_t low = 0, high = 0;  // kBand: kept where low <= key - row <= high
  AttentionView view;
};

struct AttentionShape {
  std::vector<int64_t> batch;
  int64_t members = 1, rows = 0, keys = 0, depth = 0, width = 0;
  float scale = 1;
  AttentionView q, k, v, out;   // q and out have rows, k and v keys
  bool narrow = false;          // the program rounds the probabilities to bf16 before their products
  bool rounded_slopes = false;  // and the gradient by the logits
  bool statistics = false;      // the maxima and sums of the rows are kept
  std::vector<AttentionStep> steps;
  // Logits outside of these bands are `outside` at most, whatever the other steps do; else low > high.
  int64_t low = 1, high = 0;
  float outside = 0;

  bool banded() const { return low <= high; }
  // Whether what lies outside of the bands adds nothing to rows with these maxima: its exponentials are 0. A row that
  // saw -infinity only is NaN with it and without.
  bool Negligible(const float* maxima, int64_t rows) const;
  // Where the matrix of a member of the batch begins.
  const char* At(const void* base, const AttentionView& view, int64_t member) const;
  char* At(void* base, const AttentionView& view, int64_t member) const {
    return const_cast<char*>(At(static_cast<const void*>(base), view, member));
  }
};

// A float that is written as an integer with its bits: attributes are exact then, infinities too.
float ReadFloat(Attributes& attributes, const char* name);
Result<AttentionShape> ReadAttention(Attributes& attributes, const CallDesc& call);
// The view `name` of operand or result number `index` of the call, checked against its size.
AttentionView ReadAttentionView(Attributes& attributes, const char* name, const Shape& shape,
                                const std::vector<int64_t>& batch, int64_t rows, int64_t columns);

}  // namespace ferrule

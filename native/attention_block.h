// Blocks of attention that its forward and backward passes share: queries packed for the product, a block of logits,
// keys and values as floats.
#pragma once

#include <cstdint>

#include "aligned_scratch.h"
#include "attention_shape.h"
#include "attention_tables.h"
#include "gemm_tables.h"

namespace ferrule {

const AttentionKernels& ChosenAttention();

// Floats of a matrix in memory: in place, or copied.
struct AttentionMatrix {
  const float* data;
  int64_t row, column;
};

class AttentionBlocks {
 public:
  static constexpr int64_t kMostRows = 96, kMostKeys = 64;

  AttentionBlocks(const AttentionShape& shape, void* const* operands, int64_t member);

  // Rows of a block of `rows` queries as vectors see them, and the distance of keys in a block of logits.
  static int64_t Padded(int64_t rows);
  // A width that whole vectors cover.
  static int64_t PaddedWidth(int64_t width);

  // rows `first` … of a matrix with adjacent or distant columns, as panels of columns for the product's right side
  void PackRows(const char* from, const AttentionView& view, int64_t first, int64_t rows, int64_t columns, float scale,
                AlignedScratch& row, float* panels) const;
  // Asks for rows that are packed next: their lines are far apart, and no prefetcher sees them coming.
  static void Prefetch(const char* from, const AttentionView& view, int64_t first, int64_t rows, int64_t columns);
  // keys [first, first + count) as rows of floats
  AttentionMatrix Rows(const char* from, const AttentionView& view, int64_t first, int64_t count, int64_t columns,
                       AlignedScratch& copy) const;
  // The same with adjacent columns.
  AttentionMatrix Adjacent(const char* from, const AttentionView& view, int64_t first, int64_t count, int64_t columns,
                           AlignedScratch& copy) const;
  // The same with whole vectors in each row: what is missing is zero.
  AttentionMatrix WholeRows(const char* from, const AttentionView& view, int64_t first, int64_t count, int64_t columns,
                            AlignedScratch& copy) const;

  // Whether none of the keys' elements is infinite or NaN.
  bool Finite(const char* from, const AttentionView& view, int64_t columns, AlignedScratch& copy) const;

  // S[keys][ld] = A[keys][depth] * panels: the logits of all queries of the block for the keys of A, before the steps
  void Product(const AttentionMatrix& a, int64_t keys, int64_t depth, const float* panels, int64_t rows, float* s,
               int64_t ld, AlignedScratch& edge) const;
  // C[rows][c_row] (+)= A[rows][depth] * B[depth][width], A with any strides, B with adjacent columns, whole vectors
  void Accumulate(const float* a, int64_t a_row, int64_t a_k, int64_t rows, int64_t depth, const AttentionMatrix& b,
                  int64_t width, float* c, int64_t c_row, bool add) const;

  // Puts the logits of keys [key, key + keys) for rows [row, row + rows) through the steps.
  void Apply(float* s, int64_t ld, int64_t key, int64_t keys, int64_t row, int64_t rows, AlignedScratch& tile) const;

  // 0 where a mask drops the logits.
  void Clear(float* s, int64_t ld, int64_t key, int64_t keys, int64_t row, int64_t rows, AlignedScratch& tile) const;
  // The steps for the adjacent logits of one row.
  void ApplyRow(float* s, int64_t key, int64_t keys, int64_t row, AlignedScratch& tile) const;

  const char* q() const { return q_; }
  const char* k() const { return k_; }
  const char* v() const { return v_; }

 private:
  void Choose(const AttentionStep& step, const char* mask, float* s, int64_t ld, int64_t key, int64_t keys, int64_t row,
              int64_t rows, AlignedScratch& tile) const;
  void Add(const AttentionStep& step, const char* bias, float* s, int64_t ld, int64_t key, int64_t keys, int64_t row,
           int64_t rows, AlignedScratch& tile) const;
  static void Band(const AttentionStep& step, float* s, int64_t ld, int64_t key, int64_t keys, int64_t row,
                   int64_t rows);

  const AttentionShape& s_;
  void* const* operands_;
  int64_t member_;
  const MicroKernels<float>& product_;
  const AttentionKernels& kernels_;
  const char *q_, *k_, *v_;
};

}  // namespace ferrule

// Library call "attention_backward": the gradients of attention by queries, keys and values. The probabilities are
// computed again from the maxima and sums that the forward pass kept, a block of rows and keys at a time:
//   dV = Pᵀ G,  dS = P * (G Vᵀ - rowsum(G * O)),  dQ = dS K,  dK = dSᵀ Q.
#include <algorithm>
#include <limits>
#include <string>

#include "attention_backward_tiles.h"
#include "attention_block.h"
#include "gemm_blocked.h"
#include "program.h"
#include "thread_pool.h"

namespace ferrule {
namespace {

struct Workspace {
  AlignedScratch queries, gradients, logits, slopes, sums, state, row, keys, values, whole_keys, whole_queries,
      whole_gradients, edge, tile;
};
Workspace& ThreadWorkspace() {
  static thread_local Workspace workspace;
  return workspace;
}

class AttentionBackward : public Prepared {
 public:
  AttentionShape s;
  AttentionView g, dq, dk, dv;
  // The last so many axes of the batch share keys and values: their gradients are added up.
  int64_t sharing = 1;
  float q_factor = 1, k_factor = 1;
  size_t g_at = 0, out_at = 0, statistics_at = 0;
  std::unique_ptr<TiledSlopes> tiles;  // where the processor has them

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    const int64_t groups = s.members / sharing, threads = context.pool->threads();
    const int64_t blocks = (s.rows + AttentionBlocks::kMostRows - 1) / AttentionBlocks::kMostRows;
    // Rows are split where there are too few groups for the threads; each share then has sums of its own.
    int64_t splits = 1;
    if (threads > 1 && groups < 4 * threads) splits = std::min(blocks, (4 * threads + groups - 1) / groups);
    const int64_t share = (blocks + splits - 1) / splits;
    const int64_t length = Length() * (KeyWidth() + ValueWidth());
    const int64_t bytes = groups * splits * length * static_cast<int64_t>(sizeof(float));
    std::vector<uint8_t> finite(static_cast<size_t>(s.members));
    if (s.banded()) {
      context.pool->For(s.members, std::max<int64_t>(1, (1 << 16) / (s.keys * s.depth)),
                        [&](int64_t begin, int64_t end) {
                          for (int64_t i = begin; i < end; ++i) {
                            AttentionBlocks found(s, operands, i);
                            finite[i] = found.Finite(found.k(), s.k, s.depth, ThreadWorkspace().keys);
                          }
                        });
    }
    auto* sums = static_cast<float*>(context.allocate(context.allocate_self, bytes));
    if (!sums) return OutOfMemory("no memory for the gradients of attention (" + std::to_string(bytes) + " bytes)");
    context.pool->For(groups * splits, 1, [&](int64_t begin, int64_t end) {
      if (tiles) TiledSlopes::Begin();
      for (int64_t i = begin; i < end; ++i) {
        float* to = sums + i * length;
        std::fill(to, to + length, 0.0f);
        for (int64_t j = 0; j < sharing; ++j) {
          const int64_t first = i % splits * share, member = i / splits * sharing + j;
          if (tiles) tiles->Member(AttentionBlocks(s, operands, member));
          for (int64_t block = first; block < std::min(first + share, blocks); ++block) {
            Rows(operands, results, member, block * AttentionBlocks::kMostRows, finite[member], to);
          }
        }
      }
      if (tiles) TiledSlopes::End();
    });
    context.pool->For(groups, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* total = sums + i * splits * length;
        for (int64_t j = 1; j < splits; ++j) {
          for (int64_t p = 0; p < length; ++p) total[p] += total[j * length + p];
        }
        Keep(total, KeyWidth(), s.depth, k_factor, dk, s.At(results[1], dk, i * sharing));
        Keep(total + Length() * KeyWidth(), ValueWidth(), s.width, 1, dv, s.At(results[2], dv, i * sharing));
      }
    });
    return Status();
  }

 private:
  // Keys and as many rows more as a tile may touch.
  int64_t Length() const { return (s.keys + 31) / 16 * 16; }
  int64_t KeyWidth() const { return Whole(s.depth); }
  int64_t ValueWidth() const { return Whole(s.width); }
  int64_t Whole(int64_t width) const {
    return tiles ? (width + kTilePanel - 1) / kTilePanel * kTilePanel : AttentionBlocks::PaddedWidth(width);
  }

  void Keep(float* from, int64_t row, int64_t columns, float factor, const AttentionView& view, char* to) const {
    for (int64_t i = 0; i < s.keys; ++i) {
      if (factor != 1) ChosenAttention().multiply(from + i * row, columns, factor);
      StoreElements(view.type, to + i * view.row * SizeOf(view.type), view.column, columns, from + i * row);
    }
  }

  // Maximum, 1 / sum and rowsum(G * O) of each row; 0 for the lanes that are left over.
  void ReadState(void* const* operands, int64_t member, int64_t first, int64_t rows, int64_t ld,
                 const AttentionMatrix& gradients, float* state) const {
    const auto* kept = static_cast<const float*>(operands[statistics_at]) + member * s.rows + first;
    const char* out = s.At(operands[out_at], s.out, member) + first * s.out.row * SizeOf(s.out.type);
    float* line = ThreadWorkspace().row.Get<float>(s.width);
    std::fill(state, state + 3 * ld, 0.0f);
    for (int64_t r = 0; r < rows; ++r) {
      LoadElements(s.out.type, out + r * s.out.row * SizeOf(s.out.type), s.out.column, s.width, line);
      const float* gradient = gradients.data + r * gradients.row;
      double sum = 0;
      for (int64_t j = 0; j < s.width; ++j) sum += static_cast<double>(gradient[j]) * line[j];
      state[r] = kept[r];
      state[ld + r] = 1 / kept[s.members * s.rows + r];
      state[2 * ld + r] = static_cast<float>(sum);
    }
  }

  void Rows(void* const* operands, void* const* results, int64_t member, int64_t first, bool skip, float* sums) const {
    AttentionBlocks blocks(s, operands, member);
    Workspace& w = ThreadWorkspace();
    const AttentionKernels& kernels = ChosenAttention();
    const int64_t rows = std::min(AttentionBlocks::kMostRows, s.rows - first), ld = RowsOf(rows);
    const int64_t key_width = KeyWidth();
    float *key_sums = sums, *value_sums = sums + Length() * key_width;
    const char* gradient = s.At(operands[g_at], g, member);
    float* state = w.state.Get<float>(3 * ld);
    AttentionMatrix q = blocks.WholeRows(blocks.q(), s.q, first, rows, s.depth, w.whole_queries);
    AttentionMatrix d = blocks.WholeRows(gradient, g, first, rows, s.width, w.whole_gradients);
    if (int64_t next = first + rows; next < s.rows) {
      int64_t count = std::min(AttentionBlocks::kMostRows, s.rows - next);
      AttentionBlocks::Prefetch(blocks.q(), s.q, next, count, s.depth);
      AttentionBlocks::Prefetch(gradient, g, next, count, s.width);
    }
    ReadState(operands, member, first, rows, ld, d, state);
    int64_t from = 0, to = s.keys;
    // What is left out would be multiplied by 0. A row without a sum is NaN for every key, masked or not.
    if (skip && s.Negligible(state, rows) && ChosenKernels().f32.finite(rows, state + ld) && Finite(q, rows, s.depth) &&
        Finite(d, rows, s.width)) {
      const int64_t unit = tiles ? kTilePanel : 4;
      from = std::clamp<int64_t>(first + s.low, 0, s.keys - 1) / unit * unit;
      to = std::clamp<int64_t>(first + rows + s.high, from + 1, s.keys);
      to = std::min(s.keys, (to + unit - 1) / unit * unit);
    }
    float* slopes = tiles ? tiles->Rows(blocks, gradient, first, rows, from, to, state, key_sums, value_sums)
                          : Slopes(blocks, gradient, q, d, first, rows, from, to, state, key_sums, value_sums);
    char* out = s.At(results[0], dq, member);
    for (int64_t r = 0; r < rows; ++r) {
      if (q_factor != 1) kernels.multiply(slopes + r * key_width, s.depth, q_factor);
      StoreElements(dq.type, out + (first + r) * dq.row * SizeOf(dq.type), dq.column, s.depth, slopes + r * key_width);
    }
  }

  // What TiledSlopes::Rows does, in vector registers; q and d are the rows of queries and gradients.
  float* Slopes(const AttentionBlocks& blocks, const char* gradient, const AttentionMatrix& q, const AttentionMatrix& d,
                int64_t first, int64_t rows, int64_t from, int64_t to, const float* state, float* key_sums,
                float* value_sums) const {
    Workspace& w = ThreadWorkspace();
    const int64_t ld = RowsOf(rows), lanes = AttentionBlocks::PaddedWidth(1),
                  padded = (rows + lanes - 1) / lanes * lanes;
    const int64_t key_width = KeyWidth(), value_width = ValueWidth();
    constexpr int64_t kPanel = 32, kKeys = AttentionBlocks::kMostKeys;
    float* queries = w.queries.Get<float>((rows + kPanel) * s.depth);
    float* gradients = w.gradients.Get<float>((rows + kPanel) * s.width);
    float* logits = w.logits.Get<float>((kKeys + kPanel) * ld);
    float* slopes = w.slopes.Get<float>((kKeys + kPanel) * ld);
    float* row_sums = w.sums.Get<float>((ld + kPanel) * key_width);
    blocks.PackRows(blocks.q(), s.q, first, rows, s.depth, s.scale, w.row, queries);
    blocks.PackRows(gradient, g, first, rows, s.width, 1, w.row, gradients);
    for (int64_t key = from; key < to; key += kKeys) {
      int64_t keys = std::min(kKeys, to - key);
      AttentionMatrix k = blocks.Rows(blocks.k(), s.k, key, keys, s.depth, w.keys);
      blocks.Product(k, keys, s.depth, queries, padded, logits, ld, w.edge);
      blocks.Apply(logits, ld, key, keys, first, rows, w.tile);
      AttentionMatrix v = blocks.Rows(blocks.v(), s.v, key, keys, s.width, w.values);
      blocks.Product(v, keys, s.width, gradients, padded, slopes, ld, w.edge);
      ChosenAttention().gradient(logits, slopes, ld, keys, padded, state, state + ld, state + 2 * ld);
      blocks.Clear(slopes, ld, key, keys, first, rows, w.tile);
      blocks.Accumulate(logits, ld, 1, keys, rows, d, value_width, value_sums + key * value_width, value_width, true);
      blocks.Accumulate(slopes, ld, 1, keys, rows, q, key_width, key_sums + key * key_width, key_width, true);
      AttentionMatrix rows_of_k = blocks.WholeRows(blocks.k(), s.k, key, keys, s.depth, w.whole_keys);
      blocks.Accumulate(slopes, 1, ld, padded, keys, rows_of_k, key_width, row_sums, key_width, key > from);
    }
    return row_sums;
  }

  // The distance of keys in a block of logits.
  int64_t RowsOf(int64_t rows) const {
    return tiles ? (rows + kTilePanel - 1) / kTilePanel * kTilePanel : AttentionBlocks::Padded(rows);
  }

  static bool Finite(const AttentionMatrix& x, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; ++r) {
      if (!ChosenKernels().f32.finite(columns, x.data + r * x.row)) return false;
    }
    return true;
  }
};

Result<std::unique_ptr<Prepared>> PrepareAttentionBackward(const CallDesc& call) {
  Attributes attributes(call);
  Result<AttentionShape> shape = ReadAttention(attributes, call);
  FERRULE_RETURN_IF_ERROR(shape.status());
  auto made = std::make_unique<AttentionBackward>();
  AttentionShape& s = made->s = std::move(*shape);
  made->q_factor = ReadFloat(attributes, "q_factor");
  made->k_factor = ReadFloat(attributes, "k_factor");
  made->sharing = attributes.Int("sharing");
  if (call.operands.size() < 6 || call.results.size() != 3) attributes.Fail("it takes six operands, for three results");
  FERRULE_RETURN_IF_ERROR(attributes.status());
  if (made->sharing < 1 || s.members % made->sharing != 0) attributes.Fail("`sharing` does not divide the batch");
  made->g_at = call.operands.size() - 3;
  made->out_at = made->g_at + 1;
  made->statistics_at = made->g_at + 2;
  auto view = [&](const char* name, const Shape& of, int64_t rows, int64_t columns) {
    return ReadAttentionView(attributes, name, of, s.batch, rows, columns);
  };
  made->g = view("g", call.operands[made->g_at], s.rows, s.width);
  s.out = view("out", call.operands[made->out_at], s.rows, s.width);
  made->dq = view("dq", call.results[0], s.rows, s.depth);
  made->dk = view("dk", call.results[1], s.keys, s.depth);
  made->dv = view("dv", call.results[2], s.keys, s.width);
  const Shape& statistics = call.operands[made->statistics_at];
  if (ElementOf(statistics) != Element::kF32 || statistics.elements() != 2 * s.members * s.rows) {
    attributes.Fail("the last operand has two floats for each row");
  }
  FERRULE_RETURN_IF_ERROR(attributes.status());
  made->tiles = TiledSlopes::Make(s, made->g);
  return std::unique_ptr<Prepared>(std::move(made));
}

[[maybe_unused]] const bool registered = RegisterCall("attention_backward", &PrepareAttentionBackward);

}  // namespace
}  // namespace ferrule

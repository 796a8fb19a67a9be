// Library call "attention": softmax(f(Q Kᵀ)) V, a block of rows at a time, with the maximum and the sum of each row
// carried from one block of keys to the next; the logits never are in memory. A second result, if there is one, gets
// the maxima and the sums, for "attention_backward".
#include <algorithm>
#include <limits>

#include "attention_block.h"
#include "attention_few.h"
#include "attention_tiles.h"
#include "program.h"
#include "thread_pool.h"

namespace ferrule {
namespace {

struct Workspace {
  AlignedScratch panels, logits, sums, state, row, keys, values, edge, tile;
};
Workspace& ThreadWorkspace() {
  static thread_local Workspace workspace;
  return workspace;
}

class Attention : public Prepared {
 public:
  explicit Attention(AttentionShape shape) : s_(std::move(shape)), tiles_(TiledAttention::Make(s_)) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    if (FewQueries(s_)) return AttentionOfFew(s_, operands, results, context);
    // Blocks outside of the bands are left out, unless 0 times their values is not 0.
    std::vector<uint8_t> finite;
    if (s_.banded()) {
      finite.resize(static_cast<size_t>(s_.members));
      context.pool->For(s_.members, std::max<int64_t>(1, (1 << 16) / (s_.keys * s_.width)),
                        [&](int64_t begin, int64_t end) {
                          for (int64_t i = begin; i < end; ++i) {
                            AttentionBlocks blocks(s_, operands, i);
                            finite[i] = blocks.Finite(blocks.v(), s_.v, s_.width, ThreadWorkspace().values);
                          }
                        });
    }
    if (tiles_) {
      tiles_->Run(operands, results, s_.banded() ? finite.data() : nullptr, context.pool);
      return Status();
    }
    int64_t most = AttentionBlocks::kMostRows, threads = context.pool->threads();
    while (most > 32 && threads > 1 && s_.members * ((s_.rows + most - 1) / most) < 4 * threads) most -= 32;
    int64_t blocks = (s_.rows + most - 1) / most;
    int64_t count = (s_.rows + blocks - 1) / blocks;
    // Later rows see more keys when attention is causal: they come first, so that no thread is left with a long one.
    int64_t units = s_.members * blocks;
    double work = static_cast<double>(count) * s_.keys * (s_.depth + s_.width);
    context.pool->For(units, std::max<int64_t>(1, static_cast<int64_t>((1 << 17) / work)),
                      [&](int64_t begin, int64_t end) {
                        for (int64_t i = begin; i < end; ++i) {
                          int64_t member = i / blocks, first = (blocks - 1 - i % blocks) * count;
                          if (first >= s_.rows) continue;
                          bool skip = s_.banded() && finite[member];
                          Rows(operands, results, member, first, std::min(count, s_.rows - first), skip);
                        }
                      });
    return Status();
  }

 private:
  void Rows(void* const* operands, void* const* results, int64_t member, int64_t first, int64_t rows, bool skip) const {
    AttentionBlocks blocks(s_, operands, member);
    Workspace& w = ThreadWorkspace();
    const AttentionKernels& kernels = ChosenAttention();
    const int64_t ld = AttentionBlocks::Padded(rows), width = AttentionBlocks::PaddedWidth(s_.width);
    constexpr int64_t kPanel = 32;  // no set of loops has panels of more columns
    float* panels = w.panels.Get<float>((rows + kPanel) * s_.depth);
    float* logits = w.logits.Get<float>((AttentionBlocks::kMostKeys + kPanel) * ld);
    float* sums = w.sums.Get<float>((ld + kPanel) * width);
    float* state = w.state.Get<float>(3 * ld);
    float *m = state, *l = state + ld, *factor = state + 2 * ld;
    blocks.PackRows(blocks.q(), s_.q, first, rows, s_.depth, s_.scale, w.row, panels);
    if (first >= rows) AttentionBlocks::Prefetch(blocks.q(), s_.q, first - rows, rows, s_.depth);  // see Run's order
    const int64_t lanes = AttentionBlocks::PaddedWidth(1), padded = (rows + lanes - 1) / lanes * lanes;
    auto sweep = [&](int64_t from, int64_t to) {
      std::fill(m, m + ld, -std::numeric_limits<float>::infinity());
      std::fill(l, l + ld, 0.0f);
      for (int64_t key = from; key < to; key += AttentionBlocks::kMostKeys) {
        int64_t keys = std::min(AttentionBlocks::kMostKeys, to - key);
        AttentionMatrix k = blocks.Rows(blocks.k(), s_.k, key, keys, s_.depth, w.keys);
        blocks.Product(k, keys, s_.depth, panels, padded, logits, ld, w.edge);
        blocks.Apply(logits, ld, key, keys, first, rows, w.tile);
        bool changed = kernels.softmax(logits, ld, keys, padded, m, l, factor);
        if (key > from && changed) kernels.scale(sums, width, padded, width, factor);
        AttentionMatrix v = blocks.WholeRows(blocks.v(), s_.v, key, keys, s_.width, w.values);
        blocks.Accumulate(logits, 1, ld, padded, keys, v, width, sums, width, key > from);
      }
    };
    int64_t from = 0, to = s_.keys;
    if (skip) {
      from = std::clamp<int64_t>(first + s_.low, 0, s_.keys - 1) / 4 * 4;
      to = std::clamp<int64_t>(first + rows + s_.high, from + 1, s_.keys);
    }
    sweep(from, to);
    if ((from > 0 || to < s_.keys) && !s_.Negligible(m, rows)) sweep(0, s_.keys);
    if (s_.statistics) Keep(static_cast<float*>(results[1]) + member * s_.rows + first, m, l, rows);
    char* out = s_.At(results[0], s_.out, member);
    for (int64_t r = 0; r < rows; ++r) {
      kernels.multiply(sums + r * width, s_.width, 1 / l[r]);
      StoreElements(s_.out.type, out + (first + r) * s_.out.row * SizeOf(s_.out.type), s_.out.column, s_.width,
                    sums + r * width);
    }
  }

  void Keep(float* to, const float* m, const float* l, int64_t rows) const {
    std::copy_n(m, rows, to);
    std::copy_n(l, rows, to + s_.members * s_.rows);
  }

  AttentionShape s_;
  std::unique_ptr<TiledAttention> tiles_;
};

Result<std::unique_ptr<Prepared>> PrepareAttention(const CallDesc& call) {
  Attributes attributes(call);
  Result<AttentionShape> shape = ReadAttention(attributes, call);
  FERRULE_RETURN_IF_ERROR(shape.status());
  shape->out = ReadAttentionView(attributes, "out", call.results[0], shape->batch, shape->rows, shape->width);
  if (call.results.size() > 2) attributes.Fail("it has one or two results");
  if (call.results.size() == 2) {
    shape->statistics = true;
    bool fits =
        ElementOf(call.results[1]) == Element::kF32 && call.results[1].elements() == 2 * shape->members * shape->rows;
    if (!fits) attributes.Fail("the second result has two floats for each row");
  }
  FERRULE_RETURN_IF_ERROR(attributes.status());
  return std::unique_ptr<Prepared>(new Attention(std::move(*shape)));
}

[[maybe_unused]] const bool registered = RegisterCall("attention", &PrepareAttention);

}  // namespace
}  // namespace ferrule

// Each product of a block is made of tiles with the rows of the queries in their columns, so that the logits lie as
// attention_block.h has them: S = K Qᵀ, then Oᵀ = Vᵀ P with P as the pairs of keys that the registers want. Keys and
// values are packed for several blocks of rows of one member at a time.
#include "attention_tiles.h"

#include <algorithm>
#include <limits>

#include "attention_block.h"
#include "attention_tiles_tables.h"

namespace ferrule {

#if defined(__x86_64__) && defined(__linux__)

namespace {

constexpr int64_t kRows = 64, kKeys = 128;  // of a block: half of the first-level cache for the logits

int64_t Ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Workspace {
  AlignedScratch queries, keys, values, logits, pairs, sums, state, lines, tile;
  int64_t from = 0, to = 0;  // the packed keys
};
Workspace& ThreadWorkspace() {
  static thread_local Workspace workspace;
  return workspace;
}

}  // namespace

std::unique_ptr<TiledAttention> TiledAttention::Make(const AttentionShape& s) {
  const bool brain = s.q.type == Element::kBF16 && s.k.type == Element::kBF16 && s.v.type == Element::kBF16;
  if (!s.narrow || !brain || !MayUseTiles()) return nullptr;
  std::unique_ptr<TiledAttention> made(new TiledAttention(s));
  const bool packed = MakeTilePacking(kTileRight, 2, s.q.row, s.q.column, &made->q_) &&
                      MakeTilePacking(kTileLeft, 2, s.k.row, s.k.column, &made->k_) &&
                      MakeTilePacking(kTileLeft, 2, s.v.column, s.v.row, &made->v_);
  return packed ? std::move(made) : nullptr;
}

void TiledAttention::Run(void* const* operands, void* const* results, const uint8_t* finite, ThreadPool* pool) const {
  constexpr double kWorthAThread = 1 << 21;  // multiply-adds
  const int64_t blocks = Ceil(s_.rows, kRows), threads = pool->threads();
  const int64_t parts = threads > 1 ? std::min(blocks, Ceil(4 * threads, s_.members)) : 1;
  const double work = static_cast<double>(s_.rows) / parts * s_.keys * (s_.depth + s_.width);
  // Later rows see more keys when attention is causal: they come first, so that no thread is left with a long one.
  const auto grain = static_cast<int64_t>(kWorthAThread / work);
  pool->For(s_.members * parts, std::max<int64_t>(1, grain), [&](int64_t begin, int64_t end) {
    kAmxTiles.begin();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t member = i / parts, part = parts - 1 - i % parts;
      Part(operands, results, member, blocks * part / parts * kRows,
           std::min(s_.rows, blocks * (part + 1) / parts * kRows), finite && finite[member]);
    }
    kAmxTiles.end();
  });
}

void TiledAttention::Part(void* const* operands, void* const* results, int64_t member, int64_t first, int64_t end,
                          bool skip) const {
  ThreadWorkspace().from = ThreadWorkspace().to = 0;
  for (int64_t row = first + (end - first - 1) / kRows * kRows; row >= first; row -= kRows) {
    Rows(operands, results, member, row, std::min(kRows, end - row), skip);
  }
}

void TiledAttention::Rows(void* const* operands, void* const* results, int64_t member, int64_t first, int64_t rows,
                          bool skip) const {
  AttentionBlocks blocks(s_, operands, member);
  Workspace& w = ThreadWorkspace();
  const AttentionTileKernels& kernels = kAmxAttention;
  const int64_t panels = Ceil(rows, kTilePanel), ld = panels * kTilePanel, wide = Ceil(s_.width, kTilePanel);
  const int64_t deep = Ceil(s_.depth, kTilePanel), all = Ceil(s_.keys, kTilePanel);
  constexpr int64_t kPairs = kKeys / kTilePanel * kTileStep;
  char* queries = w.queries.Get<char>(panels * deep * kTileStep);
  char* keys = w.keys.Get<char>(all * deep * kTileStep);
  char* values = w.values.Get<char>(all * wide * kTileStep);
  char* pairs = w.pairs.Get<char>(panels * kPairs);
  float* logits = w.logits.Get<float>(kKeys * ld);
  float* sums = w.sums.Get<float>(wide * kTilePanel * ld);
  float* state = w.state.Get<float>(3 * ld);
  float *m = state, *l = state + ld, *factor = state + 2 * ld;
  for (int64_t p = 0; p < panels; ++p) {
    q_.pack(blocks.q() + first * s_.q.row * 2 + p * q_.panel, q_.stride, std::min(kTilePanel, rows - p * kTilePanel),
            s_.depth, queries + p * deep * kTileStep);
  }
  auto pack = [&](int64_t from, int64_t to) {
    if (w.from <= from && to <= w.to) return;
    const int64_t step = from / kTilePanel, steps = Ceil(to, kTilePanel) - step;
    for (int64_t i = step; i < step + steps; ++i) {
      k_.pack(blocks.k() + i * k_.panel, k_.stride, std::min(kTilePanel, s_.keys - i * kTilePanel), s_.depth,
              keys + i * deep * kTileStep);
    }
    for (int64_t j = 0; j < wide; ++j) {
      v_.pack(blocks.v() + j * v_.panel + step * v_.along, v_.stride, std::min(kTilePanel, s_.width - j * kTilePanel),
              std::min(s_.keys - step * kTilePanel, steps * kTilePanel), values + (j * all + step) * kTileStep);
    }
    w.from = from, w.to = to;
  };
  auto sweep = [&](int64_t from, int64_t to) {
    pack(from, to);
    std::fill(m, m + ld, -std::numeric_limits<float>::infinity());
    std::fill(l, l + ld, 0.0f);
    for (int64_t key = from; key < to; key += kKeys) {
      const int64_t count = std::min(kKeys, to - key), steps = Ceil(count, kTilePanel), step = key / kTilePanel;
      for (int64_t p = 0; p < panels; ++p) {
        for (int64_t i = 0; i < steps; ++i) {
          kernels.multiply(keys + (step + i) * deep * kTileStep, kTileBytes, kTileStep, queries + p * deep * kTileStep,
                           deep, false, logits + i * kTilePanel * ld + p * kTilePanel, ld);
        }
      }
      float scale = s_.scale;
      if (!s_.steps.empty()) {
        if (scale != 1) ChosenAttention().multiply(logits, count * ld, scale);
        scale = 1;
        blocks.Apply(logits, ld, key, count, first, rows, w.tile);
      }
      const bool changed = kernels.softmax(logits, ld, count, ld, scale, m, l, factor, pairs, kPairs);
      if (key > from && changed) kernels.fade(sums, ld, wide * kTilePanel, ld, factor);
      for (int64_t p = 0; p < panels; ++p) {
        for (int64_t j = 0; j < wide; ++j) {
          kernels.multiply(values + (j * all + step) * kTileStep, kTileBytes, kTileStep, pairs + p * kPairs, steps,
                           key > from, sums + j * kTilePanel * ld + p * kTilePanel, ld);
        }
      }
    }
  };
  int64_t from = 0, to = s_.keys;
  if (skip) {
    from = std::clamp<int64_t>(first + s_.low, 0, s_.keys - 1) / kTilePanel * kTilePanel;
    to = std::min(s_.keys,
                  Ceil(std::clamp<int64_t>(first + rows + s_.high, from + 1, s_.keys), kTilePanel) * kTilePanel);
  }
  sweep(from, to);
  if ((from > 0 || to < s_.keys) && !s_.Negligible(m, rows)) sweep(0, s_.keys);
  if (s_.statistics) {
    float* kept = static_cast<float*>(results[1]) + member * s_.rows + first;
    std::copy_n(m, rows, kept);
    std::copy_n(l, rows, kept + s_.members * s_.rows);
  }
  for (int64_t r = 0; r < ld; ++r) factor[r] = 1 / l[r];
  kernels.fade(sums, ld, wide * kTilePanel, ld, factor);
  float* lines = w.lines.Get<float>(ld * wide * kTilePanel);
  kernels.turn(sums, ld, wide * kTilePanel, ld, lines, wide * kTilePanel);
  char* out = s_.At(results[0], s_.out, member);
  for (int64_t r = 0; r < rows; ++r) {
    StoreElements(s_.out.type, out + (first + r) * s_.out.row * SizeOf(s_.out.type), s_.out.column, s_.width,
                  lines + r * wide * kTilePanel);
  }
}

#else

std::unique_ptr<TiledAttention> TiledAttention::Make(const AttentionShape&) { return nullptr; }
void TiledAttention::Run(void* const*, void* const*, const uint8_t*, ThreadPool*) const {}

#endif

}  // namespace ferrule

// S = K Qᵀ and V Gᵀ with the rows of the queries in their columns, as attention_block.h has them. Then the rows of P
// and dS lie as the left side of dV += P G and dK += dS Q wants them, and pairs of keys as the right side of dQᵀ = Kᵀ
// dS.
#include "attention_backward_tiles.h"

#include <algorithm>

#include "attention_tiles_tables.h"

namespace ferrule {

#if defined(__x86_64__) && defined(__linux__)

namespace {

constexpr int64_t kKeys = AttentionBlocks::kMostKeys;

int64_t Ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Workspace {
  AlignedScratch keys, turned_keys, values;                      // of a member
  AlignedScratch queries, gradients, query_rows, gradient_rows;  // of a block of rows
  AlignedScratch logits, slopes, brain, pairs, sums, lines, tile;
};
Workspace& ThreadWorkspace() {
  static thread_local Workspace workspace;
  return workspace;
}

// All panels of `count` lines or columns from `from` on, k elements long.
char* Pack(const TilePacking& packing, const char* from, int64_t count, int64_t k, AlignedScratch& scratch) {
  const int64_t panels = Ceil(count, kTilePanel), bytes = Ceil(k, kTilePanel) * kTileStep;
  char* to = scratch.Get<char>(panels * bytes);
  for (int64_t i = 0; i < panels; ++i) {
    packing.pack(from + i * packing.panel, packing.stride, std::min(kTilePanel, count - i * kTilePanel), k,
                 to + i * bytes);
  }
  return to;
}

}  // namespace

std::unique_ptr<TiledSlopes> TiledSlopes::Make(const AttentionShape& s, const AttentionView& g) {
  for (const AttentionView* view : {&s.q, &s.k, &s.v, &g}) {
    if (view->type != Element::kBF16) return nullptr;
  }
  if (!s.narrow || !MayUseTiles()) return nullptr;
  std::unique_ptr<TiledSlopes> made(new TiledSlopes(s));
  made->g_row_ = g.row;
  const bool packed = MakeTilePacking(kTileRight, 2, s.q.row, s.q.column, &made->q_) &&
                      MakeTilePacking(kTileRight, 2, s.q.column, s.q.row, &made->q_rows_) &&
                      MakeTilePacking(kTileRight, 2, g.row, g.column, &made->g_) &&
                      MakeTilePacking(kTileRight, 2, g.column, g.row, &made->g_rows_) &&
                      MakeTilePacking(kTileLeft, 2, s.k.row, s.k.column, &made->k_) &&
                      MakeTilePacking(kTileLeft, 2, s.k.column, s.k.row, &made->k_keys_) &&
                      MakeTilePacking(kTileLeft, 2, s.v.row, s.v.column, &made->v_);
  return packed ? std::move(made) : nullptr;
}

void TiledSlopes::Begin() { kAmxTiles.begin(); }
void TiledSlopes::End() { kAmxTiles.end(); }

void TiledSlopes::Member(const AttentionBlocks& blocks) const {
  Workspace& w = ThreadWorkspace();
  Pack(k_, blocks.k(), s_.keys, s_.depth, w.keys);
  Pack(k_keys_, blocks.k(), s_.depth, s_.keys, w.turned_keys);
  Pack(v_, blocks.v(), s_.keys, s_.width, w.values);
}

float* TiledSlopes::Rows(const AttentionBlocks& blocks, const char* gradient, int64_t first, int64_t rows, int64_t from,
                         int64_t to, const float* state, float* key_sums, float* value_sums) const {
  Workspace& w = ThreadWorkspace();
  const AttentionTileKernels& kernels = kAmxAttention;
  const int64_t panels = Ceil(rows, kTilePanel), ld = panels * kTilePanel, all = Ceil(s_.keys, kTilePanel);
  const int64_t deep = Ceil(s_.depth, kTilePanel), depth = deep * kTilePanel;
  const int64_t wide = Ceil(s_.width, kTilePanel), width = wide * kTilePanel;
  constexpr int64_t kPairs = kKeys / kTilePanel * kTileStep;
  const char* q = blocks.q() + first * s_.q.row * 2;
  const char* g = gradient + first * g_row_ * 2;
  const char* keys = w.keys.Get<char>(all * deep * kTileStep);
  const char* turned_keys = w.turned_keys.Get<char>(all * deep * kTileStep);
  const char* values = w.values.Get<char>(all * wide * kTileStep);
  const char* queries = Pack(q_, q, rows, s_.depth, w.queries);
  const char* gradients = Pack(g_, g, rows, s_.width, w.gradients);
  const char* query_rows = Pack(q_rows_, q, s_.depth, rows, w.query_rows);
  const char* gradient_rows = Pack(g_rows_, g, s_.width, rows, w.gradient_rows);
  float* logits = w.logits.Get<float>(kKeys * ld);
  float* slopes = w.slopes.Get<float>(kKeys * ld);
  char* brain = w.brain.Get<char>(kKeys * ld * 2);
  char* pairs = w.pairs.Get<char>(panels * kPairs);
  float* sums = w.sums.Get<float>(depth * ld);
  // left[keys][features] * right[rows][features] for the keys of a block
  auto by_rows = [&](const char* left, const char* right, int64_t steps, int64_t key_panels, float* result) {
    for (int64_t p = 0; p < panels; ++p) {
      for (int64_t i = 0; i < key_panels; ++i) {
        kernels.multiply(left + i * steps * kTileStep, kTileBytes, kTileStep, right + p * steps * kTileStep, steps,
                         false, result + i * kTilePanel * ld + p * kTilePanel, ld);
      }
    }
  };
  // result[keys][features] += brain[keys][rows] * right[rows][features]
  auto by_features = [&](const float* left, const char* right, int64_t features, int64_t count, float* result) {
    kernels.narrow(left, ld, count, rows, brain);
    for (int64_t i = 0; i < Ceil(count, kTilePanel); ++i) {
      for (int64_t j = 0; j < features; ++j) {
        kernels.multiply(brain + i * kTilePanel * ld * 2, ld * 2, kTileBytes, right + j * panels * kTileStep, panels,
                         true, result + (i * features * kTilePanel + j) * kTilePanel, features * kTilePanel);
      }
    }
  };
  for (int64_t key = from; key < to; key += kKeys) {
    const int64_t count = std::min(kKeys, to - key), steps = Ceil(count, kTilePanel), step = key / kTilePanel;
    by_rows(keys + step * deep * kTileStep, queries, deep, steps, logits);
    if (s_.scale != 1) ChosenAttention().multiply(logits, count * ld, s_.scale);
    blocks.Apply(logits, ld, key, count, first, rows, w.tile);
    by_rows(values + step * wide * kTileStep, gradients, wide, steps, slopes);
    ChosenAttention().gradient(logits, slopes, ld, count, ld, state, state + ld, state + 2 * ld);
    blocks.Clear(slopes, ld, key, count, first, rows, w.tile);
    by_features(logits, gradient_rows, wide, count, value_sums + key * width);
    // What is not rounded goes in two parts, with 16 bits together: the sums that it comes from have errors of bf16.
    for (int64_t part = 0; part < (s_.rounded_slopes ? 1 : 2); ++part) {
      if (part > 0) kernels.rest(slopes, count * ld);
      by_features(slopes, query_rows, deep, count, key_sums + key * depth);
      kernels.pairs(slopes, ld, count, ld, pairs, kPairs);
      for (int64_t p = 0; p < panels; ++p) {
        for (int64_t j = 0; j < deep; ++j) {
          kernels.multiply(turned_keys + (j * all + step) * kTileStep, kTileBytes, kTileStep, pairs + p * kPairs, steps,
                           key > from || part > 0, sums + j * kTilePanel * ld + p * kTilePanel, ld);
        }
      }
    }
  }
  float* lines = w.lines.Get<float>(ld * depth);
  kernels.turn(sums, ld, depth, ld, lines, depth);
  return lines;
}

#else

std::unique_ptr<TiledSlopes> TiledSlopes::Make(const AttentionShape&, const AttentionView&) { return nullptr; }
void TiledSlopes::Begin() {}
void TiledSlopes::End() {}
void TiledSlopes::Member(const AttentionBlocks&) const {}
float* TiledSlopes::Rows(const AttentionBlocks&, const char*, int64_t, int64_t, int64_t, int64_t, const float*, float*,
                         float*) const {
  return nullptr;
}

#endif

}  // namespace ferrule

#include "attention_few.h"

#include <algorithm>
#include <limits>
#include <string>

#include "attention_block.h"
#include "thread_pool.h"

namespace ferrule {
namespace {

constexpr int64_t kMostQueries = 4, kKeys = 256;  // a block of keys and values stays in the second-level cache

struct Workspace {
  AlignedScratch query, logits, keys, values, tile;
};
Workspace& ThreadWorkspace() {
  static thread_local Workspace workspace;
  return workspace;
}

// Maximum, sum and values of each row over some of the keys, in rows of 2 + width floats.
void SomeKeys(const AttentionShape& s, void* const* operands, int64_t member, int64_t from, int64_t to, float* parts) {
  AttentionBlocks blocks(s, operands, member);
  const AttentionKernels& kernels = ChosenAttention();
  Workspace& w = ThreadWorkspace();
  float* query = w.query.Get<float>(s.rows * s.depth);
  const int64_t size = SizeOf(s.q.type);
  for (int64_t r = 0; r < s.rows; ++r) {
    LoadElements(s.q.type, blocks.q() + r * s.q.row * size, s.q.column, s.depth, query + r * s.depth);
    float* part = parts + r * (2 + s.width);
    part[0] = -std::numeric_limits<float>::infinity();
    std::fill(part + 1, part + 2 + s.width, 0.0f);
  }
  kernels.multiply(query, s.rows * s.depth, s.scale);
  float* logits = w.logits.Get<float>(kKeys);
  for (int64_t key = from; key < to; key += kKeys) {
    int64_t keys = std::min(kKeys, to - key);
    AttentionMatrix k = blocks.Adjacent(blocks.k(), s.k, key, keys, s.depth, w.keys);
    AttentionMatrix v = blocks.Adjacent(blocks.v(), s.v, key, keys, s.width, w.values);
    for (int64_t r = 0; r < s.rows; ++r) {
      float* part = parts + r * (2 + s.width);
      kernels.dots(query + r * s.depth, s.depth, k.data, k.row, keys, logits);
      blocks.ApplyRow(logits, key, keys, r, w.tile);
      float factor = kernels.softmax_row(logits, keys, part, part + 1);
      kernels.mix(logits, keys, v.data, v.row, s.width, factor, part + 2);
    }
  }
}

// Adds the part of other keys to a part.
void Join(const AttentionKernels& kernels, float* part, const float* other, int64_t width) {
  float maxima[2] = {part[0], other[0]};
  float m = -std::numeric_limits<float>::infinity(), l = 0;
  kernels.softmax_row(maxima, 2, &m, &l);  // what both are multiplied by
  part[0] = m;
  for (int64_t i = 1; i < 2 + width; ++i) part[i] = part[i] * maxima[0] + other[i] * maxima[1];
}

}  // namespace

bool FewQueries(const AttentionShape& s) { return s.rows <= kMostQueries; }

Status AttentionOfFew(const AttentionShape& s, void* const* operands, void* const* results, ExecContext& context) {
  // Keys are split where there are too few heads for the threads.
  const int64_t threads = context.pool->threads(), blocks = (s.keys + kKeys - 1) / kKeys;
  int64_t splits = 1;
  if (threads > 1 && s.members < 2 * threads) splits = std::min(blocks, (2 * threads + s.members - 1) / s.members);
  const int64_t length = 2 + s.width, share = (blocks + splits - 1) / splits * kKeys;
  const int64_t bytes = s.members * splits * s.rows * length * static_cast<int64_t>(sizeof(float));
  auto* parts = static_cast<float*>(context.allocate(context.allocate_self, bytes));
  if (!parts) return OutOfMemory("no memory for the sums of attention (" + std::to_string(bytes) + " bytes)");
  auto part = [&](int64_t member, int64_t split) { return parts + (member * splits + split) * s.rows * length; };
  double work = static_cast<double>(s.rows) * share * (s.depth + s.width);
  context.pool->For(s.members * splits, std::max<int64_t>(1, static_cast<int64_t>((1 << 16) / work)),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t i = begin; i < end; ++i) {
                        int64_t from = std::min(s.keys, i % splits * share), to = std::min(s.keys, from + share);
                        SomeKeys(s, operands, i / splits, from, to, part(i / splits, i % splits));
                      }
                    });
  const AttentionKernels& kernels = ChosenAttention();
  for (int64_t member = 0; member < s.members; ++member) {
    char* out = s.At(results[0], s.out, member);
    for (int64_t r = 0; r < s.rows; ++r) {
      float* sum = part(member, 0) + r * length;
      for (int64_t i = 1; i < splits; ++i) Join(kernels, sum, part(member, i) + r * length, s.width);
      if (s.statistics) {
        float* to = static_cast<float*>(results[1]) + member * s.rows + r;
        to[0] = sum[0];
        to[s.members * s.rows] = sum[1];
      }
      kernels.multiply(sum + 2, s.width, 1 / sum[1]);
      StoreElements(s.out.type, out + r * s.out.row * SizeOf(s.out.type), s.out.column, s.width, sum + 2);
    }
  }
  return Status();
}

}  // namespace ferrule

#include "attention_block.h"

#include <algorithm>
#include <cstring>

#include "cpu_features.h"
#include "gemm_blocked.h"

namespace ferrule {

const AttentionKernels& ChosenAttention() {
#if defined(__x86_64__)
  if (ChosenIsa() == Isa::kAvx512) return kAvx512Attention;
  if (ChosenIsa() == Isa::kAvx2) return kAvx2Attention;
#endif
  return kBaselineAttention;
}

namespace {

const MicroKernels<float>& Products() { return ChosenKernels().f32; }

int64_t RoundUp(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

void LoadRow(const AttentionKernels& kernels, Element type, const char* from, int64_t stride, int64_t count,
             float* to) {
  if (type == Element::kF32 && stride == 1) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
  } else if (type == Element::kBF16 && stride == 1) {
    kernels.widen(reinterpret_cast<const uint16_t*>(from), count, to);
  } else {
    LoadElements(type, from, stride, count, to);
  }
}

}  // namespace

AttentionBlocks::AttentionBlocks(const AttentionShape& shape, void* const* operands, int64_t member)
    : s_(shape),
      operands_(operands),
      member_(member),
      product_(Products()),
      kernels_(ChosenAttention()),
      q_(shape.At(operands[0], shape.q, member)),
      k_(shape.At(operands[1], shape.k, member)),
      v_(shape.At(operands[2], shape.v, member)) {}

int64_t AttentionBlocks::Padded(int64_t rows) {
  int64_t lanes = Products().columns / 2, padded = RoundUp(rows, lanes);
  // Tiles of few rows may reach past the last vector.
  return padded % Products().rows % kFewRows == 0 ? padded : padded + lanes;
}

int64_t AttentionBlocks::PaddedWidth(int64_t width) { return RoundUp(width, Products().columns / 2); }

void AttentionBlocks::PackRows(const char* from, const AttentionView& view, int64_t first, int64_t rows,
                               int64_t columns, float scale, AlignedScratch& row, float* panels) const {
  const int64_t width = product_.columns, size = SizeOf(view.type);
  for (int64_t r = 0; r < rows; r += width) {
    int64_t count = std::min(width, rows - r);
    const char* at = from + (first + r) * view.row * size;
    float* panel = panels + r * columns;
    if (view.type == Element::kF32) {
      product_.pack_columns(reinterpret_cast<const float*>(at), view.row, view.column, count, columns, panel);
      continue;
    }
    float* copy = row.Get<float>(width * columns);
    for (int64_t i = 0; i < count; ++i) {
      LoadRow(kernels_, view.type, at + i * view.row * size, view.column, columns, copy + i * columns);
    }
    product_.pack_columns(copy, columns, 1, count, columns, panel);
  }
  if (scale != 1) kernels_.multiply(panels, RoundUp(rows, width) * columns, scale);
}

void AttentionBlocks::Prefetch(const char* from, const AttentionView& view, int64_t first, int64_t rows,
                               int64_t columns) {
  const int64_t size = SizeOf(view.type);
  if (view.column != 1) return;
  for (int64_t r = first; r < first + rows; ++r) {
    for (int64_t at = 0; at < columns * size; at += 64) __builtin_prefetch(from + r * view.row * size + at, 0, 2);
  }
}

AttentionMatrix AttentionBlocks::Rows(const char* from, const AttentionView& view, int64_t first, int64_t count,
                                      int64_t columns, AlignedScratch& copy) const {
  const int64_t size = SizeOf(view.type);
  const char* at = from + first * view.row * size;
  if (view.type == Element::kF32) return {reinterpret_cast<const float*>(at), view.row, view.column};
  float* to = copy.Get<float>(count * columns);
  if (view.row == 1 && view.column != 1) {
    for (int64_t j = 0; j < columns; ++j) {
      LoadRow(kernels_, view.type, at + j * view.column * size, 1, count, to + j * count);
    }
    return {to, 1, count};
  }
  for (int64_t i = 0; i < count; ++i) {
    LoadRow(kernels_, view.type, at + i * view.row * size, view.column, columns, to + i * columns);
  }
  return {to, columns, 1};
}

AttentionMatrix AttentionBlocks::Adjacent(const char* from, const AttentionView& view, int64_t first, int64_t count,
                                          int64_t columns, AlignedScratch& copy) const {
  const int64_t size = SizeOf(view.type);
  const char* at = from + first * view.row * size;
  if (view.type == Element::kF32 && view.column == 1) return {reinterpret_cast<const float*>(at), view.row, 1};
  float* to = copy.Get<float>(count * columns);
  for (int64_t i = 0; i < count; ++i) {
    LoadRow(kernels_, view.type, at + i * view.row * size, view.column, columns, to + i * columns);
  }
  return {to, columns, 1};
}

AttentionMatrix AttentionBlocks::WholeRows(const char* from, const AttentionView& view, int64_t first, int64_t count,
                                           int64_t columns, AlignedScratch& copy) const {
  const int64_t size = SizeOf(view.type), padded = PaddedWidth(columns);
  const char* at = from + first * view.row * size;
  if (view.type == Element::kF32 && view.column == 1 && padded == columns) {
    return {reinterpret_cast<const float*>(at), view.row, 1};
  }
  float* to = copy.Get<float>(count * padded);
  for (int64_t i = 0; i < count; ++i) {
    LoadRow(kernels_, view.type, at + i * view.row * size, view.column, columns, to + i * padded);
    std::fill(to + i * padded + columns, to + (i + 1) * padded, 0.0f);
  }
  return {to, padded, 1};
}

bool AttentionBlocks::Finite(const char* from, const AttentionView& view, int64_t columns, AlignedScratch& copy) const {
  for (int64_t key = 0; key < s_.keys; key += kMostKeys) {
    int64_t keys = std::min(kMostKeys, s_.keys - key);
    AttentionMatrix x = Adjacent(from, view, key, keys, columns, copy);
    for (int64_t i = 0; i < keys; ++i) {
      if (!ChosenKernels().f32.finite(columns, x.data + i * x.row)) return false;
    }
  }
  return true;
}

void AttentionBlocks::Product(const AttentionMatrix& a, int64_t keys, int64_t depth, const float* panels, int64_t rows,
                              float* s, int64_t ld, AlignedScratch& edge) const {
  const int64_t mr = product_.rows, nr = product_.columns;
  const int64_t whole = keys / mr * mr;
  // The last keys, fewer than a tile has: copied, with zeros behind.
  float* last = nullptr;
  if (int64_t rest = (keys - whole) % kFewRows; rest > 0) {
    last = edge.Get<float>(kFewRows * depth);
    std::fill(last, last + kFewRows * depth, 0.0f);
    for (int64_t i = 0; i < rest; ++i) {
      const float* from = a.data + (keys - rest + i) * a.row;
      for (int64_t p = 0; p < depth; ++p) last[i * depth + p] = from[p * a.column];
    }
  }
  for (int64_t r = 0; r < rows; r += nr) {
    const float* panel = panels + r * depth;
    int half = rows - r <= nr / 2;
    int64_t i = 0;
    for (; i < whole; i += mr) {
      product_.tile[kStridedRows][half](depth, a.data + i * a.row, a.row, a.column, panel, nr, s + i * ld + r, ld,
                                        false);
    }
    for (; i + kFewRows <= keys; i += kFewRows) {
      product_.tile[kFewStridedRows][half](depth, a.data + i * a.row, a.row, a.column, panel, nr, s + i * ld + r, ld,
                                           false);
    }
    if (i < keys) product_.tile[kFewStridedRows][half](depth, last, depth, 1, panel, nr, s + i * ld + r, ld, false);
  }
}

void AttentionBlocks::Accumulate(const float* a, int64_t a_row, int64_t a_k, int64_t rows, int64_t depth,
                                 const AttentionMatrix& b, int64_t width, float* c, int64_t c_row, bool add) const {
  const int64_t mr = product_.rows, nr = product_.columns;
  for (int64_t j = 0; j < width; j += nr) {
    int half = width - j <= nr / 2;
    const float* right = b.data + j;
    int64_t i = 0;
    for (; i + mr <= rows; i += mr) {
      product_.tile[kStridedRows][half](depth, a + i * a_row, a_row, a_k, right, b.row, c + i * c_row + j, c_row, add);
    }
    for (; i < rows; i += kFewRows) {
      product_.tile[kFewStridedRows][half](depth, a + i * a_row, a_row, a_k, right, b.row, c + i * c_row + j, c_row,
                                           add);
    }
  }
}

void AttentionBlocks::Apply(float* s, int64_t ld, int64_t key, int64_t keys, int64_t row, int64_t rows,
                            AlignedScratch& tile) const {
  for (const AttentionStep& step : s_.steps) {
    switch (step.kind) {
      case AttentionStep::kScale:
        for (int64_t i = 0; i < keys; ++i) kernels_.multiply(s + i * ld, rows, step.value);
        break;
      case AttentionStep::kAdd:
        Add(step, s_.At(operands_[step.operand], step.view, member_), s, ld, key, keys, row, rows, tile);
        break;
      case AttentionStep::kChoose:
        Choose(step, s_.At(operands_[step.operand], step.view, member_), s, ld, key, keys, row, rows, tile);
        break;
      case AttentionStep::kBand:
        Band(step, s, ld, key, keys, row, rows);
        break;
      case AttentionStep::kTanh:
        for (int64_t i = 0; i < keys; ++i) kernels_.tanh(s + i * ld, rows);
        break;
    }
  }
}

void AttentionBlocks::Clear(float* s, int64_t ld, int64_t key, int64_t keys, int64_t row, int64_t rows,
                            AlignedScratch& tile) const {
  for (AttentionStep step : s_.steps) {
    step.value = 0;
    if (step.kind == AttentionStep::kBand) Band(step, s, ld, key, keys, row, rows);
    if (step.kind == AttentionStep::kChoose) {
      Choose(step, s_.At(operands_[step.operand], step.view, member_), s, ld, key, keys, row, rows, tile);
    }
  }
}

void AttentionBlocks::ApplyRow(float* s, int64_t key, int64_t keys, int64_t row, AlignedScratch& tile) const {
  for (const AttentionStep& step : s_.steps) {
    const AttentionView& view = step.view;
    const int64_t at = row * view.row + key * view.column;
    switch (step.kind) {
      case AttentionStep::kScale:
        kernels_.multiply(s, keys, step.value);
        break;
      case AttentionStep::kAdd: {
        const char* bias = s_.At(operands_[step.operand], view, member_) + at * SizeOf(view.type);
        float* line = tile.Get<float>(keys);
        LoadRow(kernels_, view.type, bias, view.column, keys, line);
        for (int64_t i = 0; i < keys; ++i) s[i] += line[i];
        break;
      }
      case AttentionStep::kChoose: {
        const auto* mask = reinterpret_cast<const uint8_t*>(s_.At(operands_[step.operand], view, member_)) + at;
        for (int64_t i = 0; i < keys; ++i) s[i] = (mask[i * view.column] != 0) == (step.drop != 0) ? step.value : s[i];
        break;
      }
      case AttentionStep::kBand: {
        int64_t begin = std::clamp<int64_t>(row + step.low - key, 0, keys);
        int64_t end = std::clamp<int64_t>(row + step.high - key + 1, begin, keys);
        std::fill(s, s + begin, step.value);
        std::fill(s + end, s + keys, step.value);
        break;
      }
      case AttentionStep::kTanh:
        kernels_.tanh(s, keys);
        break;
    }
  }
}

void AttentionBlocks::Band(const AttentionStep& step, float* s, int64_t ld, int64_t key, int64_t keys, int64_t row,
                           int64_t rows) {
  if (key + keys - 1 - row <= step.high && key - (row + rows - 1) >= step.low) return;
  for (int64_t i = 0; i < keys; ++i) {
    // kept: key - high <= row <= key - low
    int64_t begin = std::clamp<int64_t>(key + i - step.high - row, 0, rows);
    int64_t end = std::clamp<int64_t>(key + i - step.low - row + 1, begin, rows);
    std::fill(s + i * ld, s + i * ld + begin, step.value);
    std::fill(s + i * ld + end, s + i * ld + rows, step.value);
  }
}

void AttentionBlocks::Choose(const AttentionStep& step, const char* mask, float* s, int64_t ld, int64_t key,
                             int64_t keys, int64_t row, int64_t rows, AlignedScratch& tile) const {
  const AttentionView& view = step.view;
  const auto* from = reinterpret_cast<const uint8_t*>(mask) + row * view.row + key * view.column;
  if (view.row == 0) {
    for (int64_t i = 0; i < keys; ++i) {
      if ((from[i * view.column] != 0) == (step.drop != 0)) std::fill(s + i * ld, s + i * ld + rows, step.value);
    }
    return;
  }
  constexpr int64_t kTile = 16;
  const int64_t padded = RoundUp(rows, std::max<int64_t>(kTile, product_.columns / 2));
  uint8_t* bytes = tile.Get<uint8_t>(padded * keys);
  if (rows < padded) std::fill(bytes, bytes + padded * keys, uint8_t{0});
  if (view.column == 0) {
    for (int64_t r = 0; r < rows; ++r) bytes[r] = from[r * view.row];
    return kernels_.choose(s, ld, keys, RoundUp(rows, product_.columns / 2), bytes, 0, step.drop, step.value);
  }
  if (view.row == 1) {
    for (int64_t i = 0; i < keys; ++i) {
      std::memcpy(bytes + i * padded, from + i * view.column, static_cast<size_t>(rows));
    }
  } else {
    int64_t r = 0;
    for (; view.column == 1 && r + kTile <= rows; r += kTile) {
      int64_t i = 0;
      for (; i + kTile <= keys; i += kTile) {
        kernels_.turn(from + r * view.row + i, view.row, bytes + i * padded + r, padded);
      }
      for (; i < keys; ++i) {
        for (int64_t j = r; j < r + kTile; ++j) bytes[i * padded + j] = from[j * view.row + i];
      }
    }
    for (; r < rows; ++r) {
      const uint8_t* line = from + r * view.row;
      for (int64_t i = 0; i < keys; ++i) bytes[i * padded + r] = line[i * view.column];
    }
  }
  kernels_.choose(s, ld, keys, RoundUp(rows, product_.columns / 2), bytes, padded, step.drop, step.value);
}

void AttentionBlocks::Add(const AttentionStep& step, const char* bias, float* s, int64_t ld, int64_t key, int64_t keys,
                          int64_t row, int64_t rows, AlignedScratch& tile) const {
  const AttentionView& view = step.view;
  const int64_t lanes = product_.columns / 2, padded = RoundUp(rows, lanes), size = SizeOf(view.type);
  const char* from = bias + (row * view.row + key * view.column) * size;
  float* sums = tile.Get<float>(padded + 2 * product_.columns * keys);
  if (view.row == 0) {
    LoadElements(view.type, from, view.column, keys, sums);
    float* line = sums + keys;
    for (int64_t i = 0; i < keys; ++i) {
      std::fill(line, line + padded, sums[i]);
      kernels_.add(s + i * ld, ld, 1, padded, line, 0);
    }
    return;
  }
  if (view.column == 0) {
    std::fill(sums, sums + padded, 0.0f);
    LoadElements(view.type, from, view.row, rows, sums);
    return kernels_.add(s, ld, keys, padded, sums, 0);
  }
  for (int64_t r = 0; r < rows; r += product_.columns) {
    int64_t count = std::min<int64_t>(product_.columns, rows - r);
    const char* at = from + r * view.row * size;
    if (view.type == Element::kF32) {
      product_.pack_columns(reinterpret_cast<const float*>(at), view.row, view.column, count, keys, sums);
    } else {
      float* lines = sums + product_.columns * keys;
      for (int64_t i = 0; i < count; ++i) {
        LoadRow(kernels_, view.type, at + i * view.row * size, view.column, keys, lines + i * keys);
      }
      product_.pack_columns(lines, keys, 1, count, keys, sums);
    }
    kernels_.add(s + r, ld, keys, RoundUp(count, lanes), sums, product_.columns);
  }
}

}  // namespace ferrule

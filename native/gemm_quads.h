// Tiles of 8-bit integers for processors with VNNI's instruction, which multiplies four unsigned bytes by four signed
// ones and adds up the products. Included after gemm_kernel.h, of which the same is true: several instruction sets, no
// standard library.
#include "gemm_tables.h"

namespace ferrule {
namespace FERRULE_ISA {

using Quads = VectorOf<uint32_t>::type;

// sum + the products of the bytes of each element.
inline Quads AddQuads(Quads sum, Quads unsigned_bytes, Quads signed_bytes) {
#if FERRULE_VECTOR_BYTES == 64
  return (Quads)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)unsigned_bytes, (__m512i)signed_bytes);
#else
  return (Quads)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)unsigned_bytes, (__m256i)signed_bytes);
#endif
}

// Multiply (gemm_kernel.h) of panels that begin with what sums begin with (GroupKernels).
template <int MR, int NV, bool kPackedA>
void MultiplyQuads(int64_t k, const uint32_t* a, int64_t a_row, int64_t a_k, const uint32_t* b, int64_t b_k,
                   uint32_t* c, int64_t c_row, bool accumulate) {
  using U = VectorOf<uint32_t>::unaligned;
  constexpr int kLanes = kBytes / 4;
  if (kPackedA) a_row = 1, a_k = MR;
  FetchTile<uint32_t, MR, NV>(c, c_row);
  Quads sum[MR][NV], right[NV];
  auto get_right = [&]() __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) right[j] = *reinterpret_cast<const U*>(b + j * kLanes);
  };
  get_right();
#pragma GCC unroll 32
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) sum[i][j] = a[i * a_row] + right[j];
  }
  for (int64_t p = 1; p < k; ++p) {
    a += a_k, b += b_k;
    get_right();
#pragma GCC unroll 32
    for (int i = 0; i < MR; ++i) {
      const Quads left = Quads{} + a[i * a_row];
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) sum[i][j] = AddQuads(sum[i][j], left, right[j]);
    }
  }
  PutSums<uint32_t, MR, NV>(sum, c, c_row, accumulate);
}

typedef uint32_t FourQuads __attribute__((vector_size(16), may_alias, aligned(1)));

// to[lane] = the bytes of one lane of four rows that are `row` apart, of so many lanes.
template <uint32_t kFlip, int kLanes>
inline void Interleave(const uint8_t* x, int64_t row, uint32_t* to) {
  typedef uint8_t Bytes __attribute__((vector_size(16), may_alias));
  typedef uint16_t Words __attribute__((vector_size(16), may_alias));
  Bytes r[4] = {};
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) __builtin_memcpy(&r[i], x + i * row, kLanes);
  const auto low = [](Bytes a, Bytes b) __attribute__((always_inline)) {
    return (Words)__builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  };
  const auto high = [](Bytes a, Bytes b) __attribute__((always_inline)) {
    return (Words)__builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  };
  const Words first[2] = {low(r[0], r[1]), high(r[0], r[1])}, last[2] = {low(r[2], r[3]), high(r[2], r[3])};
  FourQuads quads[4];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    quads[2 * i] = (FourQuads)__builtin_shufflevector(first[i], last[i], 0, 8, 1, 9, 2, 10, 3, 11) ^ kFlip;
    quads[2 * i + 1] = (FourQuads)__builtin_shufflevector(first[i], last[i], 4, 12, 5, 13, 6, 14, 7, 15) ^ kFlip;
  }
  __builtin_memcpy(to, quads, kLanes * 4);
}

// The quads of two vectors alternately, one or two at a time, of the lower or the upper halves of each 16 bytes.
template <int kAtOnce, int kUpper>
inline Quads Alternate(Quads a, Quads b) {
  constexpr int kOther = kBytes / 4, k0 = 2 * kUpper, k3 = k0 + 1 + kOther;
  constexpr int k1 = kAtOnce == 1 ? k0 + kOther : k0 + 1, k2 = kAtOnce == 1 ? k0 + 1 : k0 + kOther;
#if FERRULE_VECTOR_BYTES == 64
  return __builtin_shufflevector(a, b, k0, k1, k2, k3, k0 + 4, k1 + 4, k2 + 4, k3 + 4, k0 + 8, k1 + 8, k2 + 8, k3 + 8,
                                 k0 + 12, k1 + 12, k2 + 12, k3 + 12);
#else
  return __builtin_shufflevector(a, b, k0, k1, k2, k3, k0 + 4, k1 + 4, k2 + 4, k3 + 4);
#endif
}

template <int kLane>
inline void PutLane(const Quads (&columns)[4], uint32_t* to, int64_t to_row) {
  if constexpr (kLane < kBytes / 16) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      *reinterpret_cast<FourQuads*>(to + (4 * kLane + i) * to_row) =
          __builtin_shufflevector(columns[i], columns[i], 4 * kLane, 4 * kLane + 1, 4 * kLane + 2, 4 * kLane + 3);
    }
  }
}

// to[j][i] = from[i][j] of the quads of four rows, as many as a vector has: each 16 bytes are transposed as 4 x 4.
inline void PutTransposed(const Quads (&from)[4], uint32_t* to, int64_t to_row) {
  const Quads first[2] = {Alternate<1, 0>(from[0], from[1]), Alternate<1, 1>(from[0], from[1])};
  const Quads last[2] = {Alternate<1, 0>(from[2], from[3]), Alternate<1, 1>(from[2], from[3])};
  const Quads columns[4] = {Alternate<2, 0>(first[0], last[0]), Alternate<2, 1>(first[0], last[0]),
                            Alternate<2, 0>(first[1], last[1]), Alternate<2, 1>(first[1], last[1])};
  PutLane<0>(columns, to, to_row);
  PutLane<1>(columns, to, to_row);
  PutLane<2>(columns, to, to_row);
  PutLane<3>(columns, to, to_row);
}

// Packs panels of A, whose bytes are unsigned there, or of B, whose are signed; `kFlip` changes the highest bits where
// memory has the other ones: each byte is 128 more, or less. There may be more columns than one panel has: rows of
// memory are read from end to end, which lie pages apart.
template <int W, uint32_t kFlip>
void PackQuads(const void* from, int64_t x_w, int64_t x_k, int64_t count, int64_t k, uint32_t* panels) {
  typedef uint32_t Bytes __attribute__((vector_size(kBytes), may_alias, aligned(1)));
  const auto* x = static_cast<const uint8_t*>(from);
  const int64_t whole = k / 4, panel = (1 + (k + 3) / 4) * W;
  const auto quad_at = [=](int64_t w, int64_t p)
                           __attribute__((always_inline)) { return panels + w / W * panel + (1 + p) * W + w % W; };
  const auto take = [=](int64_t w, int64_t p) __attribute__((always_inline)) {  // zeros behind the end, on both sides
    uint8_t quad[4] = {};
    for (int64_t i = 0; i < 4 && 4 * p + i < k; ++i) {
      quad[i] = static_cast<uint8_t>(x[w * x_w + (4 * p + i) * x_k] ^ (kFlip & 0xff));
    }
    __builtin_memcpy(quad_at(w, p), quad, 4);
  };
  if (const int64_t rest = count % W; rest != 0) {
    __builtin_memset(panels + count / W * panel, 0, static_cast<size_t>(panel) * 4);
  }
  if (x_k == 1) {
    // Quads lie in memory as they are: a matrix to be transposed.
    constexpr int64_t kQuads = kBytes / 4;
    for (int64_t first = 0; first < count; first += W) {
      const int64_t width = count - first < W ? count - first : W;
      const int64_t tiled = width / 4 * 4, end = first + width;
      const uint8_t* rows_from = x + first * x_w;
      uint32_t* to = quad_at(first, 0);
      int64_t p = 0;
      for (; p + kQuads <= whole; p += kQuads, to += kQuads * W) {
        const uint8_t* at = rows_from + 4 * p;
        for (int64_t w = 0; w < tiled; w += 4, at += 4 * x_w) {
          Quads rows[4];
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) rows[i] = *reinterpret_cast<const Bytes*>(at + i * x_w) ^ kFlip;
          PutTransposed(rows, to + w, W);
        }
        for (int64_t w = first + tiled; w < end; ++w) {
          for (int64_t q = p; q < p + kQuads; ++q) take(w, q);
        }
      }
      for (; p < whole; ++p) {
        for (int64_t w = first; w < end; ++w) take(w, p);
      }
    }
  } else {
    constexpr int kStep = W % 16 == 0 ? 16 : W;
    for (int64_t p = 0; p < whole; ++p) {
      const uint8_t* row = x + 4 * p * x_k;
      int64_t w = 0;
      if (x_w == 1) {
        for (; w + kStep <= count; w += kStep) Interleave<kFlip, kStep>(row + w, x_k, quad_at(w, p));
      }
      for (; w < count; ++w) take(w, p);
    }
  }
  if (whole * 4 == k) return;
  for (int64_t w = 0; w < count; ++w) take(w, whole);
}

// Writes what each row or column of a packed panel adds up to.
template <int W, bool kLeft>
void AddUpQuads(int64_t depth, uint32_t* panel) {
  using U = VectorOf<uint32_t>::unaligned;
  constexpr int kLanes = kBytes / 4, kVectors = (W + kLanes - 1) / kLanes;
  const Quads ones = Quads{} + 0x01010101u;
  Quads sum[kVectors] = {};
  alignas(kBytes) uint32_t last[kVectors * kLanes] = {};  // nothing is read behind the panel
  __builtin_memcpy(last, panel + (depth - 1) * W, W * 4);
  for (int64_t p = 1; p < depth; ++p) {
    const uint32_t* row = p + 1 < depth ? panel + p * W : last;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const Quads lanes = *reinterpret_cast<const U*>(row + v * kLanes);
      sum[v] = kLeft ? AddQuads(sum[v], lanes, ones) : AddQuads(sum[v], ones, lanes);
    }
  }
  __builtin_memcpy(panel, sum, W * 4);
}

template <int MR, int NV>
constexpr GroupKernels AllQuads() {
  constexpr int kWidth = NV * kBytes / 4;
  GroupKernels all;
  constexpr uint32_t kFlip = 0x80808080;
  all.elements = 4;
  all.tiles.rows = MR, all.tiles.columns = kWidth;
  all.tiles.tile[kPackedRows][0] = &MultiplyQuads<MR, NV, true>;
  all.tiles.tile[kPackedRows][1] = &MultiplyQuads<MR, NV / 2, true>;
  all.tiles.tile[kFewStridedRows][0] = &MultiplyQuads<kFewRows, NV, false>;
  all.tiles.tile[kFewStridedRows][1] = &MultiplyQuads<kFewRows, NV / 2, false>;
  all.tiles.put_tile = &PutTile<uint32_t>;
  all.packs[kGroupS8] = {&PackQuads<MR, kFlip>, &PackQuads<kWidth, 0>};
  all.packs[kGroupU8] = {&PackQuads<MR, 0>, &PackQuads<kWidth, kFlip>};
  all.add_up[0] = &AddUpQuads<MR, true>, all.add_up[1] = &AddUpQuads<kWidth, false>;
  return all;
}

}  // namespace FERRULE_ISA
}  // namespace ferrule

// Panels of elements that are narrower in memory than what they are multiplied in, and tiles of pairs of 16-bit
// integers. Included after gemm_kernel.h, of which the same is true: several instruction sets, no standard library.
#include "gemm_tables.h"

namespace ferrule {
namespace FERRULE_ISA {

// bf16 is the upper half of an f32.
struct FromBf16 {
  using Stored = uint16_t;
  using To = float;
  static constexpr int kElements = 1;  // of one element of a panel
  static float Get(const uint16_t* x, int64_t) { return __builtin_bit_cast(float, uint32_t{*x} << 16); }
  static float Last(const uint16_t* x) { return Get(x, 0); }
  static void Row(const uint16_t* x, int64_t count, float* to) {
    for (int64_t i = 0; i < count; ++i) to[i] = Get(x + i, 1);
  }
};

// Integers that f32 holds.
template <class S>
struct FromInteger {
  using Stored = S;
  using To = float;
  static constexpr int kElements = 1;
  static float Get(const S* x, int64_t) { return static_cast<float>(*x); }
  static float Last(const S* x) { return Get(x, 0); }
  static void Row(const S* x, int64_t count, float* to) {
    for (int64_t i = 0; i < count; ++i) to[i] = Get(x + i, 1);
  }
};

// Two integers that are added up together, as 16 bits each.
template <class S>
struct FromPair {
  using Stored = S;
  using To = uint32_t;
  static constexpr int kElements = 2;
  static uint32_t Half(S x) { return static_cast<uint16_t>(x); }
  static uint32_t Get(const S* x, int64_t x_k) { return Half(x[0]) | Half(x[x_k]) << 16; }
  static uint32_t Last(const S* x) { return Half(*x); }
  static void Row(const S* x, int64_t count, uint32_t* to) {
    constexpr int kPairs = kBytes / 4;
    typedef S From __attribute__((vector_size(2 * kPairs * sizeof(S)), may_alias, aligned(alignof(S))));
    typedef int16_t Words __attribute__((vector_size(kBytes), may_alias, aligned(4)));
    int64_t i = 0;
    for (; i + kPairs <= count; i += kPairs) {
      *reinterpret_cast<Words*>(to + i) = __builtin_convertvector(*reinterpret_cast<const From*>(x + 2 * i), Words);
    }
    for (; i < count; ++i) to[i] = Get(x + 2 * i, 1);
  }
};

// Pack (gemm_kernel.h) of what F makes of F::kElements elements along k; a last one alone meets a zero.
template <class F, int W>
void PackFrom(const void* from, int64_t x_w, int64_t x_k, int64_t width, int64_t k, typename F::To* panel) {
  using To = typename F::To;
  constexpr int kElements = F::kElements;
  const auto* x = static_cast<const typename F::Stored*>(from);
  const int64_t whole = k / kElements, steps = (k + kElements - 1) / kElements;
  if (x_k == 1 && x_w != 1) {
    constexpr int64_t kChunk = 64;
    alignas(64) To rows[W * kChunk];
    for (int64_t p = 0; p < whole; p += kChunk) {
      const int64_t count = whole - p < kChunk ? whole - p : kChunk;
      for (int64_t w = 0; w < width; ++w) F::Row(x + w * x_w + p * kElements, count, rows + w * kChunk);
      Pack<To, W>(rows, kChunk, 1, width, count, panel + p * W);
    }
  } else {
    for (int64_t p = 0; p < whole; ++p) {
      const auto* row = x + p * kElements * x_k;
      To* to = panel + p * W;
      if (x_w == 1 && width == W) {
        for (int w = 0; w < W; ++w) to[w] = F::Get(row + w, x_k);
        continue;
      }
      for (int64_t w = 0; w < width; ++w) to[w] = F::Get(row + w * x_w, x_k);
      for (int64_t w = width; w < W; ++w) to[w] = To(0);
    }
  }
  if (whole == steps) return;
  const auto* row = x + whole * kElements * x_k;
  for (int64_t w = 0; w < W; ++w) panel[whole * W + w] = w < width ? F::Last(row + w * x_w) : To(0);
}

template <class F, int MR, int NV>
constexpr NarrowPacks<float> StoredPacks() {
  return {&PackFrom<F, MR>, &PackFrom<F, NV * kBytes / 4>};
}

template <int MR, int NV>
constexpr FloatPacks PacksOfStored() {
  return {{StoredPacks<FromBf16, MR, NV>(), StoredPacks<FromInteger<int8_t>, MR, NV>(),
           StoredPacks<FromInteger<uint8_t>, MR, NV>()}};
}

template <class S, int MR, int NV>
constexpr NarrowPacks<uint32_t> PairPacks() {
  return {&PackFrom<FromPair<S>, MR>, &PackFrom<FromPair<S>, NV * kBytes / 4>};
}

template <int MR, int NV>
constexpr GroupKernels Pairs() {
  constexpr auto sum = Term::kPair;
  MicroKernels<uint32_t> tiles = {};
  tiles.rows = MR, tiles.columns = NV * kBytes / 4;
  tiles.tile[kPackedRows][0] = &Multiply<uint32_t, MR, NV, true, 0, sum>;
  tiles.tile[kPackedRows][1] = &Multiply<uint32_t, MR, NV / 2, true, 0, sum>;
  tiles.tile[kStridedRows][0] = &Multiply<uint32_t, MR, NV, false, 0, sum>;
  tiles.tile[kStridedRows][1] = &Multiply<uint32_t, MR, NV / 2, false, 0, sum>;
  tiles.tile[kFewStridedRows][0] = &Multiply<uint32_t, kFewRows, NV, false, 0, sum>;
  tiles.tile[kFewStridedRows][1] = &Multiply<uint32_t, kFewRows, NV / 2, false, 0, sum>;
  tiles.put_tile = &PutTile<uint32_t>;
  return {2, tiles, {PairPacks<int8_t, MR, NV>(), PairPacks<uint8_t, MR, NV>(), PairPacks<int16_t, MR, NV>()}};
}

}  // namespace FERRULE_ISA
}  // namespace ferrule

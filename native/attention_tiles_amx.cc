// The loops of attention_tiles.cc for x86-64 with tile registers (AMX). Nothing of the standard library may be
// instantiated here (gemm_kernel.h says why).
#include "attention_tiles_tables.h"
#if defined(__x86_64__)
#include <immintrin.h>
#pragma GCC optimize("O3")
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of GCC 12's own headers
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512,amx-tile,amx-bf16,avx512bf16")
#define FERRULE_ISA amx
#define FERRULE_VECTOR_BYTES 64
#include "attention_kernel.h"
#include "transpose_lines.h"

namespace ferrule {
namespace amx {
namespace {

// Registers as gemm_tiles_amx.cc configures them: four tiles of sums, two of A, two of B.
void Multiply(const char* a, int64_t a_line, int64_t a_step, const char* b, int64_t steps, bool add, float* c,
              int64_t c_row) {
  const int64_t line = 4 * c_row;
  float* below = c + 16 * c_row;
  if (add) {
    _tile_loadd(0, c, line);
    _tile_loadd(1, c + 16, line);
    _tile_loadd(2, below, line);
    _tile_loadd(3, below + 16, line);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const char* lower = a + 16 * a_line;
  for (const char* end = b + steps * kTileStep; b != end; a += a_step, lower += a_step, b += kTileStep) {
    _tile_loadd(4, a, a_line);
    _tile_loadd(6, b, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + 1024, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, lower, a_line);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, line);
  _tile_stored(1, c + 16, line);
  _tile_stored(2, below, line);
  _tile_stored(3, below + 16, line);
}

// Two keys of sixteen rows as a line of a right side: the keys of a row are adjacent.
inline __m512i Pair(Aligned first, Aligned second) {
  alignas(64) static constexpr uint16_t kAlternate[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                          8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const auto both = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
  return _mm512_permutexvar_epi16(_mm512_load_si512(kAlternate), both);
}

// Where rows [row, row + 16) of a panel have their line of keys `key` and `key + 1`.
inline char* LineOf(char* to, int64_t panel, int64_t row, int64_t key) {
  return to + row / 32 * panel + key / 32 * kTileStep + row % 32 / 16 * 1024 + key % 32 / 2 * 64;
}

// What is behind the keys of the last step is zero.
inline void ClearBehind(char* to, int64_t panel, int64_t row, int64_t keys) {
  for (int64_t key = keys + keys % 2; key % 32 != 0; key += 2) {
    _mm512_store_si512(LineOf(to, panel, row, key), _mm512_setzero_si512());
  }
}

bool SoftmaxPairs(const float* s, int64_t ld, int64_t keys, int64_t rows, float scale, float* m, float* l,
                  float* factor, char* to, int64_t panel) {
  Ints other = {};
  const Aligned by = Splat(scale);
  for (int64_t r = 0; r < rows; r += kLanes) {
    Aligned before = Load(m + r), most0 = before, most1 = before, most2 = before, most3 = before;
    const float* from = s + r;
    int64_t k = 0;
    for (; k + 4 <= keys; k += 4, from += 4 * ld) {
      most0 = Larger(Load(from) * by, most0);
      most1 = Larger(Load(from + ld) * by, most1);
      most2 = Larger(Load(from + 2 * ld) * by, most2);
      most3 = Larger(Load(from + 3 * ld) * by, most3);
    }
    for (; k < keys; ++k, from += ld) most0 = Larger(Load(from) * by, most0);
    const Aligned most = Larger(Larger(most0, most1), Larger(most2, most3)), less = Subtrahend(most);
    Aligned sum0 = {}, sum1 = {};
    from = s + r;
    for (k = 0; k + 2 <= keys; k += 2, from += 2 * ld) {
      const Aligned e0 = ExpNegative(Load(from) * by - less), e1 = ExpNegative(Load(from + ld) * by - less);
      _mm512_store_si512(LineOf(to, panel, r, k), Pair(e0, e1));
      sum0 += e0;
      sum1 += e1;
    }
    if (k < keys) {
      const Aligned e = ExpNegative(Load(from) * by - less);
      _mm512_store_si512(LineOf(to, panel, r, k), Pair(e, Aligned{}));
      sum0 += e;
    }
    ClearBehind(to, panel, r, keys);
    const Aligned fading = ExpNegative(before - less);
    Store(m + r, most);
    Store(l + r, Load(l + r) * fading + (sum0 + sum1));
    Store(factor + r, fading);
    other |= fading != Splat(1.0f);
  }
  int32_t any = 0;
  for (int i = 0; i < kLanes; ++i) any |= other[i];
  return any != 0;
}

void Pairs(const float* s, int64_t ld, int64_t keys, int64_t rows, char* to, int64_t panel) {
  for (int64_t r = 0; r < rows; r += kLanes) {
    const float* from = s + r;
    int64_t k = 0;
    for (; k + 2 <= keys; k += 2, from += 2 * ld) {
      _mm512_store_si512(LineOf(to, panel, r, k), Pair(Load(from), Load(from + ld)));
    }
    if (k < keys) _mm512_store_si512(LineOf(to, panel, r, k), Pair(Load(from), Aligned{}));
    ClearBehind(to, panel, r, keys);
  }
}

void ToBrain(const float* s, int64_t ld, int64_t keys, int64_t rows, char* to) {
  for (int64_t r = 0; r < ld; r += 32) {
    const int64_t left = rows - r;
    const auto mask = static_cast<__mmask32>(left >= 32 ? ~uint32_t{0} : left <= 0 ? 0 : (uint32_t{1} << left) - 1);
    for (int64_t k = 0; k < keys; ++k) {
      const float* from = s + k * ld + r;
      const auto both = (__m512i)_mm512_cvtne2ps_pbh((__m512)Load(from + kLanes), (__m512)Load(from));
      _mm512_store_si512(to + (k * ld + r) * 2, _mm512_maskz_mov_epi16(mask, both));
    }
  }
}

void Rest(float* x, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const __m512 all = (__m512)Load(x + i);
    const __m512 upper = (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(all)), 16);
    const __mmask16 infinite = _mm512_fpclass_ps_mask(upper, 0x99);  // or NaN
    _mm512_storeu_ps(x + i, _mm512_maskz_sub_ps(static_cast<__mmask16>(~infinite), all, upper));
  }
}

void Fade(float* o, int64_t ld, int64_t lines, int64_t rows, const float* factor) {
  for (int64_t r = 0; r < rows; r += kLanes) {
    const Aligned by = Load(factor + r);
    for (int64_t i = 0; i < lines; ++i) Store(o + i * ld + r, Load(o + i * ld + r) * by);
  }
}

void Turned(const float* o, int64_t ld, int64_t lines, int64_t rows, float* to, int64_t to_row) {
  for (int64_t r = 0; r < rows; r += 16) {
    for (int64_t i = 0; i < lines; i += 16) {
      __m512i block[16];
      for (int64_t j = 0; j < 16; ++j) block[j] = _mm512_loadu_si512(o + (i + j) * ld + r);
      TransposeLines(block);
      for (int64_t j = 0; j < 16; ++j) _mm512_storeu_si512(to + (r + j) * to_row + i, block[j]);
    }
  }
}

}  // namespace
}  // namespace amx

constinit const AttentionTileKernels kAmxAttention = {&amx::Multiply, &amx::SoftmaxPairs, &amx::Pairs, &amx::ToBrain,
                                                      &amx::Rest,     &amx::Fade,         &amx::Turned};

}  // namespace ferrule
#endif

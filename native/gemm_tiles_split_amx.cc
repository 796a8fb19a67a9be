// Products of floats on tile registers (AMX): each is the sum of three bf16, and of the nine products of parts those
// six are added up that a float's last place can show. Nothing of the standard library may be instantiated here.
#include "gemm_tiles_split.h"
#if defined(__x86_64__)
#include <immintrin.h>
#pragma GCC optimize("O3")
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of GCC 12's own headers
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512,amx-tile,amx-bf16,avx512bf16")
#include "transpose_lines.h"

namespace ferrule {
namespace amx {
namespace {

constexpr int64_t kPart = kTileStep, kStep = kTileParts * kTileStep;

// The next part of sixteen floats, which are left with the rest.
inline __m256i Part(__m512& x) {
  const auto part = (__m256i)_mm512_cvtneps_pbh(x);
  x = _mm512_sub_ps(x, (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(part), 16));
  return part;
}

inline __m512i Both(__m256i low, __m256i high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); }

inline __mmask16 First(int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : count <= 0 ? 0 : (1 << count) - 1);
}

// Elements adjacent along k.
template <TileSide side>
void SplitAlong(const void* from, int64_t stride, int64_t count, int64_t k, char* panel) {
  for (int64_t first = 0; first < k; first += 32, panel += kStep) {
    const __mmask16 low = First(k - first), high = First(k - first - 16);
    for (int64_t t = 0; t < 2; ++t) {
      __m512i lines[kTileParts][16];
      for (int64_t i = 0; i < 16; ++i) {
        const int64_t row = 16 * t + i;
        const float* at = reinterpret_cast<const float*>(static_cast<const char*>(from) + row * stride) + first;
        __m512 x = _mm512_maskz_loadu_ps(row < count ? low : 0, at),
               y = _mm512_maskz_loadu_ps(row < count ? high : 0, at + 16);
        for (int64_t p = 0; p < kTileParts; ++p) lines[p][i] = Both(Part(x), Part(y));
      }
      for (int64_t p = 0; p < kTileParts; ++p) {
        if constexpr (side == kTileRight) TransposeLines(lines[p]);
        for (int64_t i = 0; i < 16; ++i) _mm512_store_si512(panel + p * kPart + t * 1024 + i * 64, lines[p][i]);
      }
    }
  }
}

// Elements adjacent across k: two along k come together.
template <TileSide side>
void SplitAcross(const void* from, int64_t stride, int64_t count, int64_t k, char* panel) {
  alignas(64) static constexpr uint16_t kAlternate[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                          8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i alternate = _mm512_load_si512(kAlternate);
  const char* at = static_cast<const char*>(from);
  for (int64_t first = 0; first < k; first += 32, panel += kStep, at += 32 * stride) {
    for (int64_t t = 0; t < 2; ++t) {
      const __mmask16 mask = First(count - 16 * t);
      __m512i lines[kTileParts][16];
      for (int64_t i = 0; i < 16; ++i) {
        const int64_t row = 2 * i;
        const auto load = [&](int64_t j) {
          return _mm512_maskz_loadu_ps(first + j < k ? mask : 0,
                                       reinterpret_cast<const float*>(at + j * stride) + 16 * t);
        };
        __m512 x = load(row), y = load(row + 1);
        for (int64_t p = 0; p < kTileParts; ++p)
          lines[p][i] = _mm512_permutexvar_epi16(alternate, Both(Part(x), Part(y)));
      }
      for (int64_t p = 0; p < kTileParts; ++p) {
        if constexpr (side == kTileLeft) TransposeLines(lines[p]);
        for (int64_t i = 0; i < 16; ++i) _mm512_store_si512(panel + p * kPart + t * 1024 + i * 64, lines[p][i]);
      }
    }
  }
}

// Registers as gemm_tiles_amx.cc configures them. The sums of a few steps are added to those before in vectors: one
// long run of additions would lose digits.
void MultiplySplit(const char* a, const char* b, int64_t steps, bool add, float* sums) {
  alignas(64) float fresh[kTileSums];
  float* to = add ? fresh : sums;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
// A tile register's number is part of the instruction, so that these are macros.
#define FERRULE_A(PART)                 \
  _tile_loadd(4, a + PART * kPart, 64); \
  _tile_loadd(5, a + PART * kPart + 1024, 64);
#define FERRULE_B(PART)                 \
  _tile_loadd(6, b + PART * kPart, 64); \
  _tile_loadd(7, b + PART * kPart + 1024, 64);
#define FERRULE_PRODUCTS   \
  _tile_dpbf16ps(0, 4, 6); \
  _tile_dpbf16ps(1, 4, 7); \
  _tile_dpbf16ps(2, 5, 6); \
  _tile_dpbf16ps(3, 5, 7);
  for (int64_t i = 0; i < steps; ++i, a += kStep, b += kStep) {
    FERRULE_A(0) FERRULE_B(2) FERRULE_PRODUCTS;
    FERRULE_B(1) FERRULE_PRODUCTS;
    FERRULE_A(1) FERRULE_PRODUCTS;
    FERRULE_B(0) FERRULE_PRODUCTS;
    FERRULE_A(2) FERRULE_PRODUCTS;
    FERRULE_A(0) FERRULE_PRODUCTS;
  }
#undef FERRULE_A
#undef FERRULE_B
#undef FERRULE_PRODUCTS
  _tile_stored(0, to, 64);
  _tile_stored(1, to + 256, 64);
  _tile_stored(2, to + 512, 64);
  _tile_stored(3, to + 768, 64);
  if (!add) return;
  for (int64_t i = 0; i < kTileSums; i += 16) {
    _mm512_store_ps(sums + i, _mm512_add_ps(_mm512_load_ps(sums + i), _mm512_load_ps(fresh + i)));
  }
}

void Range(const float* x, int64_t count, uint32_t* least, uint32_t* most) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff), one = _mm512_set1_epi32(1);
  __m512i low = _mm512_set1_epi32(-1), high = _mm512_setzero_si512();
  for (int64_t i = 0; i < count; i += 16) {
    const __m512i bits = _mm512_and_si512(_mm512_maskz_loadu_epi32(First(count - i), x + i), magnitude);
    high = _mm512_max_epu32(high, bits);
    low = _mm512_min_epu32(low, _mm512_sub_epi32(bits, one));  // a zero is the largest
  }
  const uint32_t smallest = _mm512_reduce_min_epu32(low), largest = _mm512_reduce_max_epu32(high);
  if (smallest != UINT32_MAX && smallest + 1 < *least) *least = smallest + 1;
  if (largest > *most) *most = largest;
}

}  // namespace
}  // namespace amx

constinit const SplitKernels kAmxSplit = {
    {{&amx::SplitAlong<kTileLeft>, &amx::SplitAcross<kTileLeft>},
     {&amx::SplitAlong<kTileRight>, &amx::SplitAcross<kTileRight>}},
    &amx::MultiplySplit,
    &amx::Range,
};

}  // namespace ferrule
#endif

// The loops of gemm_tiles.cc for x86-64 with tile registers (AMX). Nothing of the standard library may be instantiated
// here (gemm_kernel.h says why).
#include "gemm_tiles_tables.h"
#if defined(__x86_64__)
#include <immintrin.h>
#pragma GCC optimize("O3")
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of GCC 12's own headers
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512,amx-tile,amx-bf16,amx-int8")
#include "transpose_lines.h"

namespace ferrule {
namespace amx {
namespace {

using Vector = __m512i;

// Registers: four tiles of sums, two of A, two of B.
void Begin() {
  struct {
    uint8_t palette = 1, row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  } shapes;
  for (int i = 0; i < 8; ++i) shapes.bytes[i] = 64, shapes.rows[i] = 16;
  asm volatile("" : : "r"(&shapes) : "memory");  // GCC's intrinsic says that it reads the first eight bytes
  _tile_loadconfig(&shapes);
}

void End() { _tile_release(); }

// A tile register's number is part of the instruction, so that these are macros.
#define FERRULE_MULTIPLY(NAME, PRODUCT)                                                                              \
  void NAME(const char* a, int64_t a_line, int64_t a_step, const char* b, int64_t steps, bool add, uint32_t* sums) { \
    if (add) {                                                                                                       \
      _tile_loadd(0, sums, 64);                                                                                      \
      _tile_loadd(1, sums + 256, 64);                                                                                \
      _tile_loadd(2, sums + 512, 64);                                                                                \
      _tile_loadd(3, sums + 768, 64);                                                                                \
    } else {                                                                                                         \
      _tile_zero(0);                                                                                                 \
      _tile_zero(1);                                                                                                 \
      _tile_zero(2);                                                                                                 \
      _tile_zero(3);                                                                                                 \
    }                                                                                                                \
    const char* lower = a + 16 * a_line;                                                                             \
    for (const char* end = b + steps * kTileStep; b != end; a += a_step, lower += a_step, b += kTileStep) {          \
      _tile_loadd(4, a, a_line);                                                                                     \
      _tile_loadd(6, b, 64);                                                                                         \
      PRODUCT(0, 4, 6);                                                                                              \
      _tile_loadd(7, b + 1024, 64);                                                                                  \
      PRODUCT(1, 4, 7);                                                                                              \
      _tile_loadd(5, lower, a_line);                                                                                 \
      PRODUCT(2, 5, 6);                                                                                              \
      PRODUCT(3, 5, 7);                                                                                              \
    }                                                                                                                \
    _tile_stored(0, sums, 64);                                                                                       \
    _tile_stored(1, sums + 256, 64);                                                                                 \
    _tile_stored(2, sums + 512, 64);                                                                                 \
    _tile_stored(3, sums + 768, 64);                                                                                 \
  }
FERRULE_MULTIPLY(MultiplyBf16, _tile_dpbf16ps)
FERRULE_MULTIPLY(MultiplyS8S8, _tile_dpbssd)
FERRULE_MULTIPLY(MultiplyS8U8, _tile_dpbsud)
FERRULE_MULTIPLY(MultiplyU8S8, _tile_dpbusd)
FERRULE_MULTIPLY(MultiplyU8U8, _tile_dpbuud)
#undef FERRULE_MULTIPLY

void Fetch(const char* first, int64_t lines) {
  for (int64_t i = 0; i < lines; ++i) _mm_prefetch(first + i * 64, _MM_HINT_T1);
}

__mmask64 First(int64_t bytes) { return bytes >= 64 ? ~__mmask64{0} : bytes <= 0 ? 0 : (__mmask64{1} << bytes) - 1; }

Vector Load(const char* from, __mmask64 mask) {
  return mask == ~__mmask64{0} ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi8(mask, from);
}

// Elements adjacent along k: a line of a row is 64 bytes of it.
template <int bytes, TileSide side>
void PackAlong(const void* from, int64_t stride, int64_t count, int64_t k, char* panel) {
  const int64_t length = k * bytes, steps = (length + kTileBytes - 1) / kTileBytes;
  constexpr int64_t kTogether = 8;  // steps of a row that are read one after the other
  for (int64_t first = 0; first < steps; first += kTogether) {
    const int64_t last = first + kTogether < steps ? first + kTogether : steps;
    for (int64_t i = 0; i < kTilePanel; ++i) {
      const char* row = static_cast<const char*>(from) + i * stride;
      for (int64_t s = first; s < last; ++s) {
        const __mmask64 mask = i < count ? First(length - s * kTileBytes) : 0;
        const Vector line = mask ? Load(row + s * kTileBytes, mask) : _mm512_setzero_si512();
        _mm512_store_si512(panel + s * kTileStep + i * kTileBytes, line);
      }
    }
    if constexpr (side == kTileRight) {
      for (char* tile = panel + first * kTileStep; tile != panel + last * kTileStep; tile += kTileStep / 2) {
        Vector lines[16];
        for (int i = 0; i < 16; ++i) lines[i] = _mm512_load_si512(tile + i * kTileBytes);
        TransposeLines(lines);
        for (int i = 0; i < 16; ++i) _mm512_store_si512(tile + i * kTileBytes, lines[i]);
      }
    }
  }
}

// Elements adjacent across k: those of four bytes along k come together, of 32 rows or columns at once.
template <int bytes, TileSide side>
void PackAcross(const void* from, int64_t stride, int64_t count, int64_t k, char* panel) {
  alignas(64) static constexpr uint16_t kAlternate[2][32] = {
      {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
       8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
      {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
       24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
  const Vector lower = _mm512_load_si512(kAlternate[0]), upper = _mm512_load_si512(kAlternate[1]);
  const __mmask64 mask = First(count * bytes);
  const auto half = static_cast<__mmask32>(mask);
  const char* row = static_cast<const char*>(from);
  constexpr int64_t kElements = 4 / bytes;
  // 32 elements of one or of two bytes as words, none behind the end.
  auto two = [&](int64_t i) {
    if constexpr (bytes == 2) {
      return i < k ? Load(row + i * stride, mask) : _mm512_setzero_si512();
    } else {
      auto words = [&](int64_t j) {
        return j < k ? _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(half, row + j * stride)) : _mm512_setzero_si512();
      };
      return _mm512_or_si512(words(i), _mm512_slli_epi16(words(i + 1), 8));
    }
  };
  for (int64_t i = 0; i < k; panel += kTileStep) {
    Vector tiles[2][16];
    for (int line = 0; line < 16; ++line, i += kElements) {
      const Vector x = two(i), y = two(i + kElements / 2);
      tiles[0][line] = _mm512_permutex2var_epi16(x, lower, y);
      tiles[1][line] = _mm512_permutex2var_epi16(x, upper, y);
    }
    for (int t = 0; t < 2; ++t) {
      if constexpr (side == kTileLeft) TransposeLines(tiles[t]);
      for (int line = 0; line < 16; ++line) {
        _mm512_store_si512(panel + (t * 16 + line) * kTileBytes, tiles[t][line]);
      }
    }
  }
}

// Sixteen floats to the nearest bf16, ties to even; a NaN stays one. (The processor's own conversion makes zeros of
// what is too small for a normal float.)
inline Vector ToBf16(Vector x) {
  const Vector odd = _mm512_and_si512(_mm512_srli_epi32(x, 16), _mm512_set1_epi32(1));
  const Vector rounded = _mm512_add_epi32(_mm512_add_epi32(x, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 nan = _mm512_cmp_ps_mask(_mm512_castsi512_ps(x), _mm512_castsi512_ps(x), _CMP_UNORD_Q);
  return _mm512_srli_epi32(_mm512_mask_or_epi32(rounded, nan, x, _mm512_set1_epi32(0x400000)), 16);
}

void PutBf16(const uint32_t* sums, int64_t rows, int64_t columns, char* d, int64_t d_row) {
  alignas(64) static constexpr uint16_t kEven[32] = {0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                                                     32, 34, 36, 38, 40, 42, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62};
  const Vector even = _mm512_load_si512(kEven);
  const auto mask = static_cast<__mmask32>(columns >= 32 ? ~__mmask32{0} : (__mmask32{1} << columns) - 1);
  for (int64_t i = 0; i < rows; ++i) {
    const uint32_t* from = sums + i / 16 * 512 + i % 16 * 16;
    const Vector left = ToBf16(_mm512_load_si512(from)), right = ToBf16(_mm512_load_si512(from + 256));
    const Vector line = _mm512_permutex2var_epi16(left, even, right);
    char* to = d + i * d_row;
    columns >= 32 ? _mm512_storeu_si512(to, line) : _mm512_mask_storeu_epi16(to, mask, line);
  }
}

void PutWords(const uint32_t* sums, int64_t rows, int64_t columns, char* d, int64_t d_row) {
  const __mmask64 all = First(columns);
  const auto left = static_cast<__mmask16>(all), right = static_cast<__mmask16>(all >> 16);
  for (int64_t i = 0; i < rows; ++i) {
    const uint32_t* from = sums + i / 16 * 512 + i % 16 * 16;
    char* to = d + i * d_row;
    _mm512_mask_storeu_epi32(to, left, _mm512_load_si512(from));
    if (right) _mm512_mask_storeu_epi32(to + 64, right, _mm512_load_si512(from + 256));
  }
}

}  // namespace
}  // namespace amx

constinit const TileKernels kAmxTiles = {
    &amx::Begin,
    &amx::End,
    {&amx::MultiplyBf16, &amx::MultiplyS8S8, &amx::MultiplyS8U8, &amx::MultiplyU8S8, &amx::MultiplyU8U8},
    &amx::Fetch,
    {{{&amx::PackAlong<1, kTileLeft>, &amx::PackAcross<1, kTileLeft>},
      {&amx::PackAlong<1, kTileRight>, &amx::PackAcross<1, kTileRight>}},
     {{&amx::PackAlong<2, kTileLeft>, &amx::PackAcross<2, kTileLeft>},
      {&amx::PackAlong<2, kTileRight>, &amx::PackAcross<2, kTileRight>}}},
    {&amx::PutBf16, &amx::PutWords},
};

}  // namespace ferrule
#endif

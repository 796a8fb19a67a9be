// Sixteen lines of sixteen words of 32 bits, exchanged across the diagonal in vector registers, for files that are
// compiled for AVX-512 (gemm_kernel.h says what may be in those).
#pragma once

#include <immintrin.h>

namespace ferrule {
namespace amx {

// lines[i][j] = lines[j][i], of sixteen lines of sixteen words of 32 bits, in four rounds that each exchange the blocks
// off the diagonal: of 1, 2, 4 and 8 words.
inline void TransposeLines(__m512i* lines) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(lines[i], lines[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(lines[i], lines[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    lines[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    lines[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    lines[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    lines[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // Now quarter q of lines[4 g + c] is column 4 q + c of rows 4 g to 4 g + 3.
  for (int c = 0; c < 4; ++c) {
    const __m512i a = _mm512_shuffle_i32x4(lines[c], lines[4 + c], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(lines[8 + c], lines[12 + c], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(lines[c], lines[4 + c], 0xdd);
    const __m512i e = _mm512_shuffle_i32x4(lines[8 + c], lines[12 + c], 0xdd);
    t[c] = _mm512_shuffle_i32x4(a, b, 0x88);
    t[8 + c] = _mm512_shuffle_i32x4(a, b, 0xdd);
    t[4 + c] = _mm512_shuffle_i32x4(d, e, 0x88);
    t[12 + c] = _mm512_shuffle_i32x4(d, e, 0xdd);
  }
  for (int i = 0; i < 16; ++i) lines[i] = t[i];
}

}  // namespace amx
}  // namespace ferrule

// Keys of a range, sixteen at a time: an instruction closes the gaps.
#if defined(__x86_64__)
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
// GCC 12's own header is what is warned of: what its instructions leave alone is nothing in particular.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include <algorithm>

#include "key_ranges_tables.h"

namespace ferrule {
namespace {

void Measure(const uint32_t* keys, int64_t count, const uint32_t* borders, int64_t number, KeyExtent* extent) {
  __m512i least = _mm512_set1_epi32(-1), greatest = _mm512_setzero_si512();
  for (int64_t i = 0; i < count; i += 16) {
    const __mmask16 valid = static_cast<__mmask16>(count - i >= 16 ? 0xffff : (1 << (count - i)) - 1);
    const __m512i key = _mm512_maskz_loadu_epi32(valid, keys + i);
    least = _mm512_mask_min_epu32(least, valid, least, key);
    greatest = _mm512_max_epu32(greatest, key);
    for (int64_t b = 0; b < number; ++b) {
      const __m512i border = _mm512_set1_epi32(static_cast<int>(borders[b]));
      extent->below[b] += __builtin_popcount(_mm512_mask_cmplt_epu32_mask(valid, key, border));
    }
  }
  extent->least = std::min(extent->least, _mm512_reduce_min_epu32(least));
  extent->greatest = std::max(extent->greatest, _mm512_reduce_max_epu32(greatest));
}

// Which of sixteen keys are in the range.
inline __mmask16 Chosen(__m512i key, __mmask16 valid, __m512i first, __m512i last) {
  return _mm512_mask_cmple_epu32_mask(_mm512_mask_cmpge_epu32_mask(valid, key, first), key, last);
}

int64_t PickPairs(const uint32_t* keys, const uint32_t* others, int64_t count, uint32_t first, uint32_t last,
                  uint64_t* to, int64_t room) {
  const __m512i low = _mm512_set1_epi32(static_cast<int>(first)), high = _mm512_set1_epi32(static_cast<int>(last));
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i front = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i back = _mm512_add_epi32(front, _mm512_set1_epi32(8));
  int64_t at = 0;
  for (int64_t i = 0; i < count; i += 16) {
    const __mmask16 valid = static_cast<__mmask16>(count - i >= 16 ? 0xffff : (1 << (count - i)) - 1);
    __m512i key = _mm512_maskz_loadu_epi32(valid, keys + i);
    __m512i other = others != nullptr ? _mm512_maskz_loadu_epi32(valid, others + i)
                                      : _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(i)));
    const __mmask16 chosen = Chosen(key, valid, low, high);
    key = _mm512_maskz_compress_epi32(chosen, key);
    other = _mm512_maskz_compress_epi32(chosen, other);
    const __m512i items = _mm512_permutex2var_epi32(other, front, key);
    const __m512i more = _mm512_permutex2var_epi32(other, back, key);
    const int found = __builtin_popcount(chosen);
    if (at + 16 <= room) {
      _mm512_storeu_si512(to + at, items);
      _mm512_storeu_si512(to + at + 8, more);
    } else {
      const unsigned written = (1u << found) - 1;
      _mm512_mask_storeu_epi64(to + at, static_cast<__mmask8>(written), items);
      _mm512_mask_storeu_epi64(to + at + 8, static_cast<__mmask8>(written >> 8), more);
    }
    at += found;
  }
  return at;
}

int64_t Pick(const uint32_t* keys, int64_t count, uint32_t first, uint32_t last, uint32_t* to, int64_t room) {
  const __m512i low = _mm512_set1_epi32(static_cast<int>(first)), high = _mm512_set1_epi32(static_cast<int>(last));
  int64_t at = 0;
  for (int64_t i = 0; i < count; i += 16) {
    const __mmask16 valid = static_cast<__mmask16>(count - i >= 16 ? 0xffff : (1 << (count - i)) - 1);
    const __m512i key = _mm512_maskz_loadu_epi32(valid, keys + i);
    const __mmask16 chosen = Chosen(key, valid, low, high);
    const int found = __builtin_popcount(chosen);
    const __mmask16 written = static_cast<__mmask16>(at + 16 <= room ? 0xffff : (1u << found) - 1);
    _mm512_mask_storeu_epi32(to + at, written, _mm512_maskz_compress_epi32(chosen, key));
    at += found;
  }
  return at;
}

int64_t FirstPair(const uint64_t* items, int64_t from, int64_t end) {
  constexpr int64_t kLanes = 8;
  int64_t i = from;
  for (; i + kLanes <= end; i += kLanes) {
    const __m512i these = _mm512_loadu_si512(items + i), before = _mm512_loadu_si512(items + i - 1);
    const unsigned less = _mm512_mask_cmplt_epu32_mask(0xaaaa, these, before);
    if (less != 0) return i + __builtin_ctz(less) / 2;
  }
  return i;
}

int64_t FirstKey(const uint32_t* items, int64_t from, int64_t end) {
  constexpr int64_t kLanes = 16;
  int64_t i = from;
  for (; i + kLanes <= end; i += kLanes) {
    const unsigned less = _mm512_cmplt_epu32_mask(_mm512_loadu_si512(items + i), _mm512_loadu_si512(items + i - 1));
    if (less != 0) return i + __builtin_ctz(less);
  }
  return i;
}

}  // namespace

constinit const KeyRangeLoops kAvx512KeyRanges{Measure, PickPairs, Pick, FirstPair, FirstKey};

}  // namespace ferrule
#endif

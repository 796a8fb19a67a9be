// Keys of a range, eight at a time: a table of the 256 masks says how to close the gaps.
#if defined(__x86_64__)
#pragma GCC target("arch=x86-64-v3")
#include <immintrin.h>

#include <algorithm>

#include "key_ranges_tables.h"

namespace ferrule {
namespace {

constexpr int64_t kLanes = 8;

struct Choices {
  uint64_t of[256];
};

// For each mask of eight lanes those that are set, in order, a byte each; then lane 0.
constexpr Choices EachMask() {
  Choices table{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    int at = 0;
    for (unsigned lane = 0; lane < 8; ++lane) {
      if ((mask >> lane & 1) != 0) table.of[mask] |= uint64_t{lane} << 8 * at++;
    }
  }
  return table;
}
constexpr Choices kChosen = EachMask();

inline __m256i Load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline void Store(void* to, __m256i value) { _mm256_storeu_si256(static_cast<__m256i*>(to), value); }
inline __m256i All(uint32_t value) { return _mm256_set1_epi32(static_cast<int>(value)); }

// Comparisons are of signed numbers only.
inline __m256i Signed(__m256i value) { return _mm256_xor_si256(value, All(0x80000000u)); }
inline unsigned Mask(__m256i lanes) { return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(lanes))); }

void Measure(const uint32_t* keys, int64_t count, const uint32_t* borders, int64_t number, KeyExtent* extent) {
  __m256i least = All(UINT32_MAX), greatest = _mm256_setzero_si256();
  __m256i limits[kMostRanges - 1] = {};
  for (int64_t b = 0; b < number; ++b) limits[b] = Signed(All(borders[b]));
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const __m256i key = Load(keys + i);
    least = _mm256_min_epu32(least, key);
    greatest = _mm256_max_epu32(greatest, key);
    for (int64_t b = 0; b < number; ++b) {
      extent->below[b] += __builtin_popcount(Mask(_mm256_cmpgt_epi32(limits[b], Signed(key))));
    }
  }
  uint32_t lanes[2 * kLanes];
  Store(lanes, least);
  Store(lanes + kLanes, greatest);
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    extent->least = std::min(extent->least, lanes[lane]);
    extent->greatest = std::max(extent->greatest, lanes[kLanes + lane]);
  }
  for (; i < count; ++i) {
    extent->least = std::min(extent->least, keys[i]);
    extent->greatest = std::max(extent->greatest, keys[i]);
    for (int64_t b = 0; b < number; ++b) extent->below[b] += keys[i] < borders[b];
  }
}

// Calls vector(i, at, key, lanes) for each eight keys from i on, while eight more fit from `at` on, where `lanes` are
// first those of keys in the range; then one(i, at) for each of the rest in it. Returns how many were in the range.
template <class Vector, class One>
inline int64_t EachInRange(const uint32_t* keys, int64_t count, uint32_t first, uint32_t last, int64_t room,
                           Vector vector, One one) {
  const __m256i low = All(first), width = All(last - first);
  int64_t at = 0, i = 0;
  for (; i + kLanes <= count && at + kLanes <= room; i += kLanes) {
    const __m256i key = Load(keys + i), above = _mm256_sub_epi32(key, low);
    const unsigned mask = Mask(_mm256_cmpeq_epi32(_mm256_min_epu32(above, width), above));
    const __m256i lanes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(kChosen.of[mask])));
    vector(i, at, key, lanes);
    at += __builtin_popcount(mask);
  }
  for (; i < count; ++i) {
    if (keys[i] - first <= last - first) one(i, at++);
  }
  return at;
}

int64_t PickPairs(const uint32_t* keys, const uint32_t* others, int64_t count, uint32_t first, uint32_t last,
                  uint64_t* to, int64_t room) {
  return EachInRange(
      keys, count, first, last, room,
      [=](int64_t i, int64_t at, __m256i key, __m256i lanes) {
        // Where positions go with keys, those of the lanes are the lanes.
        const __m256i other = others != nullptr ? _mm256_permutevar8x32_epi32(Load(others + i), lanes)
                                                : _mm256_add_epi32(lanes, All(static_cast<uint32_t>(i)));
        key = _mm256_permutevar8x32_epi32(key, lanes);
        const __m256i even = _mm256_unpacklo_epi32(other, key), odd = _mm256_unpackhi_epi32(other, key);
        Store(to + at, _mm256_permute2x128_si256(even, odd, 0x20));
        Store(to + at + kLanes / 2, _mm256_permute2x128_si256(even, odd, 0x31));
      },
      [=](int64_t i, int64_t at) {
        if (at < room) to[at] = uint64_t{keys[i]} << 32 | (others != nullptr ? others[i] : static_cast<uint32_t>(i));
      });
}

int64_t Pick(const uint32_t* keys, int64_t count, uint32_t first, uint32_t last, uint32_t* to, int64_t room) {
  return EachInRange(
      keys, count, first, last, room,
      [=](int64_t, int64_t at, __m256i key, __m256i lanes) { Store(to + at, _mm256_permutevar8x32_epi32(key, lanes)); },
      [=](int64_t i, int64_t at) {
        if (at < room) to[at] = keys[i];
      });
}

int64_t FirstPair(const uint64_t* items, int64_t from, int64_t end) {
  int64_t i = from;
  for (; i + kLanes / 2 <= end; i += kLanes / 2) {
    const __m256i these = Signed(Load(items + i)), before = Signed(Load(items + i - 1));
    const unsigned less = Mask(_mm256_cmpgt_epi32(before, these)) & 0xaa;
    if (less != 0) return i + __builtin_ctz(less) / 2;
  }
  return i;
}

int64_t FirstKey(const uint32_t* items, int64_t from, int64_t end) {
  int64_t i = from;
  for (; i + kLanes <= end; i += kLanes) {
    const unsigned less = Mask(_mm256_cmpgt_epi32(Signed(Load(items + i - 1)), Signed(Load(items + i))));
    if (less != 0) return i + __builtin_ctz(less);
  }
  return i;
}

}  // namespace

constinit const KeyRangeLoops kAvx2KeyRanges{Measure, PickPairs, Pick, FirstPair, FirstKey};

}  // namespace ferrule
#endif

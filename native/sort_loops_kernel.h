// The innermost loops of sorts, written once and compiled for several instruction sets as gemm_kernel.h is:
// nothing of the standard library may be instantiated here.
#include "sort_loops_tables.h"

namespace ferrule {
namespace FERRULE_ISA {

template <class U>
void ExchangeKeys(U* keys, const Exchange* exchanges, int64_t count) {
  for (int64_t e = 0; e < count; ++e) {
    U* __restrict low = keys + exchanges[e].low * kNetworkColumns;
    U* __restrict high = keys + exchanges[e].high * kNetworkColumns;
    for (int64_t c = 0; c < kNetworkColumns; ++c) {
      const U a = low[c], b = high[c];
      low[c] = b < a ? b : a;
      high[c] = b < a ? a : b;
    }
  }
}

template <class U>
void ExchangeWith(U* keys, U* with, const Exchange* exchanges, int64_t count) {
  for (int64_t e = 0; e < count; ++e) {
    U* __restrict low = keys + exchanges[e].low * kNetworkColumns;
    U* __restrict high = keys + exchanges[e].high * kNetworkColumns;
    U* __restrict low_with = with + exchanges[e].low * kNetworkColumns;
    U* __restrict high_with = with + exchanges[e].high * kNetworkColumns;
    for (int64_t c = 0; c < kNetworkColumns; ++c) {
      const U a = low[c], b = high[c], x = low_with[c], y = high_with[c];
      const bool turn = (b < a) | ((b == a) & (y < x));
      low[c] = turn ? b : a;
      high[c] = turn ? a : b;
      low_with[c] = turn ? y : x;
      high_with[c] = turn ? x : y;
    }
  }
}

template <class U>
bool OfFloats(const U* __restrict bits, int64_t count, U infinity, bool total, U flip, U* __restrict keys) {
  constexpr U kSign = U(1) << (8 * sizeof(U) - 1);
  if (total) {
    for (int64_t i = 0; i < count; ++i) {
      const U x = bits[i], negative = U(0) - (x >> (8 * sizeof(U) - 1));
      keys[i] = x ^ (negative | kSign) ^ flip;
    }
    return false;
  }
  U untold = 0;
  for (int64_t i = 0; i < count; ++i) {
    const U x = bits[i], magnitude = x & ~kSign, negative = U(0) - (x >> (8 * sizeof(U) - 1));
    const U nan = magnitude > infinity ? ~U(0) : U(0), minus_zero = x == kSign ? ~U(0) : U(0);
    keys[i] = (((x & ~minus_zero) ^ ((negative & ~minus_zero) | kSign)) | nan) ^ flip;
    untold |= nan | minus_zero;
  }
  return untold != 0;
}

template <class U>
void ToFloats(const U* __restrict keys, int64_t count, U flip, U* __restrict bits) {
  constexpr U kSign = U(1) << (8 * sizeof(U) - 1);
  for (int64_t i = 0; i < count; ++i) {
    const U key = keys[i] ^ flip, negative = (key >> (8 * sizeof(U) - 1)) - U(1);
    bits[i] = key ^ (negative | kSign);
  }
}

template <class U>
constexpr SortLoops<U> LoopsOf() {
  return {ExchangeKeys<U>, ExchangeWith<U>, OfFloats<U>, ToFloats<U>};
}

constexpr AllSortLoops LoopsOfSorts() { return {LoopsOf<uint32_t>(), LoopsOf<uint64_t>()}; }

}  // namespace FERRULE_ISA
}  // namespace ferrule

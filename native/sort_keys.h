// Orders of typed keys as unsigned integers, so that sorting needs only integer comparisons or digits.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "element.h"

namespace ferrule {

// How floating-point keys compare. kTotal: -NaN < -Inf < … < -0 < +0 < … < Inf < NaN. kCanonical: the same, with both
// zeros equal and all NaNs equal and last. kPlain: as the `<` of the machine where it is an order; zeros are equal, and
// a NaN, which is unordered with everything, is treated as in kCanonical.
enum class FloatOrder { kTotal, kCanonical, kPlain };

// The bits of a float as an unsigned integer of the same width in the total order.
template <class U>
U FloatBitsKey(U bits, U infinity, FloatOrder order) {
  constexpr U kSign = U(1) << (8 * sizeof(U) - 1);
  if (order != FloatOrder::kTotal) {
    U magnitude = bits & ~kSign;
    if (magnitude == 0) bits = 0;
    if (magnitude > infinity) return ~U(0);
  }
  const U negative = static_cast<U>(U(0) - (bits >> (8 * sizeof(U) - 1)));  // all ones, or zero
  return static_cast<U>(bits ^ (negative | kSign));
}

// Maps `count` elements that are `stride` apart to keys of type U (of the element's width, or wider). With `descending`
// the order is turned around, NaNs included.
template <class U>
void SortKeys(Element type, const void* source, int64_t stride, int64_t count, FloatOrder order, bool descending,
              U* to) {
  const U flip = descending ? ~U(0) : U(0);
  auto each = [&]<class Stored>(Stored*, auto key) {
    const Stored* p = static_cast<const Stored*>(source);
    if (stride == 1) {
      for (int64_t i = 0; i < count; ++i) to[i] = static_cast<U>(key(p[i])) ^ flip;
    } else {
      for (int64_t i = 0; i < count; ++i) to[i] = static_cast<U>(key(p[i * stride])) ^ flip;
    }
  };
  auto unsigned_of = [&]<class Stored>(Stored* s) { each(s, [](Stored x) { return x; }); };
  auto signed_of = [&]<class Stored>(Stored* s) {
    each(s, [](Stored x) { return static_cast<Stored>(x ^ (Stored(1) << (8 * sizeof(Stored) - 1))); });
  };
  switch (type) {
    case Element::kPred:
    case Element::kU8:
      return unsigned_of(static_cast<uint8_t*>(nullptr));
    case Element::kU16:
      return unsigned_of(static_cast<uint16_t*>(nullptr));
    case Element::kU32:
      return unsigned_of(static_cast<uint32_t*>(nullptr));
    case Element::kU64:
      return unsigned_of(static_cast<uint64_t*>(nullptr));
    case Element::kS8:
      return signed_of(static_cast<uint8_t*>(nullptr));
    case Element::kS16:
      return signed_of(static_cast<uint16_t*>(nullptr));
    case Element::kS32:
      return signed_of(static_cast<uint32_t*>(nullptr));
    case Element::kS64:
      return signed_of(static_cast<uint64_t*>(nullptr));
    case Element::kU4:
      return each(static_cast<uint8_t*>(nullptr), [](uint8_t x) { return x & 15; });
    case Element::kU2:
      return each(static_cast<uint8_t*>(nullptr), [](uint8_t x) { return x & 3; });
    case Element::kS4:
      return each(static_cast<uint8_t*>(nullptr), [](uint8_t x) { return (x & 15) ^ 8; });
    case Element::kS2:
      return each(static_cast<uint8_t*>(nullptr), [](uint8_t x) { return (x & 3) ^ 2; });
    case Element::kF16:
      return each(static_cast<uint16_t*>(nullptr),
                  [&](uint16_t x) { return FloatBitsKey<uint16_t>(x, 0x7c00, order); });
    case Element::kBF16:
      return each(static_cast<uint16_t*>(nullptr),
                  [&](uint16_t x) { return FloatBitsKey<uint16_t>(x, 0x7f80, order); });
    case Element::kF32:
      return each(static_cast<uint32_t*>(nullptr),
                  [&](uint32_t x) { return FloatBitsKey<uint32_t>(x, 0x7f800000u, order); });
    case Element::kF64:
      return each(static_cast<uint64_t*>(nullptr),
                  [&](uint64_t x) { return FloatBitsKey<uint64_t>(x, 0x7ff0000000000000ull, order); });
    default: {  // floats of at most 8 bits: by their values, NaNs of either sign at the ends
      const float* values = TinyFloatValues(type);
      // these formats have one NaN, and no sign in it: it goes last
      const bool one_nan = type == Element::kF8E8M0FNU || type == Element::kF8E4M3FNUZ ||
                           type == Element::kF8E4M3B11FNUZ || type == Element::kF8E5M2FNUZ;
      return each(static_cast<uint8_t*>(nullptr), [&](uint8_t x) {
        uint32_t bits;
        std::memcpy(&bits, &values[x], 4);
        bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
        if (nan) bits = (x & 0x80) && order == FloatOrder::kTotal && !one_nan ? 0xffc00000u : 0x7fc00000u;
        uint32_t key = FloatBitsKey<uint32_t>(bits, 0x7f800000u, order);
        return key;
      });
    }
  }
}

// Whether a key says what the element was, but for the sign of a zero and the bits of a NaN where these compare equal.
inline bool KeyTellsValue(Element type) {
  switch (type) {
    case Element::kPred:
    case Element::kU8:
    case Element::kU16:
    case Element::kU32:
    case Element::kU64:
    case Element::kS8:
    case Element::kS16:
    case Element::kS32:
    case Element::kS64:
    case Element::kF16:
    case Element::kBF16:
    case Element::kF32:
    case Element::kF64:
      return true;
    default:
      return false;
  }
}

// The elements that keys were made of, for types whose keys tell: what SortKeys does, backwards. `key(i)` is key i.
template <class U, class Key>
void ValuesOfKeys(Element type, int64_t count, bool descending, int64_t stride, void* to, Key key) {
  const U flip = descending ? ~U(0) : U(0);
  const bool is_float =
      type == Element::kF16 || type == Element::kBF16 || type == Element::kF32 || type == Element::kF64;
  const bool is_unsigned = type == Element::kPred || type == Element::kU8 || type == Element::kU16 ||
                           type == Element::kU32 || type == Element::kU64;
  auto each = [&]<class Stored>(Stored) {
    constexpr Stored kSign = Stored(Stored(1) << (8 * sizeof(Stored) - 1));
    Stored* values = static_cast<Stored*>(to);
    auto write = [&](auto value) {
      if (stride == 1) {
        for (int64_t i = 0; i < count; ++i) values[i] = value(static_cast<Stored>(key(i) ^ flip));
      } else {
        for (int64_t i = 0; i < count; ++i) values[i * stride] = value(static_cast<Stored>(key(i) ^ flip));
      }
    };
    if (is_unsigned) return write([](Stored k) { return k; });
    if (!is_float) return write([](Stored k) { return static_cast<Stored>(k ^ kSign); });
    write([](Stored k) { return static_cast<Stored>(k & kSign ? k & ~kSign : ~k); });
  };
  switch (SizeOf(type)) {
    case 1:
      return each(uint8_t());
    case 2:
      return each(uint16_t());
    case 4:
      return each(uint32_t());
    default:
      return each(uint64_t());
  }
}

// Bytes of the key type for an element: 4 or 8 (narrow types use 4; their upper digits are constant and cost nothing).
inline int64_t SortKeyBytes(Element type) { return SizeOf(type) == 8 ? 8 : 4; }

}  // namespace ferrule

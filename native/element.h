// Element types of buffers: their numbers in PJRT, sizes, and conversions between stored and computed values.
#pragma once

#include <complex>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

namespace ferrule {

// The PJRT_Buffer_Type values, as a C++ enumeration for the library calls.
enum class Element : int {
  kPred = 1,
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kU16 = 7,
  kU32 = 8,
  kU64 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kBF16 = 13,
  kC64 = 14,
  kC128 = 15,
  kF8E5M2 = 16,
  kF8E4M3FN = 17,
  kF8E4M3B11FNUZ = 18,
  kF8E5M2FNUZ = 19,
  kF8E4M3FNUZ = 20,
  kS4 = 21,
  kU4 = 22,
  kS2 = 24,
  kU2 = 25,
  kF8E4M3 = 26,
  kF8E3M4 = 27,
  kF8E8M0FNU = 28,
  kF4E2M1FN = 29,
  kF6E2M3FN = 32,
  kF6E3M2FN = 33,
};

constexpr int kElements = 34;  // one more than the last value

constexpr bool IsComplex(Element e) { return e == Element::kC64 || e == Element::kC128; }
constexpr bool IsFloat(Element e) {
  int n = static_cast<int>(e);
  return (n >= 10 && n <= 13) || (n >= 16 && n <= 20) || (n >= 26 && n <= 29) || n == 32 || n == 33;
}
constexpr bool IsInteger(Element e) {
  int n = static_cast<int>(e);
  return (n >= 2 && n <= 9) || (n >= 21 && n <= 25 && n != 23);
}
constexpr bool IsSigned(Element e) {
  int n = static_cast<int>(e);
  return (n >= 2 && n <= 5) || n == 21 || n == 24;
}

// Bytes of one element in memory (sub-byte types take one each); 0 for types that the library calls do not know.
constexpr int64_t SizeOf(Element e) {
  switch (e) {
    case Element::kS16:
    case Element::kU16:
    case Element::kF16:
    case Element::kBF16:
      return 2;
    case Element::kS32:
    case Element::kU32:
    case Element::kF32:
      return 4;
    case Element::kS64:
    case Element::kU64:
    case Element::kF64:
    case Element::kC64:
      return 8;
    case Element::kC128:
      return 16;
    default:
      return (IsFloat(e) || IsInteger(e) || e == Element::kPred) ? 1 : 0;
  }
}

struct Sixteen {
  char bytes[16];
};

// Calls f with a null pointer of an unsigned type of the given size: moving elements needs only their size.
template <class F>
void BySize(int64_t size, F&& f) {
  switch (size) {
    case 1:
      return f(static_cast<uint8_t*>(nullptr));
    case 2:
      return f(static_cast<uint16_t*>(nullptr));
    case 4:
      return f(static_cast<uint32_t*>(nullptr));
    case 8:
      return f(static_cast<uint64_t*>(nullptr));
    default:
      return f(static_cast<Sixteen*>(nullptr));
  }
}

// Floating-point types of at most 8 bits.
constexpr bool IsTinyFloat(Element e) { return IsFloat(e) && SizeOf(e) == 1; }

// StableHLO's name of the type, for messages.
std::string NameOf(Element e);

// The 256 values of a floating-point type of at most 8 bits.
const float* TinyFloatValues(Element e);
// The nearest value of such a type, ties to even; what is too large becomes the type's infinity, NaN or largest value.
uint8_t ToTinyFloat(Element e, float x);

inline float BF16ToFloat(uint16_t bits) {
  uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float x;
  std::memcpy(&x, &wide, 4);
  return x;
}
inline uint16_t FloatToBF16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40);  // keep NaN a NaN
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline float F16ToFloat(uint16_t bits) {
  _Float16 h;
  std::memcpy(&h, &bits, 2);
  return static_cast<float>(h);
}
inline uint16_t FloatToF16(float x) {
  _Float16 h = static_cast<_Float16>(x);
  uint16_t bits;
  std::memcpy(&bits, &h, 2);
  return bits;
}

// Reads `count` elements that are `stride` elements apart and writes them densely as To (float, double, uint32_t,
// uint64_t, or std::complex of float or double). The From type may be anything that To holds by value (integers wrap).
template <class To>
void LoadElements(Element from, const void* source, int64_t stride, int64_t count, To* to);
// The reverse: `count` dense values into elements that are `stride` apart. Integers wrap, booleans become value != 0.
template <class From>
void StoreElements(Element to, void* target, int64_t stride, int64_t count, const From* from);

// Whether elements in memory already are what loops that add up in T need.
template <class T>
bool IsDirect(Element e) {
  if constexpr (std::is_same_v<T, float>) return e == Element::kF32;
  if constexpr (std::is_same_v<T, double>) return e == Element::kF64;
  if constexpr (std::is_same_v<T, uint32_t>) return e == Element::kU32 || e == Element::kS32;
  if constexpr (std::is_same_v<T, uint64_t>) return e == Element::kU64 || e == Element::kS64;
  if constexpr (std::is_same_v<T, std::complex<float>>) return e == Element::kC64;
  if constexpr (std::is_same_v<T, std::complex<double>>) return e == Element::kC128;
  return false;
}

}  // namespace ferrule

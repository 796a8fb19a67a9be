// The functions that compiled code may call, and the arithmetic helpers that LLVM expects of every platform.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>
#include <unordered_map>

#include "linker.h"
#include "trial.h"

namespace ferrule {
namespace {

using Int128 = __int128;
using UInt128 = unsigned __int128;

template <class To, class From>
To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// `value` rounded to nearest even in a format of 16 bits with `exponent_bits` and `mantissa_bits`.
uint16_t Narrow(double value, int exponent_bits, int mantissa_bits) {
  uint64_t bits = BitCast<uint64_t>(value);
  auto sign = static_cast<uint16_t>(bits >> 63 << 15);
  int bias = (1 << (exponent_bits - 1)) - 1;
  auto infinity = static_cast<uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits);
  uint64_t fraction = bits & ((uint64_t{1} << 52) - 1);
  int exponent = static_cast<int>(bits >> 52 & 0x7ff);
  if (exponent == 0x7ff) {
    if (fraction == 0) return sign | infinity;
    return sign | infinity | static_cast<uint16_t>(fraction >> (52 - mantissa_bits)) | 1u << (mantissa_bits - 1);
  }
  exponent += bias - 1023;
  if (exponent >= (1 << exponent_bits) - 1) return sign | infinity;
  int drop = 52 - mantissa_bits;
  if (exponent <= 0) {  // subnormal in the narrow format: the leading one becomes explicit
    if (exponent < -mantissa_bits) return sign;
    fraction |= uint64_t{1} << 52;
    drop += 1 - exponent;
    exponent = 0;
  }
  uint64_t kept = fraction >> drop, rest = fraction & ((uint64_t{1} << drop) - 1), half = uint64_t{1} << (drop - 1);
  uint64_t result = (static_cast<uint64_t>(exponent) << mantissa_bits) + kept;
  if (rest > half || (rest == half && (kept & 1))) ++result;  // a carry into the exponent is right as it is
  return sign | static_cast<uint16_t>(result);
}

float WidenHalf(uint16_t half) {
  uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  uint32_t exponent = half >> 10 & 31, fraction = half & 1023;
  if (exponent == 31) return BitCast<float>(sign | 0x7f800000u | fraction << 13 | (fraction ? 0x400000u : 0u));
  if (exponent == 0) return std::copysign(std::ldexp(static_cast<float>(fraction), -24), BitCast<float>(sign));
  return BitCast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

// 16-bit floats travel in the low bits of a vector register, where a float's bits travel too, so these signatures need
// no compiler support for the narrow types.
float InRegister(uint16_t bits) { return BitCast<float>(uint32_t{bits}); }
uint16_t FromRegister(float value) { return static_cast<uint16_t>(BitCast<uint32_t>(value)); }

float TruncSfHf(float x) { return InRegister(Narrow(x, 5, 10)); }
float TruncDfHf(double x) { return InRegister(Narrow(x, 5, 10)); }
float ExtendHfSf(float x) { return WidenHalf(FromRegister(x)); }
double ExtendHfDf(float x) { return WidenHalf(FromRegister(x)); }
float TruncSfBf(float x) { return InRegister(Narrow(x, 8, 7)); }
float TruncDfBf(double x) { return InRegister(Narrow(x, 8, 7)); }
float ExtendBfSf(float x) { return BitCast<float>(BitCast<uint32_t>(x) << 16); }
// The older names pass the bits as integers.
float H2f(uint16_t x) { return WidenHalf(x); }
uint16_t F2h(float x) { return Narrow(x, 5, 10); }

template <class T>
T PowerByInteger(T base, int exponent) {
  T result = 1;
  for (unsigned n = exponent < 0 ? -static_cast<unsigned>(exponent) : static_cast<unsigned>(exponent); n; n >>= 1) {
    if (n & 1) result *= base;
    base *= base;
  }
  return exponent < 0 ? 1 / result : result;
}

Int128 DivTi(Int128 a, Int128 b) { return a / b; }
Int128 ModTi(Int128 a, Int128 b) { return a % b; }
UInt128 UDivTi(UInt128 a, UInt128 b) { return a / b; }
UInt128 UModTi(UInt128 a, UInt128 b) { return a % b; }
Int128 MulTi(Int128 a, Int128 b) { return a * b; }
double FloatTiDf(Int128 x) { return static_cast<double>(x); }
float FloatTiSf(Int128 x) { return static_cast<float>(x); }
double FloatUnTiDf(UInt128 x) { return static_cast<double>(x); }
float FloatUnTiSf(UInt128 x) { return static_cast<float>(x); }
Int128 FixDfTi(double x) { return static_cast<Int128>(x); }
Int128 FixSfTi(float x) { return static_cast<Int128>(x); }
UInt128 FixUnsDfTi(double x) { return static_cast<UInt128>(x); }
UInt128 FixUnsSfTi(float x) { return static_cast<UInt128>(x); }

template <class R, class... A>
void* Address(R (*function)(A...)) {
  return reinterpret_cast<void*>(function);
}

using D1 = double (*)(double);
using F1 = float (*)(float);
using D2 = double (*)(double, double);
using F2 = float (*)(float, float);
using D3 = double (*)(double, double, double);
using F3 = float (*)(float, float, float);

const std::unordered_map<std::string_view, void*>& Table() {
#define UNARY(name) {#name, Address(static_cast<D1>(::name))}, {#name "f", Address(static_cast<F1>(::name##f))}
#define BINARY(name) \
  {#name, Address(static_cast<D2>(::name))}, { #name "f", Address(static_cast<F2>(::name##f)) }
  static const auto* table = new std::unordered_map<std::string_view, void*>{
      // Loops of unknown length.
      {"ferrule_more", Address(Trial::More)},
      // Memory.
      {"memcpy", Address(static_cast<void* (*)(void*, const void*, size_t)>(::memcpy))},
      {"memmove", Address(static_cast<void* (*)(void*, const void*, size_t)>(::memmove))},
      {"memset", Address(static_cast<void* (*)(void*, int, size_t)>(::memset))},
      {"memcmp", Address(static_cast<int (*)(const void*, const void*, size_t)>(::memcmp))},
      {"bcmp", Address(static_cast<int (*)(const void*, const void*, size_t)>(::memcmp))},
      // Mathematics.
      UNARY(exp),
      UNARY(exp2),
      UNARY(exp10),
      UNARY(expm1),
      UNARY(log),
      UNARY(log2),
      UNARY(log10),
      UNARY(log1p),
      UNARY(sin),
      UNARY(cos),
      UNARY(tan),
      UNARY(asin),
      UNARY(acos),
      UNARY(atan),
      UNARY(sinh),
      UNARY(cosh),
      UNARY(tanh),
      UNARY(asinh),
      UNARY(acosh),
      UNARY(atanh),
      UNARY(sqrt),
      UNARY(cbrt),
      UNARY(erf),
      UNARY(erfc),
      UNARY(lgamma),
      UNARY(tgamma),
      UNARY(floor),
      UNARY(ceil),
      UNARY(trunc),
      UNARY(rint),
      UNARY(nearbyint),
      UNARY(round),
      UNARY(roundeven),
      UNARY(fabs),
      UNARY(j0),
      UNARY(j1),
      UNARY(y0),
      UNARY(y1),
      UNARY(logb),
      BINARY(pow),
      BINARY(fmod),
      BINARY(remainder),
      BINARY(atan2),
      BINARY(hypot),
      BINARY(fmin),
      BINARY(fmax),
      BINARY(fdim),
      BINARY(copysign),
      BINARY(nextafter),
      {"fma", Address(static_cast<D3>(::fma))},
      {"fmaf", Address(static_cast<F3>(::fmaf))},
      {"ldexp", Address(static_cast<double (*)(double, int)>(::ldexp))},
      {"ldexpf", Address(static_cast<float (*)(float, int)>(::ldexpf))},
      {"scalbn", Address(static_cast<double (*)(double, int)>(::scalbn))},
      {"scalbnf", Address(static_cast<float (*)(float, int)>(::scalbnf))},
      {"frexp", Address(static_cast<double (*)(double, int*)>(::frexp))},
      {"frexpf", Address(static_cast<float (*)(float, int*)>(::frexpf))},
      {"modf", Address(static_cast<double (*)(double, double*)>(::modf))},
      {"modff", Address(static_cast<float (*)(float, float*)>(::modff))},
      {"ilogb", Address(static_cast<int (*)(double)>(::ilogb))},
      {"ilogbf", Address(static_cast<int (*)(float)>(::ilogbf))},
      {"lrint", Address(static_cast<long (*)(double)>(::lrint))},
      {"lrintf", Address(static_cast<long (*)(float)>(::lrintf))},
      {"sincos", Address(static_cast<void (*)(double, double*, double*)>(::sincos))},
      {"sincosf", Address(static_cast<void (*)(float, float*, float*)>(::sincosf))},
      // What LLVM's code generator calls by itself.
      {"__truncsfhf2", Address(TruncSfHf)},
      {"__truncdfhf2", Address(TruncDfHf)},
      {"__extendhfsf2", Address(ExtendHfSf)},
      {"__extendhfdf2", Address(ExtendHfDf)},
      {"__truncsfbf2", Address(TruncSfBf)},
      {"__truncdfbf2", Address(TruncDfBf)},
      {"__extendbfsf2", Address(ExtendBfSf)},
      {"__gnu_h2f_ieee", Address(H2f)},
      {"__gnu_f2h_ieee", Address(F2h)},
      {"__powidf2", Address(PowerByInteger<double>)},
      {"__powisf2", Address(PowerByInteger<float>)},
      {"__divti3", Address(DivTi)},
      {"__modti3", Address(ModTi)},
      {"__udivti3", Address(UDivTi)},
      {"__umodti3", Address(UModTi)},
      {"__multi3", Address(MulTi)},
      {"__floattidf", Address(FloatTiDf)},
      {"__floattisf", Address(FloatTiSf)},
      {"__floatuntidf", Address(FloatUnTiDf)},
      {"__floatuntisf", Address(FloatUnTiSf)},
      {"__fixdfti", Address(FixDfTi)},
      {"__fixsfti", Address(FixSfTi)},
      {"__fixunsdfti", Address(FixUnsDfTi)},
      {"__fixunssfti", Address(FixUnsSfTi)},
  };
#undef UNARY
#undef BINARY
  return *table;
}

}  // namespace

void* FindExternal(std::string_view name) {
  auto found = Table().find(name);
  return found == Table().end() ? nullptr : found->second;
}

}  // namespace ferrule

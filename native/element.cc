#include "element.h"

#include <array>
#include <cmath>
#include <complex>
#include <limits>
#include <mutex>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ferrule {

std::string NameOf(Element e) {
  static const char* const names[] = {
      "invalid",       "i1",         "i8",         "i16", "i32",  "i64",          "ui8",          "ui16",   "ui32",
      "ui64",          "f16",        "f32",        "f64", "bf16", "complex<f32>", "complex<f64>", "f8E5M2", "f8E4M3FN",
      "f8E4M3B11FNUZ", "f8E5M2FNUZ", "f8E4M3FNUZ", "i4",  "ui4",  "token",        "i2",           "ui2",    "f8E4M3",
      "f8E3M4",        "f8E8M0FNU",  "f4E2M1FN",   "s1",  "u1",   "f6E2M3FN",     "f6E3M2FN"};
  int n = static_cast<int>(e);
  return n >= 0 && n < kElements ? names[n] : "type " + std::to_string(n);
}

namespace {

// How a small floating-point type spends its bits, and what it does with its extreme codes.
struct TinyFormat {
  int exponent, mantissa, bias;
  enum { kIeee, kFinite, kUnsignedZero, kNoSpecials, kPowers } specials;
};

TinyFormat FormatOf(Element e) {
  switch (e) {
    case Element::kF8E5M2:
      return {5, 2, 15, TinyFormat::kIeee};
    case Element::kF8E4M3:
      return {4, 3, 7, TinyFormat::kIeee};
    case Element::kF8E3M4:
      return {3, 4, 3, TinyFormat::kIeee};
    case Element::kF8E4M3FN:
      return {4, 3, 7, TinyFormat::kFinite};
    case Element::kF8E4M3B11FNUZ:
      return {4, 3, 11, TinyFormat::kUnsignedZero};
    case Element::kF8E5M2FNUZ:
      return {5, 2, 16, TinyFormat::kUnsignedZero};
    case Element::kF8E4M3FNUZ:
      return {4, 3, 8, TinyFormat::kUnsignedZero};
    case Element::kF8E8M0FNU:
      return {8, 0, 127, TinyFormat::kPowers};
    case Element::kF6E2M3FN:
      return {2, 3, 1, TinyFormat::kNoSpecials};
    case Element::kF6E3M2FN:
      return {3, 2, 3, TinyFormat::kNoSpecials};
    default:
      return {2, 1, 1, TinyFormat::kNoSpecials};  // f4E2M1FN
  }
}

float Decode(const TinyFormat& f, int code) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  if (f.specials == TinyFormat::kPowers) return code == 255 ? nan : std::ldexp(1.0f, code - f.bias);
  int width = f.exponent + f.mantissa;
  code &= (2 << width) - 1;
  int magnitude = code & ((1 << width) - 1);
  int sign = code >> width;
  int exponent = magnitude >> f.mantissa, fraction = magnitude & ((1 << f.mantissa) - 1);
  if (f.specials == TinyFormat::kIeee && exponent == (1 << f.exponent) - 1) {
    if (fraction) return nan;
    return sign ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity();
  }
  if (f.specials == TinyFormat::kFinite && magnitude == (1 << width) - 1) return nan;
  if (f.specials == TinyFormat::kUnsignedZero && sign && magnitude == 0) return nan;
  float x = exponent ? std::ldexp(static_cast<float>(fraction + (1 << f.mantissa)), exponent - f.bias - f.mantissa)
                     : std::ldexp(static_cast<float>(fraction), 1 - f.bias - f.mantissa);
  return sign ? -x : x;
}

}  // namespace

const float* TinyFloatValues(Element e) {
  static std::array<std::array<float, 256>, kElements> tables;
  static std::array<std::once_flag, kElements> filled;
  int n = static_cast<int>(e);
  std::call_once(filled[n], [&] {
    TinyFormat format = FormatOf(e);
    for (int code = 0; code < 256; ++code) tables[n][code] = Decode(format, code);
  });
  return tables[n].data();
}

uint8_t ToTinyFloat(Element e, float x) {
  TinyFormat f = FormatOf(e);
  const float* values = TinyFloatValues(e);
  int width = f.exponent + f.mantissa;
  if (f.specials == TinyFormat::kPowers) {
    if (!(x > 0) || std::isinf(x)) return 255;
    int best = 0;
    while (best < 254 && std::fabs(values[best + 1] - x) <= std::fabs(values[best] - x)) ++best;
    return static_cast<uint8_t>(best);
  }
  int sign = std::signbit(x) ? 1 << width : 0;
  int infinity = f.specials == TinyFormat::kIeee ? ((1 << f.exponent) - 1) << f.mantissa : 0;
  int nan = f.specials == TinyFormat::kIeee           ? infinity + (1 << (f.mantissa - 1))
            : f.specials == TinyFormat::kFinite       ? (1 << width) - 1
            : f.specials == TinyFormat::kUnsignedZero ? 1 << width
                                                      : 0;
  if (std::isnan(x)) return static_cast<uint8_t>(f.specials == TinyFormat::kUnsignedZero ? nan : nan | sign);
  int largest = f.specials == TinyFormat::kIeee     ? infinity - 1
                : f.specials == TinyFormat::kFinite ? (1 << width) - 2
                                                    : (1 << width) - 1;
  float a = std::fabs(x);
  // Codes of non-negative values are in the order of the values: find the last one that is not above |x|.
  int low = 0, high = largest;
  while (low < high) {
    int middle = (low + high + 1) / 2;
    if (values[middle] <= a) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  int code = low;
  if (a > values[low]) {
    double gap = low < largest ? static_cast<double>(values[low + 1]) - values[low]
                               : static_cast<double>(values[low]) - values[low - 1];
    double above = static_cast<double>(a) - values[low];
    if (above > gap / 2 || (above == gap / 2 && (low & 1))) code = low + 1;
  }
  if (code > largest) {  // rounds past the largest finite value
    if (f.specials == TinyFormat::kIeee) {
      code = infinity;
    } else if (f.specials == TinyFormat::kNoSpecials) {
      code = largest;
    } else {
      return static_cast<uint8_t>(f.specials == TinyFormat::kUnsignedZero ? nan : nan | sign);
    }
  }
  if (f.specials == TinyFormat::kUnsignedZero && code == 0) return 0;
  return static_cast<uint8_t>(code | sign);
}

namespace {

template <class T>
struct IsStdComplex : std::false_type {};
template <class T>
struct IsStdComplex<std::complex<T>> : std::true_type {};

template <class Stored, class To, class Convert>
void Load(const void* source, int64_t stride, int64_t count, To* to, Convert convert) {
  const Stored* p = static_cast<const Stored*>(source);
  if (stride == 1) {
    for (int64_t i = 0; i < count; ++i) to[i] = convert(p[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = convert(p[i * stride]);
  }
}

template <class Stored, class From, class Convert>
void Store(void* target, int64_t stride, int64_t count, const From* from, Convert convert) {
  Stored* p = static_cast<Stored*>(target);
  if (stride == 1) {
    for (int64_t i = 0; i < count; ++i) p[i] = convert(from[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) p[i * stride] = convert(from[i]);
  }
}

template <class T>
auto RealPart(T x) {
  if constexpr (IsStdComplex<T>::value) {
    return x.real();
  } else {
    return x;
  }
}

// The value as an integer that wraps; floats are converted through int64 (library calls never store a float that way
// but for complete coverage of the types it has to mean something).
template <class T>
auto Whole(T x) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<uint64_t>(static_cast<int64_t>(x));
  } else if constexpr (IsStdComplex<T>::value) {
    return static_cast<uint64_t>(static_cast<int64_t>(x.real()));
  } else {
    return x;
  }
}

// Half precision eight numbers at a time, where the CPU can: without F16C each conversion is a function call.
#if defined(__x86_64__)
bool HasHalfInstructions() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  return has;
}
__attribute__((target("avx2,f16c"))) void LoadHalf(const uint16_t* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
  for (; i < count; ++i) to[i] = F16ToFloat(from[i]);
}
__attribute__((target("avx2,f16c"))) void StoreHalf(uint16_t* to, int64_t count, const float* from) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  }
  for (; i < count; ++i) to[i] = FloatToF16(from[i]);
}
bool HasAvx2() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}
// bf16 likewise: the compiler keeps the branch of NaNs and takes one number at a time.
__attribute__((target("avx2"))) void LoadBrain(const uint16_t* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16)));
  }
  for (; i < count; ++i) to[i] = BF16ToFloat(from[i]);
}
// FloatToBF16, as it rounds and keeps NaNs.
__attribute__((target("avx2"))) inline __m256i BrainOf(const float* from) {
  const __m256 x = _mm256_loadu_ps(from);
  const __m256i bits = _mm256_castps_si256(x), upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i nan = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  return _mm256_blendv_epi8(rounded, nan, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
__attribute__((target("avx2"))) void StoreBrain(uint16_t* to, int64_t count, const float* from) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m256i both = _mm256_packus_epi32(BrainOf(from + i), BrainOf(from + i + 8));  // their halves alternate
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm256_permute4x64_epi64(both, 0xd8));
  }
  for (; i < count; ++i) to[i] = FloatToBF16(from[i]);
}
// Sums as the low halves and low bytes of which they are results; GCC 12 takes them one by one.
__attribute__((target("avx2"))) inline __m256i LowWords(const uint32_t* from, __m256i mask) {
  const auto* x = reinterpret_cast<const __m256i*>(from);
  return _mm256_packus_epi32(_mm256_and_si256(_mm256_loadu_si256(x), mask),
                             _mm256_and_si256(_mm256_loadu_si256(x + 1), mask));
}
__attribute__((target("avx2"))) void StoreWords(uint16_t* to, int64_t count, const uint32_t* from) {
  const __m256i mask = _mm256_set1_epi32(0xffff);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm256_permute4x64_epi64(LowWords(from + i, mask), 0xd8));
  }
  for (; i < count; ++i) to[i] = static_cast<uint16_t>(from[i]);
}
__attribute__((target("avx2"))) void StoreBytes(uint8_t* to, int64_t count, const uint32_t* from) {
  const __m256i mask = _mm256_set1_epi32(0xff), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const __m256i bytes = _mm256_packus_epi16(LowWords(from + i, mask), LowWords(from + i + 16, mask));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm256_permutevar8x32_epi32(bytes, order));
  }
  for (; i < count; ++i) to[i] = static_cast<uint8_t>(from[i]);
}
#else
constexpr bool HasHalfInstructions() { return false; }  // the compiler's own conversions are instructions
inline void LoadHalf(const uint16_t*, int64_t, float*) {}
inline void StoreHalf(uint16_t*, int64_t, const float*) {}
constexpr bool HasAvx2() { return false; }
inline void LoadBrain(const uint16_t*, int64_t, float*) {}
inline void StoreBrain(uint16_t*, int64_t, const float*) {}
inline void StoreWords(uint16_t*, int64_t, const uint32_t*) {}
inline void StoreBytes(uint8_t*, int64_t, const uint32_t*) {}
#endif

// Sign-extends the low bits of a byte: what the high bits of a stored i4 or i2 are is not specified.
inline int Narrow(uint8_t byte, int bits) { return static_cast<int8_t>(byte << (8 - bits)) >> (8 - bits); }

}  // namespace

template <class To>
void LoadElements(Element from, const void* source, int64_t stride, int64_t count, To* to) {
  auto direct = [&]<class Stored>(Stored*) {
    Load<Stored>(source, stride, count, to, [](Stored x) {
      if constexpr (std::is_integral_v<To> && std::is_floating_point_v<Stored>) {
        return static_cast<To>(static_cast<int64_t>(x));
      } else {
        return static_cast<To>(x);
      }
    });
  };
  auto complex = [&]<class Stored>(Stored*) {
    Load<Stored>(source, stride, count, to, [](Stored x) {
      if constexpr (IsStdComplex<To>::value) {
        return To(x);
      } else {
        return static_cast<To>(x.real());
      }
    });
  };
  auto real = [](float x) {
    if constexpr (std::is_integral_v<To>) {
      return static_cast<To>(static_cast<int64_t>(x));
    } else {
      return static_cast<To>(x);
    }
  };
  if constexpr (std::is_same_v<To, float>) {
    if (from == Element::kF16 && stride == 1 && HasHalfInstructions()) {
      return LoadHalf(static_cast<const uint16_t*>(source), count, to);
    }
    if (from == Element::kBF16 && stride == 1 && HasAvx2()) {
      return LoadBrain(static_cast<const uint16_t*>(source), count, to);
    }
  }
  switch (from) {
    case Element::kPred:
      return Load<uint8_t>(source, stride, count, to, [](uint8_t x) { return static_cast<To>(x != 0 ? 1 : 0); });
    case Element::kS8:
      return direct(static_cast<int8_t*>(nullptr));
    case Element::kS16:
      return direct(static_cast<int16_t*>(nullptr));
    case Element::kS32:
      return direct(static_cast<int32_t*>(nullptr));
    case Element::kS64:
      return direct(static_cast<int64_t*>(nullptr));
    case Element::kU8:
      return direct(static_cast<uint8_t*>(nullptr));
    case Element::kU16:
      return direct(static_cast<uint16_t*>(nullptr));
    case Element::kU32:
      return direct(static_cast<uint32_t*>(nullptr));
    case Element::kU64:
      return direct(static_cast<uint64_t*>(nullptr));
    case Element::kF32:
      return direct(static_cast<float*>(nullptr));
    case Element::kF64:
      return direct(static_cast<double*>(nullptr));
    case Element::kC64:
      return complex(static_cast<std::complex<float>*>(nullptr));
    case Element::kC128:
      return complex(static_cast<std::complex<double>*>(nullptr));
    case Element::kF16:
      return Load<uint16_t>(source, stride, count, to, [&](uint16_t x) { return real(F16ToFloat(x)); });
    case Element::kBF16:
      return Load<uint16_t>(source, stride, count, to, [&](uint16_t x) { return real(BF16ToFloat(x)); });
    case Element::kS4:
      return Load<uint8_t>(source, stride, count, to, [](uint8_t x) { return static_cast<To>(Narrow(x, 4)); });
    case Element::kS2:
      return Load<uint8_t>(source, stride, count, to, [](uint8_t x) { return static_cast<To>(Narrow(x, 2)); });
    case Element::kU4:
      return Load<uint8_t>(source, stride, count, to, [](uint8_t x) { return static_cast<To>(x & 15); });
    case Element::kU2:
      return Load<uint8_t>(source, stride, count, to, [](uint8_t x) { return static_cast<To>(x & 3); });
    default: {
      const float* values = TinyFloatValues(from);
      return Load<uint8_t>(source, stride, count, to, [&](uint8_t x) { return real(values[x]); });
    }
  }
}

template <class From>
void StoreElements(Element to, void* target, int64_t stride, int64_t count, const From* from) {
  auto whole = [&]<class Stored>(Stored*) {
    Store<Stored>(target, stride, count, from, [](From x) { return static_cast<Stored>(Whole(x)); });
  };
  auto real = [&]<class Stored>(Stored*) {
    Store<Stored>(target, stride, count, from, [](From x) { return static_cast<Stored>(RealPart(x)); });
  };
  auto complex = [&]<class Stored>(std::complex<Stored>*) {
    Store<std::complex<Stored>>(target, stride, count, from, [](From x) {
      if constexpr (IsStdComplex<From>::value) {
        return std::complex<Stored>(static_cast<Stored>(x.real()), static_cast<Stored>(x.imag()));
      } else {
        return std::complex<Stored>(static_cast<Stored>(x));
      }
    });
  };
  if constexpr (std::is_same_v<From, float>) {
    if (to == Element::kF16 && stride == 1 && HasHalfInstructions()) {
      return StoreHalf(static_cast<uint16_t*>(target), count, from);
    }
    if (to == Element::kBF16 && stride == 1 && HasAvx2()) {
      return StoreBrain(static_cast<uint16_t*>(target), count, from);
    }
  }
  if constexpr (std::is_same_v<From, uint32_t>) {
    if ((to == Element::kS16 || to == Element::kU16) && stride == 1 && HasAvx2()) {
      return StoreWords(static_cast<uint16_t*>(target), count, from);
    }
    if ((to == Element::kS8 || to == Element::kU8) && stride == 1 && HasAvx2()) {
      return StoreBytes(static_cast<uint8_t*>(target), count, from);
    }
  }
  switch (to) {
    case Element::kPred:
      return Store<uint8_t>(target, stride, count, from, [](From x) { return static_cast<uint8_t>(x != From(0)); });
    case Element::kS8:
    case Element::kU8:
      return whole(static_cast<uint8_t*>(nullptr));
    case Element::kS16:
    case Element::kU16:
      return whole(static_cast<uint16_t*>(nullptr));
    case Element::kS32:
    case Element::kU32:
      return whole(static_cast<uint32_t*>(nullptr));
    case Element::kS64:
    case Element::kU64:
      return whole(static_cast<uint64_t*>(nullptr));
    case Element::kS4:
    case Element::kU4:
      return Store<uint8_t>(target, stride, count, from, [](From x) { return static_cast<uint8_t>(Whole(x) & 15); });
    case Element::kS2:
    case Element::kU2:
      return Store<uint8_t>(target, stride, count, from, [](From x) { return static_cast<uint8_t>(Whole(x) & 3); });
    case Element::kF32:
      return real(static_cast<float*>(nullptr));
    case Element::kF64:
      return real(static_cast<double*>(nullptr));
    case Element::kC64:
      return complex(static_cast<std::complex<float>*>(nullptr));
    case Element::kC128:
      return complex(static_cast<std::complex<double>*>(nullptr));
    case Element::kF16:
      return Store<uint16_t>(target, stride, count, from,
                             [](From x) { return FloatToF16(static_cast<float>(RealPart(x))); });
    case Element::kBF16:
      return Store<uint16_t>(target, stride, count, from,
                             [](From x) { return FloatToBF16(static_cast<float>(RealPart(x))); });
    default:
      return Store<uint8_t>(target, stride, count, from,
                            [&](From x) { return ToTinyFloat(to, static_cast<float>(RealPart(x))); });
  }
}

#define FERRULE_CONVERSIONS(T)                                               \
  template void LoadElements<T>(Element, const void*, int64_t, int64_t, T*); \
  template void StoreElements<T>(Element, void*, int64_t, int64_t, const T*)
FERRULE_CONVERSIONS(float);
FERRULE_CONVERSIONS(double);
FERRULE_CONVERSIONS(uint32_t);
FERRULE_CONVERSIONS(uint64_t);
FERRULE_CONVERSIONS(std::complex<float>);
FERRULE_CONVERSIONS(std::complex<double>);
#undef FERRULE_CONVERSIONS

}  // namespace ferrule

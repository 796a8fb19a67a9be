#include "collective_reduce.h"

#pragma GCC optimize("O3")

#include <cmath>
#include <complex>
#include <cstring>
#include <type_traits>

namespace ferrule {
namespace {

// Integers wrap, also where C++ would promote them to a type in which overflow is undefined.
struct Add {
  template <class T>
  static T Apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    return a + b;
  }
};
struct Multiply {
  template <class T>
  static T Apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    return a * b;
  }
};
// NaN wins, and -0 is less than +0.
struct Minimum {
  template <class T>
  static T Apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(a) || std::isnan(b)) return a + b;
      if (a == b) return std::signbit(a) ? a : b;
    }
    return b < a ? b : a;
  }
};
struct Maximum {
  template <class T>
  static T Apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(a) || std::isnan(b)) return a + b;
      if (a == b) return std::signbit(a) ? b : a;
    }
    return a < b ? b : a;
  }
};
struct And {
  template <class T>
  static T Apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  static T Apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  static T Apply(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

// Several sources at a time: memory brings them side by side, where one after the other each waits anew.
template <class T, class Op>
void FoldPlain(const char* const* sources, int64_t members, int64_t count, char* to) {
  T* __restrict out = reinterpret_cast<T*>(to);
  const auto from = [&](int64_t m) { return reinterpret_cast<const T*>(sources[m]); };
  std::memcpy(out, sources[0], count * sizeof(T));
  int64_t m = 1;
  for (; m + 4 <= members; m += 4) {
    const T *a = from(m), *b = from(m + 1), *c = from(m + 2), *d = from(m + 3);
    for (int64_t i = 0; i < count; ++i) {
      const T first = Op::template Apply<T>(out[i], a[i]), second = Op::template Apply<T>(first, b[i]);
      out[i] = Op::template Apply<T>(Op::template Apply<T>(second, c[i]), d[i]);
    }
  }
  for (; m < members; ++m) {
    const T* a = from(m);
    for (int64_t i = 0; i < count; ++i) out[i] = Op::template Apply<T>(out[i], a[i]);
  }
}

template <Element kType, class Op>
void FoldNarrow(const char* const* sources, int64_t members, int64_t count, char* to) {
  float sum[kFoldElements], next[kFoldElements];
  LoadElements(kType, sources[0], 1, count, sum);
  for (int64_t m = 1; m < members; ++m) {
    LoadElements(kType, sources[m], 1, count, next);
    for (int64_t i = 0; i < count; ++i) sum[i] = Op::template Apply<float>(sum[i], next[i]);
  }
  StoreElements(kType, to, 1, count, sum);
}

template <class Op>
Fold IntegerFold(Element type) {
  switch (type) {
    case Element::kS8:
      return &FoldPlain<int8_t, Op>;
    case Element::kS16:
      return &FoldPlain<int16_t, Op>;
    case Element::kS32:
      return &FoldPlain<int32_t, Op>;
    case Element::kS64:
      return &FoldPlain<int64_t, Op>;
    case Element::kU8:
      return &FoldPlain<uint8_t, Op>;
    case Element::kU16:
      return &FoldPlain<uint16_t, Op>;
    case Element::kU32:
      return &FoldPlain<uint32_t, Op>;
    case Element::kU64:
      return &FoldPlain<uint64_t, Op>;
    default:
      return nullptr;
  }
}

template <class Op>
Fold FloatFold(Element type) {
  switch (type) {
    case Element::kF16:
      return &FoldNarrow<Element::kF16, Op>;
    case Element::kBF16:
      return &FoldNarrow<Element::kBF16, Op>;
    case Element::kF32:
      return &FoldPlain<float, Op>;
    case Element::kF64:
      return &FoldPlain<double, Op>;
    default:
      return nullptr;
  }
}

template <class Op>
Fold NumberFold(Element type) {
  return IsFloat(type) ? FloatFold<Op>(type) : IntegerFold<Op>(type);
}

// Booleans: 0 or 1 in a byte. Addition is `or` and multiplication `and`, as in StableHLO.
Fold BooleanFold(const std::string& reduction) {
  if (reduction == "add" || reduction == "or" || reduction == "maximum") return &FoldPlain<uint8_t, Or>;
  if (reduction == "multiply" || reduction == "and" || reduction == "minimum") return &FoldPlain<uint8_t, And>;
  return reduction == "xor" ? &FoldPlain<uint8_t, Xor> : nullptr;
}

}  // namespace

Fold FindFold(const std::string& reduction, Element type) {
  if (type == Element::kPred) return BooleanFold(reduction);
  if (reduction == "add") {
    if (type == Element::kC64) return &FoldPlain<std::complex<float>, Add>;
    if (type == Element::kC128) return &FoldPlain<std::complex<double>, Add>;
    return NumberFold<Add>(type);
  }
  if (reduction == "multiply") return NumberFold<Multiply>(type);
  if (reduction == "minimum") return NumberFold<Minimum>(type);
  if (reduction == "maximum") return NumberFold<Maximum>(type);
  if (reduction == "and") return IntegerFold<And>(type);
  if (reduction == "or") return IntegerFold<Or>(type);
  if (reduction == "xor") return IntegerFold<Xor>(type);
  return nullptr;
}

}  // namespace ferrule

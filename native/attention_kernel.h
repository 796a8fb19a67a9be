// Attention's innermost loops beside the two products, written once with vector types and compiled for several
// instruction sets as gemm_kernel.h is: nothing of the standard library may be instantiated here.
#include "attention_tables.h"
#include "lanes.h"
#include "narrow_integers.h"

namespace ferrule {
namespace FERRULE_ISA {

constexpr int kLanes = FERRULE_VECTOR_BYTES / 4;
typedef float Floats __attribute__((vector_size(FERRULE_VECTOR_BYTES), may_alias, aligned(4)));
typedef float Aligned __attribute__((vector_size(FERRULE_VECTOR_BYTES)));
typedef int32_t Ints __attribute__((vector_size(FERRULE_VECTOR_BYTES)));
typedef uint32_t Bits __attribute__((vector_size(FERRULE_VECTOR_BYTES)));

inline Aligned Load(const float* p) { return *reinterpret_cast<const Floats*>(p); }
inline void Store(float* p, Aligned x) { *reinterpret_cast<Floats*>(p) = x; }
inline Aligned Splat(float x) { return Aligned{} + x; }
inline Aligned Larger(Aligned a, Aligned b) { return a > b ? a : b; }  // b where a is NaN
constexpr float kInfinity = __builtin_inff();

// exp of what is at most 0, to 0.6 units in the last place; 0 where the result is not a normal number. NaN stays NaN.
inline Aligned ExpNegative(Aligned x) {
  constexpr float kLog2E = 1.44269504f, kRounder = 12582912.0f;        // 1.5 * 2^23: the sum's last bits are an integer
  constexpr float kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f;  // the high part times n is exact
  Aligned rounded = x * kLog2E + kRounder;
  Aligned n = rounded - kRounder;
  Aligned r = (x - n * kLn2High) - n * kLn2Low;
  Aligned p = Splat(0x1.6a23e8p-10f);
  p = p * r + 0x1.123a2p-7f;
  p = p * r + 0x1.5558f2p-5f;
  p = p * r + 0x1.555492p-3f;
  p = p * r + 0x1.fffffcp-2f;
  p = p * (r * r) + r + 1.0f;
  Bits scale = (reinterpret_cast<Bits>(rounded) + (127u - 0x4b400000u)) << 23;  // of any number, where x is far below
  return x < Splat(-87.33f) ? Aligned{} : p * reinterpret_cast<Aligned>(scale);
}

// A row whose maximum is -infinity has seen no key; its terms are 0, and stay so when a later maximum comes.
inline Aligned Subtrahend(Aligned m) { return m == Splat(-kInfinity) ? Aligned{} : m; }

inline bool Softmax(float* s, int64_t ld, int64_t keys, int64_t rows, float* m, float* l, float* factor) {
  Ints other = {};
  for (int64_t r = 0; r < rows; r += kLanes) {
    Aligned before = Load(m + r), most0 = before, most1 = before, most2 = before, most3 = before;
    const float* from = s + r;
    int64_t k = 0;
    for (; k + 4 <= keys; k += 4, from += 4 * ld) {
      most0 = Larger(Load(from), most0);
      most1 = Larger(Load(from + ld), most1);
      most2 = Larger(Load(from + 2 * ld), most2);
      most3 = Larger(Load(from + 3 * ld), most3);
    }
    for (; k < keys; ++k, from += ld) most0 = Larger(Load(from), most0);
    Aligned most = Larger(Larger(most0, most1), Larger(most2, most3));
    Aligned less = Subtrahend(most);
    Aligned sum0 = {}, sum1 = {};
    float* to = s + r;
    for (k = 0; k + 2 <= keys; k += 2, to += 2 * ld) {
      Aligned e0 = ExpNegative(Load(to) - less), e1 = ExpNegative(Load(to + ld) - less);
      Store(to, e0);
      Store(to + ld, e1);
      sum0 += e0;
      sum1 += e1;
    }
    if (k < keys) {
      Aligned e = ExpNegative(Load(to) - less);
      Store(to, e);
      sum0 += e;
    }
    Aligned scale = ExpNegative(before - less);
    Store(m + r, most);
    Store(l + r, Load(l + r) * scale + (sum0 + sum1));
    Store(factor + r, scale);
    other |= scale != Splat(1.0f);
  }
  int32_t any = 0;
  for (int i = 0; i < kLanes; ++i) any |= other[i];
  return any != 0;
}

inline float SoftmaxRow(float* s, int64_t keys, float* m, float* l) {
  float before = *m, most = before;
  Aligned most0 = Splat(before), most1 = most0;
  int64_t k = 0;
  for (; k + 2 * kLanes <= keys; k += 2 * kLanes) {
    most0 = Larger(Load(s + k), most0);
    most1 = Larger(Load(s + k + kLanes), most1);
  }
  most0 = Larger(most0, most1);
  for (int i = 0; i < kLanes; ++i) most = most0[i] > most ? most0[i] : most;
  for (int64_t i = k; i < keys; ++i) most = s[i] > most ? s[i] : most;
  Aligned less = Subtrahend(Splat(most)), sums = {};
  for (k = 0; k + kLanes <= keys; k += kLanes) {
    Aligned e = ExpNegative(Load(s + k) - less);
    Store(s + k, e);
    sums += e;
  }
  if (k < keys) {
    Aligned tail = Splat(-kInfinity);
    for (int64_t i = k; i < keys; ++i) tail[i - k] = s[i];
    tail = ExpNegative(tail - less);
    for (int64_t i = k; i < keys; ++i) s[i] = tail[i - k];
    sums += tail;
  }
  float sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += sums[i];
  float scale = ExpNegative(Splat(before) - less)[0];
  *m = most;
  *l = *l * scale + sum;
  return scale;
}

inline void Scale(float* o, int64_t ld, int64_t rows, int64_t width, const float* factor) {
  for (int64_t r = 0; r < rows; ++r) {
    Aligned f = Splat(factor[r]);
    for (int64_t d = 0; d < width; d += kLanes) Store(o + r * ld + d, Load(o + r * ld + d) * f);
  }
}

inline void Choose(float* s, int64_t ld, int64_t keys, int64_t rows, const uint8_t* mask, int64_t mask_ld, uint8_t drop,
                   float value) {
  for (int64_t k = 0; k < keys; ++k) {
    for (int64_t r = 0; r < rows; r += kLanes) {
      Ints keep = WideBytes(mask + k * mask_ld + r) != static_cast<int32_t>(drop);
      Store(s + k * ld + r, keep ? Load(s + k * ld + r) : Splat(value));
    }
  }
}

inline void Add(float* s, int64_t ld, int64_t keys, int64_t rows, const float* b, int64_t b_ld) {
  for (int64_t k = 0; k < keys; ++k) {
    for (int64_t r = 0; r < rows; r += kLanes) Store(s + k * ld + r, Load(s + k * ld + r) + Load(b + k * b_ld + r));
  }
}

inline void Gradient(float* s, float* g, int64_t ld, int64_t keys, int64_t rows, const float* m, const float* r,
                     const float* d) {
  for (int64_t i = 0; i < rows; i += kLanes) {
    Aligned less = Subtrahend(Load(m + i)), by = Load(r + i), mean = Load(d + i);
    for (int64_t k = 0; k < keys; ++k) {
      float* at = s + k * ld + i;
      Aligned p = ExpNegative(Load(at) - less) * by;
      Store(at, p);
      Store(g + k * ld + i, p * (Load(g + k * ld + i) - mean));
    }
  }
}

inline void Widen(const uint16_t* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Store(to + i, reinterpret_cast<Aligned>(UpperHalves(from + i)));
  for (; i < count; ++i) {
    uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
    __builtin_memcpy(to + i, &bits, 4);
  }
}

inline void MultiplyBy(float* x, int64_t count, float y) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Store(x + i, Load(x + i) * y);
  for (; i < count; ++i) x[i] *= y;
}

// tanh to 1.5 units in the last place. Small arguments by a polynomial: 1 - exp would leave them few digits.
inline Aligned Tanh(Aligned x) {
  Aligned magnitude = x < Aligned{} ? -x : x, u = x * x;
  Aligned p = Splat(-0x1.75e268p-8f);
  p = p * u + 0x1.5226bcp-6f;
  p = p * u - 0x1.b83c5ep-5f;
  p = p * u + 0x1.110726p-3f;
  p = p * u - 0x1.555532p-2f;
  Aligned e = ExpNegative(-2.0f * magnitude), large = (1.0f - e) / (1.0f + e);
  return magnitude < Splat(0.625f) ? p * u * x + x : x < Aligned{} ? -large : large;
}

inline void TanhOf(float* x, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Store(x + i, Tanh(Load(x + i)));
  if (i == count) return;
  Aligned tail = {};
  for (int64_t j = i; j < count; ++j) tail[j - i] = x[j];
  tail = Tanh(tail);
  for (int64_t j = i; j < count; ++j) x[j] = tail[j - i];
}

inline void Dots(const float* q, int64_t depth, const float* k, int64_t k_row, int64_t keys, float* out) {
  int64_t whole = depth - depth % kLanes, i = 0;
  for (; i + kLanes <= keys; i += kLanes) {
    Aligned sums[kLanes] = {};
    const float* from = k + i * k_row;
    for (int64_t d = 0; d < whole; d += kLanes) {
      Aligned left = Load(q + d);
#pragma GCC unroll 16
      for (int j = 0; j < kLanes; ++j) sums[j] += left * Load(from + j * k_row + d);
    }
    Aligned result = Sums<kLanes, kLanes>(sums);
    for (int64_t d = whole; d < depth; ++d) {
      for (int j = 0; j < kLanes; ++j) result[j] += q[d] * from[j * k_row + d];
    }
    Store(out + i, result);
  }
  for (; i < keys; ++i) {
    const float* from = k + i * k_row;
    Aligned sums = {};
    for (int64_t d = 0; d < whole; d += kLanes) sums += Load(q + d) * Load(from + d);
    float sum = 0;
    for (int j = 0; j < kLanes; ++j) sum += sums[j];
    for (int64_t d = whole; d < depth; ++d) sum += q[d] * from[d];
    out[i] = sum;
  }
}

template <int kVectors>
inline void MixColumns(const float* p, int64_t keys, const float* v, int64_t v_row, float factor, float* o) {
  Aligned even[kVectors] = {}, odd[kVectors] = {};
  int64_t i = 0;
  for (; i + 2 <= keys; i += 2, v += 2 * v_row) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      even[j] += p[i] * Load(v + j * kLanes);
      odd[j] += p[i + 1] * Load(v + v_row + j * kLanes);
    }
  }
  for (int j = 0; j < kVectors; ++j) {
    if (i < keys) even[j] += p[i] * Load(v + j * kLanes);
    Store(o + j * kLanes, Load(o + j * kLanes) * factor + (even[j] + odd[j]));
  }
}

inline void Mix(const float* p, int64_t keys, const float* v, int64_t v_row, int64_t width, float factor, float* o) {
  int64_t j = 0;
  for (; j + 4 * kLanes <= width; j += 4 * kLanes) MixColumns<4>(p, keys, v + j, v_row, factor, o + j);
  for (; j + kLanes <= width; j += kLanes) MixColumns<1>(p, keys, v + j, v_row, factor, o + j);
  for (; j < width; ++j) {
    float sum = 0;
    for (int64_t i = 0; i < keys; ++i) sum += p[i] * v[i * v_row + j];
    o[j] = o[j] * factor + sum;
  }
}

inline void Turn(const uint8_t* from, int64_t from_row, uint8_t* to, int64_t to_row) {
  typedef uint8_t Line __attribute__((vector_size(16), may_alias, aligned(1)));
  Line a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = *reinterpret_cast<const Line*>(from + i * from_row);
  for (int step = 0; step < 4; ++step) {  // four times interleaved with what is half a matrix away
    for (int i = 0; i < 8; ++i) {
      b[2 * i] = __builtin_shufflevector(a[i], a[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      b[2 * i + 1] =
          __builtin_shufflevector(a[i], a[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    for (int i = 0; i < 16; ++i) a[i] = b[i];
  }
  for (int i = 0; i < 16; ++i) *reinterpret_cast<Line*>(to + i * to_row) = a[i];
}

constexpr AttentionKernels Attention() {
  return {&Softmax, &SoftmaxRow, &Scale, &Choose, &Add, &Gradient, &Widen, &Dots, &Mix, &Turn, &MultiplyBy, &TanhOf};
}

}  // namespace FERRULE_ISA
}  // namespace ferrule

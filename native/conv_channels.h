// Loops of depthwise convolutions with channels innermost: vectors go over channels, written once with vector types and
// compiled for several instruction sets.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu_features.h"

namespace ferrule {
namespace {

// A vector of channels at each of `count` positions; neighbours are `step` elements apart. Of 16 bits each: bf16.
template <class T, class Stored, int kBytes>
[[gnu::always_inline]] inline void LoadRow(const Stored* from, int64_t step, int64_t count, T* to) {
  constexpr int64_t kLanes = kBytes / sizeof(T);
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<Stored, T>) {
      std::memcpy(to + i * kLanes, from + i * step, kBytes);
    } else {
      Stored halves[kLanes];
      uint32_t words[kLanes];
      std::memcpy(halves, from + i * step, sizeof halves);
#pragma GCC unroll 1  // else it is taken apart before it becomes vectors
      for (int64_t lane = 0; lane < kLanes; ++lane) words[lane] = static_cast<uint32_t>(halves[lane]) << 16;
      std::memcpy(to + i * kLanes, words, sizeof words);
    }
  }
}

// Writes what LoadRow reads, rounded to the nearest even: the lanes from `first` on.
template <class T, class Stored, int kBytes>
[[gnu::always_inline]] inline void StoreRow(const T* from, int64_t first, int64_t step, int64_t count, Stored* to) {
  constexpr int64_t kLanes = kBytes / sizeof(T);
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<Stored, T>) {
      if (first == 0) {
        std::memcpy(to + i * step, from + i * kLanes, kBytes);
      } else {
        std::copy(from + i * kLanes + first, from + (i + 1) * kLanes, to + i * step + first);
      }
    } else {
      uint32_t words[kLanes];
      Stored rounded[kLanes];
      std::memcpy(words, from + i * kLanes, sizeof words);
#pragma GCC unroll 1
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const uint32_t word = words[lane];
        const uint32_t near = (word + 0x7fff + (word >> 16 & 1)) >> 16, quiet = word >> 16 | 0x40;
        rounded[lane] = static_cast<Stored>((word & 0x7fffffff) > 0x7f800000 ? quiet : near);
      }
      if (first == 0) {
        std::memcpy(to + i * step, rounded, sizeof rounded);
      } else {
        std::copy(rounded + first, rounded + kLanes, to + i * step + first);
      }
    }
  }
}

// Rows of vectors, aligned: of the image, of what it is multiplied by, and of sums.
template <class T>
struct Row {
  const T *x, *y;
  int64_t x_step, tap_step, count;
  T* sums;
};

// Gradients: sums[t] += sum over i < count of x[i * x_step + t * tap_step] * y[i], for every tap t.
template <class T, int kBytes, int kTaps>
[[gnu::always_inline]] inline void AddTaps(const Row<T>& r) {
  typedef T Vector __attribute__((vector_size(kBytes), may_alias));  // all that is read here is aligned
  auto *x = reinterpret_cast<const Vector*>(r.x), *y = reinterpret_cast<const Vector*>(r.y);
  // One addition waits for the one before it: with few taps, two positions in turn.
  constexpr int kTurns = kTaps < 4 ? 2 : 1;
  Vector sum[kTurns][kTaps];
  for (int u = 0; u < kTurns; ++u) {
    for (int t = 0; t < kTaps; ++t) sum[u][t] = Vector{};
  }
  int64_t i = 0;
  for (; i + kTurns <= r.count; i += kTurns) {
#pragma GCC unroll 2
    for (int u = 0; u < kTurns; ++u) {
#pragma GCC unroll 8
      for (int t = 0; t < kTaps; ++t) sum[u][t] += x[(i + u) * r.x_step + t * r.tap_step] * y[i + u];
    }
  }
  for (; i < r.count; ++i) {
#pragma GCC unroll 8
    for (int t = 0; t < kTaps; ++t) sum[0][t] += x[i * r.x_step + t * r.tap_step] * y[i];
  }
  auto* sums = reinterpret_cast<Vector*>(r.sums);
#pragma GCC unroll 8
  for (int t = 0; t < kTaps; ++t) {
    if constexpr (kTurns > 1) sum[0][t] += sum[1][t];
    sums[t] += sum[0][t];
  }
}

// Images: sums[i] += sum over taps t of x[i * x_step + t * tap_step] * y[t], for every i < count.
template <class T, int kBytes, int kTaps>
[[gnu::always_inline]] inline void AddPositions(const Row<T>& r) {
  typedef T Vector __attribute__((vector_size(kBytes), may_alias));
  auto *x = reinterpret_cast<const Vector*>(r.x), *y = reinterpret_cast<const Vector*>(r.y);
  auto* sums = reinterpret_cast<Vector*>(r.sums);
  Vector weights[kTaps];
#pragma GCC unroll 8
  for (int t = 0; t < kTaps; ++t) weights[t] = y[t];
#pragma GCC unroll 2
  for (int64_t i = 0; i < r.count; ++i) {
    Vector sum = sums[i];
#pragma GCC unroll 8
    for (int t = 0; t < kTaps; ++t) sum += x[i * r.x_step + t * r.tap_step] * weights[t];
    sums[i] = sum;
  }
}

template <class T, int kBytes, bool kGradient, int kTaps>
[[gnu::always_inline]] inline void AddSome(const Row<T>& r) {
  if constexpr (kGradient) AddTaps<T, kBytes, kTaps>(r);
  if constexpr (!kGradient) AddPositions<T, kBytes, kTaps>(r);
}

// As many taps at once as there are registers for.
template <class T, int kBytes, bool kGradient>
[[gnu::always_inline]] inline void AddAll(const Row<T>& row, int64_t taps) {
  constexpr int64_t kLanes = kBytes / sizeof(T);
  Row<T> r = row;
  for (; taps > 0; taps -= 8) {
    switch (std::min<int64_t>(taps, 8)) {
      case 1:
        AddSome<T, kBytes, kGradient, 1>(r);
        break;
      case 2:
        AddSome<T, kBytes, kGradient, 2>(r);
        break;
      case 3:
        AddSome<T, kBytes, kGradient, 3>(r);
        break;
      case 4:
        AddSome<T, kBytes, kGradient, 4>(r);
        break;
      case 5:
        AddSome<T, kBytes, kGradient, 5>(r);
        break;
      case 6:
        AddSome<T, kBytes, kGradient, 6>(r);
        break;
      case 7:
        AddSome<T, kBytes, kGradient, 7>(r);
        break;
      default:
        AddSome<T, kBytes, kGradient, 8>(r);
    }
    r.x += 8 * r.tap_step * kLanes;
    if constexpr (kGradient) r.sums += 8 * kLanes;
    if constexpr (!kGradient) r.y += 8 * kLanes;
  }
}

template <class T, class Stored>
struct ChannelFunctions {
  int64_t bytes;
  void (*load)(const Stored*, int64_t, int64_t, T*);
  void (*store)(const T*, int64_t, int64_t, int64_t, Stored*);
  void (*taps)(const Row<T>&, int64_t), (*positions)(const Row<T>&, int64_t);
};

#define FERRULE_FUNCTIONS(bytes, target)                                                            \
  template <class T, class Stored>                                                                  \
  target void Load##bytes(const Stored* from, int64_t step, int64_t count, T* to) {                 \
    LoadRow<T, Stored, bytes>(from, step, count, to);                                               \
  }                                                                                                 \
  template <class T, class Stored>                                                                  \
  target void Store##bytes(const T* from, int64_t first, int64_t step, int64_t count, Stored* to) { \
    StoreRow<T, Stored, bytes>(from, first, step, count, to);                                       \
  }                                                                                                 \
  template <class T>                                                                                \
  target void Taps##bytes(const Row<T>& row, int64_t taps) {                                        \
    AddAll<T, bytes, true>(row, taps);                                                              \
  }                                                                                                 \
  template <class T>                                                                                \
  target void Positions##bytes(const Row<T>& row, int64_t taps) {                                   \
    AddAll<T, bytes, false>(row, taps);                                                             \
  }

FERRULE_FUNCTIONS(16, )
#if defined(__x86_64__)
FERRULE_FUNCTIONS(32, __attribute__((target("avx2,fma"))))
FERRULE_FUNCTIONS(64, __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,fma"))))
#endif
#undef FERRULE_FUNCTIONS

// The longest vectors that the processor has and the channels fill.
template <class T, class Stored>
ChannelFunctions<T, Stored> ChannelFunctionsFor(int64_t channels) {
#if defined(__x86_64__)
  const int64_t bytes = channels * static_cast<int64_t>(sizeof(T));
  if (ChosenIsa() == Isa::kAvx512 && bytes >= 64)
    return {64, Load64<T, Stored>, Store64<T, Stored>, Taps64<T>, Positions64<T>};
  if (ChosenIsa() != Isa::kBaseline && bytes >= 32)
    return {32, Load32<T, Stored>, Store32<T, Stored>, Taps32<T>, Positions32<T>};
#endif
  return {16, Load16<T, Stored>, Store16<T, Stored>, Taps16<T>, Positions16<T>};
}

}  // namespace
}  // namespace ferrule

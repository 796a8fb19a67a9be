// The innermost loop of convolutions by windows (conv_windows.cc), on the matrix product's.
#include "gemm_kernel.h"

namespace ferrule {
namespace FERRULE_ISA {

template <class T, int MR, int NV>
void MultiplyWindows(const WindowSums<T>& s) {
  using V = typename VectorOf<T>::type;
  using U = typename VectorOf<T>::unaligned;
  constexpr int kLanes = kBytes / sizeof(T), kSteps = 4;
  V sum[MR][NV] = {};
#pragma GCC unroll 12
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) __builtin_prefetch(s.to + i * s.to_row + j * kLanes, 1);
  }
  const T* b = s.panel;
  for (int64_t piece = 0; piece < s.pieces; ++piece) {
    const T* at[MR];
#pragma GCC unroll 12
    for (int i = 0; i < MR; ++i) at[i] = s.windows[i] + s.offsets[piece];
    auto add = [&](int q) __attribute__((always_inline)) {
      V right[NV];
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) right[j] = *reinterpret_cast<const U*>(b + j * kLanes);
#pragma GCC unroll 12
      for (int i = 0; i < MR; ++i) AddProducts<T>(at[i] + q, right, sum[i]);
      b += NV * kLanes;
    };
    auto advance = [&](int steps) __attribute__((always_inline)) {
#pragma GCC unroll 12
      for (int i = 0; i < MR; ++i) {
        at[i] += steps;
        __asm__("" : "+r"(at[i]));  // each in a register, not as a distance from another one
      }
    };
    int64_t left = s.lengths[piece];
    for (; left >= kSteps; left -= kSteps) {
#pragma GCC unroll 4
      for (int q = 0; q < kSteps; ++q) {
        add(q);
        __asm__ volatile("" ::: "memory");  // one after the other, else there are too few registers
      }
      advance(kSteps);
    }
    for (; left > 0; --left) add(0), advance(1);
  }
#pragma GCC unroll 12
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      U* to = reinterpret_cast<U*>(s.to + i * s.to_row + j * kLanes);
      *to = s.accumulate ? *to + sum[i][j] : sum[i][j];
    }
  }
}

template <class T, int MR, int NV>
void MultiplyPanels(const PanelSums<T>& s) {
  using V = typename VectorOf<T>::type;
  using U = typename VectorOf<T>::unaligned;
  constexpr int kLanes = kBytes / sizeof(T), kSteps = 4;
  V sum[MR][NV] = {};
#pragma GCC unroll 12
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) __builtin_prefetch(s.to + i * s.to_row + j * kLanes, 1);
  }
  const T* b = s.right;
  for (int64_t piece = 0; piece < s.pieces; ++piece) {
    const T* a = s.left + s.offsets[piece];
    auto add = [&](int q) __attribute__((always_inline)) {
      V right[NV];
#pragma GCC unroll 4
      for (int j = 0; j < NV; ++j) right[j] = *reinterpret_cast<const U*>(b + (q * NV + j) * kLanes);
#pragma GCC unroll 12
      for (int i = 0; i < MR; ++i) AddProducts<T>(a + q * MR + i, right, sum[i]);
    };
    auto advance = [&](int steps) __attribute__((always_inline)) { a += steps * MR, b += steps * NV * kLanes; };
    int64_t left = s.length;
    for (; left >= kSteps; left -= kSteps) {
#pragma GCC unroll 4
      for (int q = 0; q < kSteps; ++q) {
        add(q);
        __asm__ volatile("" ::: "memory");  // one after the other, else there are too few registers
      }
      advance(kSteps);
    }
    for (; left > 0; --left) add(0), advance(1);
  }
#pragma GCC unroll 12
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < NV; ++j) {
      U* to = reinterpret_cast<U*>(s.to + i * s.to_row + j * kLanes);
      *to = s.accumulate ? *to + sum[i][j] : sum[i][j];
    }
  }
}

template <int MR, int NV>
constexpr WindowKernels Windows() {
  return {MR, &MultiplyWindows<float, MR, NV>, &MultiplyWindows<double, MR, NV>, &MultiplyPanels<float, MR, NV>,
          &MultiplyPanels<double, MR, NV>};
}

}  // namespace FERRULE_ISA
}  // namespace ferrule

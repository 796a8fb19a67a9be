// The innermost loops of convolutions by windows (conv_windows.cc) and of their gradients, on the matrix product's.
#include "gemm_kernel.h"

namespace ferrule {
namespace FERRULE_ISA {

// Adds `steps` of a tile, the q-th of those that `advance` has not passed by add(q): four at once, as in Multiply.
template <class Add, class Advance>
__attribute__((always_inline)) inline void AddSteps(int64_t steps, const Add& add, const Advance& advance) {
  constexpr int kSteps = 4;
  for (; steps >= kSteps; steps -= kSteps) {
#pragma GCC unroll 4
    for (int q = 0; q < kSteps; ++q) {
      add(q);
      __asm__ volatile("" ::: "memory");  // one after the other, else there are too few registers
    }
    advance(kSteps);
  }
  for (; steps > 0; --steps) add(0), advance(1);
}

template <class T, int NV>
__attribute__((always_inline)) inline void GetRow(const T* b, typename VectorOf<T>::type (&right)[NV]) {
#pragma GCC unroll 4
  for (int j = 0; j < NV; ++j) {
    right[j] = *reinterpret_cast<const typename VectorOf<T>::unaligned*>(b + j * (kBytes / sizeof(T)));
  }
}

template <class T, int MR, int NV>
void MultiplyWindows(const WindowSums<T>& s) {
  using V = typename VectorOf<T>::type;
  constexpr int kColumns = NV * kBytes / sizeof(T);
  V sum[MR][NV] = {};
  FetchTile<T, MR, NV>(s.to, s.to_row);
  const T* b = s.panel;
  for (int64_t piece = 0; piece < s.pieces; ++piece) {
    const T* at[MR];
#pragma GCC unroll 12
    for (int i = 0; i < MR; ++i) at[i] = s.windows[i] + s.offsets[piece];
    auto add = [&](int q) __attribute__((always_inline)) {
      V right[NV];
      GetRow<T, NV>(b + q * kColumns, right);
#pragma GCC unroll 12
      for (int i = 0; i < MR; ++i) AddProducts<T>(at[i] + q, right, sum[i]);
    };
    auto advance = [&](int steps) __attribute__((always_inline)) {
      b += steps * kColumns;
#pragma GCC unroll 12
      for (int i = 0; i < MR; ++i) {
        at[i] += steps;
        __asm__("" : "+r"(at[i]));  // each in a register, not as a distance from another one
      }
    };
    AddSteps(s.lengths[piece], add, advance);
  }
  PutSums<T, MR, NV>(sum, s.to, s.to_row, s.accumulate);
}

template <class T, int MR, int NV>
void MultiplyPanels(const PanelSums<T>& s) {
  using V = typename VectorOf<T>::type;
  constexpr int kColumns = NV * kBytes / sizeof(T);
  V sum[MR][NV] = {};
  FetchTile<T, MR, NV>(s.to, s.to_row);
  const T* b = s.right;
  for (int64_t piece = 0; piece < s.pieces; ++piece) {
    const T* a = s.left + s.offsets[piece];
    auto add = [&](int q) __attribute__((always_inline)) {
      V right[NV];
      GetRow<T, NV>(b + q * kColumns, right);
#pragma GCC unroll 12
      for (int i = 0; i < MR; ++i) AddProducts<T>(a + q * MR + i, right, sum[i]);
    };
    auto advance = [&](int steps) __attribute__((always_inline)) { a += steps * MR, b += steps * kColumns; };
    AddSteps(s.length, add, advance);
  }
  PutSums<T, MR, NV>(sum, s.to, s.to_row, s.accumulate);
}

template <class T, int MR, int NV>
constexpr MicroKernels<T> RealAndWindows() {
  MicroKernels<T> kernels = Real<T, MR, NV>();
  kernels.windows = &MultiplyWindows<T, MR, NV>;
  kernels.panels = &MultiplyPanels<T, MR, NV>;
  return kernels;
}

}  // namespace FERRULE_ISA
}  // namespace ferrule

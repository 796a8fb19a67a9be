// Vectors of integers that are narrower in memory than what is computed with them. Compiled for several instruction
// sets, as are gemm_kernel.h and attention_kernel.h: nothing of the standard library may be instantiated here.
#pragma once

#include <cstdint>

namespace ferrule {
namespace FERRULE_ISA {

constexpr int kLanes32 = FERRULE_VECTOR_BYTES / 4;
typedef uint32_t Words32 __attribute__((vector_size(FERRULE_VECTOR_BYTES), may_alias));
typedef int16_t Words16 __attribute__((vector_size(FERRULE_VECTOR_BYTES), may_alias));
typedef int Integers __attribute__((vector_size(FERRULE_VECTOR_BYTES)));

// N elements as they lie in memory.
template <class S, int N>
struct Narrow {
  typedef S type __attribute__((vector_size(N * sizeof(S)), may_alias, aligned(alignof(S))));
};

// GCC 12 converts a vector to wider elements in halves or one by one: the instructions by their names.

// 8- or 16-bit integers as 16 bits.
template <class S>
inline Words16 WideWords(typename Narrow<S, 2 * kLanes32>::type x) {
#if FERRULE_VECTOR_BYTES == 64
  typedef char Bytes __attribute__((vector_size(32)));
  typedef short Shorts __attribute__((vector_size(64)));
  if constexpr (sizeof(S) == 1) {
    return static_cast<S>(-1) < 0 ? (Words16)__builtin_ia32_pmovsxbw512_mask((Bytes)x, Shorts{}, ~0u)
                                  : (Words16)__builtin_ia32_pmovzxbw512_mask((Bytes)x, Shorts{}, ~0u);
  }
#elif FERRULE_VECTOR_BYTES == 32
  typedef char Bytes __attribute__((vector_size(16)));
  if constexpr (sizeof(S) == 1) {
    return static_cast<S>(-1) < 0 ? (Words16)__builtin_ia32_pmovsxbw256((Bytes)x)
                                  : (Words16)__builtin_ia32_pmovzxbw256((Bytes)x);
  }
#endif
  return __builtin_convertvector(x, Words16);
}

// A vector of 8-bit integers from memory, as 32 bits.
template <class S>
inline Integers WideBytes(const S* x) {
  static_assert(sizeof(S) == 1);
#if FERRULE_VECTOR_BYTES == 64
  typedef char Bytes __attribute__((vector_size(16)));
  const auto from = (Bytes) * reinterpret_cast<const typename Narrow<S, kLanes32>::type*>(x);
  return (Integers)(static_cast<S>(-1) < 0 ? __builtin_ia32_pmovsxbd512_mask(from, Integers{}, 0xffff)
                                           : __builtin_ia32_pmovzxbd512_mask(from, Integers{}, 0xffff));
#elif FERRULE_VECTOR_BYTES == 32
  typedef char Bytes __attribute__((vector_size(16)));
  typedef long long Two __attribute__((vector_size(16)));
  long long eight;
  __builtin_memcpy(&eight, x, sizeof(eight));
  const auto from = (Bytes)Two{eight, 0};
  return (Integers)(static_cast<S>(-1) < 0 ? __builtin_ia32_pmovsxbd256(from) : __builtin_ia32_pmovzxbd256(from));
#else
  return __builtin_convertvector(*reinterpret_cast<const typename Narrow<S, kLanes32>::type*>(x), Integers);
#endif
}

// A vector of unsigned 16-bit integers from memory, as the upper halves of 32 bits: bf16 as f32.
inline Words32 UpperHalves(const uint16_t* x) {
  const auto from = *reinterpret_cast<const Narrow<uint16_t, kLanes32>::type*>(x);
#if FERRULE_VECTOR_BYTES == 64
  typedef short Halves __attribute__((vector_size(32)));
  return (Words32)__builtin_ia32_pmovzxwd512_mask((Halves)from, Integers{}, 0xffff) << 16;
#elif FERRULE_VECTOR_BYTES == 32
  typedef short Halves __attribute__((vector_size(16)));
  return (Words32)__builtin_ia32_pmovzxwd256((Halves)from) << 16;
#else
  return __builtin_convertvector(from, Words32) << 16;
#endif
}

}  // namespace FERRULE_ISA
}  // namespace ferrule

// Vectors of one instruction set, for loops that are compiled for several as gemm_kernel.h is: FERRULE_ISA names the
// namespace, FERRULE_VECTOR_BYTES the size. Nothing of the standard library may be instantiated here.
#pragma once

#include <cstdint>
#include <utility>

namespace ferrule {
namespace FERRULE_ISA {

template <class T>
struct IndexOf;
template <>
struct IndexOf<float> {
  using Type = int32_t;
};
template <>
struct IndexOf<double> {
  using Type = int64_t;
};

// A vector of T and one of integers of the same size.
template <class T>
struct Lanes {
  using Integer = typename IndexOf<T>::Type;
  typedef T Vector __attribute__((vector_size(FERRULE_VECTOR_BYTES)));
  typedef T Unaligned __attribute__((vector_size(FERRULE_VECTOR_BYTES), may_alias, aligned(alignof(T))));
  typedef Integer Index __attribute__((vector_size(FERRULE_VECTOR_BYTES)));
  static constexpr int kCount = FERRULE_VECTOR_BYTES / sizeof(T);
};

template <class T>
inline typename Lanes<T>::Vector Load(const T* p) {
  return *reinterpret_cast<const typename Lanes<T>::Unaligned*>(p);
}

template <class T>
inline void Store(T* p, typename Lanes<T>::Vector v) {
  *reinterpret_cast<typename Lanes<T>::Unaligned*>(p) = v;
}

template <class T>
inline typename Lanes<T>::Index Counted() {
  typename Lanes<T>::Index index{};
  for (int l = 0; l < Lanes<T>::kCount; ++l) index[l] = l;
  return index;
}

// Vectors of several sums each, in segments of kLength partial sums: the halves of each segment are added, so that the
// result has the sums of both in segments of half the length.
template <int kLength, class Vector, int... kIndex>
inline Vector Halve(Vector a, Vector b, std::integer_sequence<int, kIndex...>) {
  constexpr int h = kLength / 2;
  return __builtin_shufflevector(a, b, (kIndex / h * kLength + kIndex % h)...) +
         __builtin_shufflevector(a, b, (kIndex / h * kLength + h + kIndex % h)...);
}

// Sums over the lanes of kCount vectors, the sum of vector i in lane i.
template <int kLanes, int kCount, class Vector>
inline Vector Sums(const Vector* v) {
  if constexpr (kCount == 1) {
    return *v;
  } else {
    constexpr int kLength = 2 * kLanes / kCount;
    return Halve<kLength>(Sums<kLanes, kCount / 2>(v), Sums<kLanes, kCount / 2>(v + kCount / 2),
                          std::make_integer_sequence<int, kLanes>());
  }
}

}  // namespace FERRULE_ISA
}  // namespace ferrule

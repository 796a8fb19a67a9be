// Vectors of one instruction set, for loops that are compiled for several as gemm_kernel.h is: FERRULE_ISA names the
// namespace, FERRULE_VECTOR_BYTES the size. Nothing of the standard library may be instantiated here.
#pragma once

#include <cstdint>

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

}  // namespace FERRULE_ISA
}  // namespace ferrule

// SciPy's BLAS and LAPACK: Fortran entry points (32-bit int) that Python found and handed over by name. All may be
// absent.
#pragma once

#include <complex>
#include <cstdint>
#include <string>
#include <type_traits>

#include "calls.h"

namespace ferrule {

// The letter of a type's routines: sgemm, dgemm, cgemm, zgemm.
template <class T>
constexpr char kBlasLetter = std::is_same_v<T, float>                 ? 's'
                             : std::is_same_v<T, double>              ? 'd'
                             : std::is_same_v<T, std::complex<float>> ? 'c'
                                                                      : 'z';

template <class T>
using GemmRoutine = void (*)(const char* trans_a, const char* trans_b, const int* m, const int* n, const int* k,
                             const T* alpha, const T* a, const int* lda, const T* b, const int* ldb, const T* beta,
                             T* c, const int* ldc);
template <class T>
using TrsmRoutine = void (*)(const char* side, const char* uplo, const char* trans, const char* diag, const int* m,
                             const int* n, const T* alpha, const T* a, const int* lda, T* b, const int* ldb);
template <class T>
using PotrfRoutine = void (*)(const char* uplo, const int* n, T* a, const int* lda, int* info);

// A routine by its Fortran name ("dpotrf"): one that Python handed over by address, else one of the OpenBLAS library
// that it named, which is opened at the first question. Null when there is neither.
void* BlasRoutine(const std::string& name);

// While one lives, OpenBLAS runs on its callers' threads alone. Its own threads wait by spinning: next to Ferrule's
// pool or on a busy machine a small product then takes milliseconds. What SciPy's user has set comes back afterwards.
class OneBlasThread {
 public:
  OneBlasThread();
  ~OneBlasThread();
  OneBlasThread(const OneBlasThread&) = delete;
  OneBlasThread& operator=(const OneBlasThread&) = delete;
};

template <class T>
GemmRoutine<T> BlasGemm() {
  return reinterpret_cast<GemmRoutine<T>>(BlasRoutine(kBlasLetter<T> + std::string("gemm")));
}
template <class T>
TrsmRoutine<T> BlasTrsm() {
  return reinterpret_cast<TrsmRoutine<T>>(BlasRoutine(kBlasLetter<T> + std::string("trsm")));
}
template <class T>
PotrfRoutine<T> LapackPotrf() {
  return reinterpret_cast<PotrfRoutine<T>>(BlasRoutine(kBlasLetter<T> + std::string("potrf")));
}

}  // namespace ferrule

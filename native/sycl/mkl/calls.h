// Library calls of oneMKL on the device's queue and memory. Arrays are dense, with any number of leading batch
// dimensions; sizes are at least 1. f32, f64, c64 and c128. Operands are kept. oneMKL's LAPACK reports what cannot be
// factored by exceptions: here it is part of the results.
//
// "mkl.dft"  StableHLO's fft: attributes `type` ("FFT", "IFFT", "RFFT", "IRFFT") and `length` (of the last one to three
//   dimensions). An IRFFT takes the spectrum of a real signal, symmetric in the columns that stand for themselves (the
//   first, and the last of an even length): of other spectra oneMKL makes other things than StableHLO.
//
// Row-major matrices:
//
// "mkl.trsm"   StableHLO's triangular_solve: operands a and b, attributes left_side, lower, unit_diagonal, and `form`
//   ("NO_TRANSPOSE", "TRANSPOSE" or "ADJOINT" of a)
// "mkl.potrf"  the Cholesky factor of a in the triangle that `lower` says; the other one holds anything. A matrix that
//   is not positive definite gives NaN in all of its triangle's diagonal, or has an element there that is not positive.
//
// Matrices column by column, as LAPACK has them: the shapes are (…, rows, columns), the bytes (…, columns, rows).
//
// "mkl.getrf"  operand a; results: the factors, the pivots (s64, counted from 1)
// "mkl.geqrf"  operand a; results: R and the reflectors, tau
// "mkl.orgqr"  operands a (m x n, reflectors in the first columns) and tau; result: the first n columns of Q
// "mkl.syevd"  operand a, of which the triangle `lower` is read; attribute `vectors` (0: the first result then holds
//   anything). Results: eigenvectors, eigenvalues (ascending), info (s32: not 0 where it did not converge)
// "mkl.gesvd"  operand a; attribute `vectors`: "all", "some" or "none". Results: singular values (descending), u, the
//   adjoint of v, info as above
#pragma once

#include <complex>
#include <memory>
#include <string>

#include "../library_call.h"

namespace ferrule_sycl {

std::unique_ptr<FerruleCall> PrepareDft(FerruleDevice* device, const FerruleCallDesc& desc);
std::unique_ptr<FerruleCall> PrepareTrsm(FerruleDevice* device, const FerruleCallDesc& desc);
std::unique_ptr<FerruleCall> PreparePotrf(FerruleDevice* device, const FerruleCallDesc& desc);
std::unique_ptr<FerruleCall> PrepareGetrf(FerruleDevice* device, const FerruleCallDesc& desc);
std::unique_ptr<FerruleCall> PrepareGeqrf(FerruleDevice* device, const FerruleCallDesc& desc);
std::unique_ptr<FerruleCall> PrepareOrgqr(FerruleDevice* device, const FerruleCallDesc& desc);
std::unique_ptr<FerruleCall> PrepareSyevd(FerruleDevice* device, const FerruleCallDesc& desc);
std::unique_ptr<FerruleCall> PrepareGesvd(FerruleDevice* device, const FerruleCallDesc& desc);

enum Type : int { kS32 = 4, kS64 = 5, kF32 = 11, kF64 = 12, kC64 = 14, kC128 = 15 };  // PJRT_Buffer_Type

[[noreturn]] void MklCannotDo(const std::string& what);  // kUnimplemented

int64_t ElementsOf(const FerruleShape& shape);

// A batch of matrices: the last two dimensions, and how many there are.
struct Matrices {
  int64_t batch, rows, columns;
  int64_t size() const { return rows * columns; }
};
Matrices MatricesOf(const FerruleShape& shape);

// Throws kInvalidArgument unless a shape has this type and so many elements.
void Expect(const FerruleShape& shape, int dtype, int64_t elements, const char* what);

template <class T>
struct RealOf {
  using type = T;
};
template <class T>
struct RealOf<std::complex<T>> {
  using type = T;
};
template <class T>
using Real = typename RealOf<T>::type;
template <class T>
constexpr bool kIsComplex = !std::is_same_v<Real<T>, T>;

inline int RealType(int dtype) { return dtype == kC64 ? kF32 : dtype == kC128 ? kF64 : dtype; }

// Makes a Call<T> of the element type.
template <template <class> class Call, class... Arguments>
std::unique_ptr<FerruleCall> MakeFor(int dtype, Arguments&&... arguments) {
  switch (dtype) {
    case kF32:
      return std::make_unique<Call<float>>(std::forward<Arguments>(arguments)...);
    case kF64:
      return std::make_unique<Call<double>>(std::forward<Arguments>(arguments)...);
    case kC64:
      return std::make_unique<Call<std::complex<float>>>(std::forward<Arguments>(arguments)...);
    case kC128:
      return std::make_unique<Call<std::complex<double>>>(std::forward<Arguments>(arguments)...);
    default:
      MklCannotDo("matrices of PJRT's element type " + std::to_string(dtype));
  }
}

}  // namespace ferrule_sycl

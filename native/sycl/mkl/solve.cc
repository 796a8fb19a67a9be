// Triangular solves.
#include <oneapi/mkl/blas.hpp>

#include "calls.h"

namespace ferrule_sycl {
namespace {

namespace mkl = oneapi::mkl;

struct SolveShape {
  int64_t batch, rows, columns;  // of b
  mkl::side side;
  mkl::uplo uplo;
  mkl::transpose form;
  mkl::diag diag;
  int64_t n() const { return side == mkl::side::left ? rows : columns; }
};

template <class T>
class Trsm : public FerruleCall {
 public:
  Trsm(FerruleDevice* device, const SolveShape& shape) : queue_(device->queue), s_(shape) {}

  sycl::event Run(void* const* operands, void* const* results, void*, const std::vector<sycl::event>& after) override {
    auto* x = static_cast<T*>(results[0]);
    const auto* a = static_cast<const T*>(operands[0]);
    const int64_t size = s_.rows * s_.columns, n = s_.n();
    sycl::event copied = queue_.memcpy(x, operands[1], static_cast<size_t>(s_.batch * size) * sizeof(T), after);
    namespace blas = mkl::blas::row_major;
    if (s_.batch == 1) {
      return blas::trsm(queue_, s_.side, s_.uplo, s_.form, s_.diag, s_.rows, s_.columns, T(1), a, n, x, s_.columns,
                        {copied});
    }
    return blas::trsm_batch(queue_, s_.side, s_.uplo, s_.form, s_.diag, s_.rows, s_.columns, T(1), a, n, n * n, x,
                            s_.columns, size, s_.batch, {copied});
  }

 private:
  sycl::queue queue_;
  SolveShape s_;
};

}  // namespace

std::unique_ptr<FerruleCall> PrepareTrsm(FerruleDevice* device, const FerruleCallDesc& desc) {
  Attributes attributes(desc);
  Matrices b = MatricesOf(desc.operands[1]);
  SolveShape s{b.batch, b.rows, b.columns, {}, {}, {}, {}};
  s.side = attributes.Int("left_side") ? mkl::side::left : mkl::side::right;
  s.uplo = attributes.Int("lower") ? mkl::uplo::lower : mkl::uplo::upper;
  s.diag = attributes.Int("unit_diagonal") ? mkl::diag::unit : mkl::diag::nonunit;
  std::string form = attributes.Text("form");
  if (form == "NO_TRANSPOSE") {
    s.form = mkl::transpose::nontrans;
  } else if (form == "TRANSPOSE") {
    s.form = mkl::transpose::trans;
  } else if (form == "ADJOINT") {
    s.form = mkl::transpose::conjtrans;
  } else {
    Refuse("the form '" + form + "' of a matrix is unknown");
  }
  int dtype = desc.operands[0].dtype;
  Expect(desc.operands[0], dtype, b.batch * s.n() * s.n(), "a");
  Expect(desc.operands[1], dtype, b.batch * b.size(), "b");
  Expect(desc.results[0], dtype, b.batch * b.size(), "the result");
  return MakeFor<Trsm>(dtype, device, s);
}

}  // namespace ferrule_sycl

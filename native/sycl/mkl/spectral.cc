// Eigenvalues of symmetric (Hermitian) matrices, and singular values: one matrix after the other, as oneMKL has no
// batch of them.
#include "lapack_call.h"

namespace ferrule_sycl {
namespace {

namespace mkl = oneapi::mkl;
namespace lapack = oneapi::mkl::lapack;

template <class T>
class Syevd : public LapackCall {
 public:
  Syevd(FerruleDevice* device, const Matrices& a, bool lower, bool vectors)
      : LapackCall(device),
        a_(a),
        uplo_(lower ? mkl::uplo::lower : mkl::uplo::upper),
        job_(vectors ? mkl::job::vec : mkl::job::novec) {
    if constexpr (kIsComplex<T>) {
      scratch_ = lapack::heevd_scratchpad_size<T>(queue(), job_, uplo_, a.rows, a.rows);
    } else {
      scratch_ = lapack::syevd_scratchpad_size<T>(queue(), job_, uplo_, a.rows, a.rows);
    }
    scratch_bytes = ScratchBytes<T>(scratch_);
  }

 protected:
  void Work(void* const* operands, void* const* results, void* scratch) override {
    auto *x = static_cast<T*>(results[0]), *work = static_cast<T*>(scratch);
    auto* values = static_cast<Real<T>*>(results[1]);
    const int64_t n = a_.rows;
    Copy(x, operands[0], a_.batch * a_.size() * static_cast<int64_t>(sizeof(T)));
    std::vector<int32_t> infos;
    for (int64_t i = 0; i < a_.batch; ++i, x += a_.size(), values += n) {
      int64_t info = Info([&] {
        if constexpr (kIsComplex<T>) return lapack::heevd(queue(), job_, uplo_, n, x, n, values, work, scratch_);
        if constexpr (!kIsComplex<T>) return lapack::syevd(queue(), job_, uplo_, n, x, n, values, work, scratch_);
      });
      infos.push_back(static_cast<int32_t>(info));
    }
    Copy(results[2], infos.data(), a_.batch * static_cast<int64_t>(sizeof(int32_t)));
  }

 private:
  Matrices a_;
  mkl::uplo uplo_;
  mkl::job job_;
  int64_t scratch_;
};

struct SvdShape {
  Matrices a;
  mkl::jobsvd job;
  int64_t u_columns, v_rows;  // 0 without vectors
};

// oneMKL overwrites a: it goes to scratch memory, before the routine's own.
template <class T>
class Gesvd : public LapackCall {
 public:
  Gesvd(FerruleDevice* device, const SvdShape& shape) : LapackCall(device), s_(shape) {
    scratch_ = lapack::gesvd_scratchpad_size<T>(queue(), s_.job, s_.job, s_.a.rows, s_.a.columns, s_.a.rows, s_.a.rows,
                                                LeadingV());
    scratch_bytes = Begin() + ScratchBytes<T>(scratch_);
  }

 protected:
  void Work(void* const* operands, void* const* results, void* scratch) override {
    auto* values = static_cast<Real<T>*>(results[0]);
    auto *u = static_cast<T*>(results[1]), *v = static_cast<T*>(results[2]);
    const auto* from = static_cast<const T*>(operands[0]);
    auto* x = static_cast<T*>(scratch);
    auto* work = reinterpret_cast<T*>(static_cast<char*>(scratch) + Begin());
    const int64_t m = s_.a.rows, n = s_.a.columns;
    std::vector<int32_t> infos;
    for (int64_t i = 0; i < s_.a.batch; ++i) {
      Copy(x, from + i * s_.a.size(), s_.a.size() * static_cast<int64_t>(sizeof(T)));
      int64_t info = Info([&] {
        return lapack::gesvd(queue(), s_.job, s_.job, m, n, x, m, values + i * std::min(m, n), u + i * m * s_.u_columns,
                             m, v + i * s_.v_rows * n, LeadingV(), work, scratch_);
      });
      infos.push_back(static_cast<int32_t>(info));
    }
    Copy(results[3], infos.data(), s_.a.batch * static_cast<int64_t>(sizeof(int32_t)));
  }

 private:
  int64_t LeadingV() const { return std::max<int64_t>(1, s_.v_rows); }
  int64_t Begin() const { return (s_.a.size() * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64; }

  SvdShape s_;
  int64_t scratch_;
};

}  // namespace

std::unique_ptr<FerruleCall> PrepareSyevd(FerruleDevice* device, const FerruleCallDesc& desc) {
  Attributes attributes(desc);
  Matrices a = MatricesOf(desc.operands[0]);
  int dtype = desc.operands[0].dtype;
  if (a.rows != a.columns) Refuse("the matrix is not square");
  Expect(desc.results[0], dtype, a.batch * a.size(), "the eigenvectors");
  Expect(desc.results[1], RealType(dtype), a.batch * a.rows, "the eigenvalues");
  Expect(desc.results[2], kS32, a.batch, "info");
  return MakeFor<Syevd>(dtype, device, a, attributes.Int("lower") != 0, attributes.Int("vectors") != 0);
}

std::unique_ptr<FerruleCall> PrepareGesvd(FerruleDevice* device, const FerruleCallDesc& desc) {
  Matrices a = MatricesOf(desc.operands[0]);
  int dtype = desc.operands[0].dtype;
  int64_t least = std::min(a.rows, a.columns);
  std::string vectors = Attributes(desc).Text("vectors");
  SvdShape s{a, mkl::jobsvd::novec, 0, 0};
  if (vectors == "all") {
    s.job = mkl::jobsvd::vectors, s.u_columns = a.rows, s.v_rows = a.columns;
  } else if (vectors == "some") {
    s.job = mkl::jobsvd::somevec, s.u_columns = s.v_rows = least;
  } else if (vectors != "none") {
    Refuse("vectors are 'all', 'some' or 'none', not '" + vectors + "'");
  }
  Expect(desc.results[0], RealType(dtype), a.batch * least, "the singular values");
  if (s.u_columns > 0) {
    Expect(desc.results[1], dtype, a.batch * a.rows * s.u_columns, "u");
    Expect(desc.results[2], dtype, a.batch * s.v_rows * a.columns, "the adjoint of v");
  }
  Expect(desc.results[3], kS32, a.batch, "info");
  return MakeFor<Gesvd>(dtype, device, s);
}

}  // namespace ferrule_sycl

// Cholesky factors.
#include "lapack_call.h"

namespace ferrule_sycl {
namespace {

namespace lapack = oneapi::mkl::lapack;

// Row-major matrices are, column by column, their transposes: the factor of the transpose is the factor's transpose, in
// the other triangle.
template <class T>
class Potrf : public LapackCall {
 public:
  Potrf(FerruleDevice* device, const Matrices& a, bool lower)
      : LapackCall(device), a_(a), uplo_(lower ? oneapi::mkl::uplo::upper : oneapi::mkl::uplo::lower) {
    const int64_t n = a.rows;
    scratch_ = a.batch == 1 ? lapack::potrf_scratchpad_size<T>(queue(), uplo_, n, n)
                            : lapack::potrf_batch_scratchpad_size<T>(queue(), uplo_, n, n, n * n, a.batch);
    scratch_bytes = ScratchBytes<T>(scratch_);
  }

 protected:
  void Work(void* const* operands, void* const* results, void* scratch) override {
    auto *x = static_cast<T*>(results[0]), *work = static_cast<T*>(scratch);
    const int64_t n = a_.rows, bytes = a_.size() * static_cast<int64_t>(sizeof(T));
    Copy(x, operands[0], a_.batch * bytes);
    std::vector<int64_t> failed;
    if (a_.batch == 1) {
      if (Info([&] { return lapack::potrf(queue(), uplo_, n, x, n, work, scratch_); })) failed = {0};
    } else {
      Info([&] { return lapack::potrf_batch(queue(), uplo_, n, x, n, n * n, a_.batch, work, scratch_); }, &failed);
    }
    for (int64_t i : failed) {  // ones in all bits are NaN
      queue().memset(x + i * a_.size(), 0xff, static_cast<size_t>(bytes)).wait();
    }
  }

 private:
  Matrices a_;
  oneapi::mkl::uplo uplo_;
  int64_t scratch_;
};

}  // namespace

std::unique_ptr<FerruleCall> PreparePotrf(FerruleDevice* device, const FerruleCallDesc& desc) {
  Matrices a = MatricesOf(desc.operands[0]);
  if (a.rows != a.columns) Refuse("the matrix is not square");
  Expect(desc.results[0], desc.operands[0].dtype, a.batch * a.size(), "the result");
  return MakeFor<Potrf>(desc.operands[0].dtype, device, a, Attributes(desc).Int("lower") != 0);
}

}  // namespace ferrule_sycl

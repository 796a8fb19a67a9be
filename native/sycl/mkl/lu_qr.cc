// LU factors, QR factors, and the orthogonal matrix of reflectors.
#include "lapack_call.h"

namespace ferrule_sycl {
namespace {

namespace lapack = oneapi::mkl::lapack;

template <class T>
class Getrf : public LapackCall {
 public:
  Getrf(FerruleDevice* device, const Matrices& a) : LapackCall(device), a_(a) {
    const int64_t m = a.rows, n = a.columns;
    scratch_ = a.batch == 1 ? lapack::getrf_scratchpad_size<T>(queue(), m, n, m)
                            : lapack::getrf_batch_scratchpad_size<T>(queue(), m, n, m, m * n, std::min(m, n), a.batch);
    scratch_bytes = ScratchBytes<T>(scratch_);
  }

 protected:
  void Work(void* const* operands, void* const* results, void* scratch) override {
    auto *x = static_cast<T*>(results[0]), *work = static_cast<T*>(scratch);
    auto* pivots = static_cast<int64_t*>(results[1]);
    const int64_t m = a_.rows, n = a_.columns;
    Copy(x, operands[0], a_.batch * a_.size() * static_cast<int64_t>(sizeof(T)));
    // A singular matrix has factors, too: info says only that one of U's diagonal elements is zero.
    Info([&] {
      if (a_.batch == 1) return lapack::getrf(queue(), m, n, x, m, pivots, work, scratch_);
      return lapack::getrf_batch(queue(), m, n, x, m, m * n, pivots, std::min(m, n), a_.batch, work, scratch_);
    });
  }

 private:
  Matrices a_;
  int64_t scratch_;
};

template <class T>
class Geqrf : public LapackCall {
 public:
  Geqrf(FerruleDevice* device, const Matrices& a) : LapackCall(device), a_(a) {
    const int64_t m = a.rows, n = a.columns;
    scratch_ = a.batch == 1 ? lapack::geqrf_scratchpad_size<T>(queue(), m, n, m)
                            : lapack::geqrf_batch_scratchpad_size<T>(queue(), m, n, m, m * n, std::min(m, n), a.batch);
    scratch_bytes = ScratchBytes<T>(scratch_);
  }

 protected:
  void Work(void* const* operands, void* const* results, void* scratch) override {
    auto *x = static_cast<T*>(results[0]), *tau = static_cast<T*>(results[1]), *work = static_cast<T*>(scratch);
    const int64_t m = a_.rows, n = a_.columns;
    Copy(x, operands[0], a_.batch * a_.size() * static_cast<int64_t>(sizeof(T)));
    Info([&] {
      if (a_.batch == 1) return lapack::geqrf(queue(), m, n, x, m, tau, work, scratch_);
      return lapack::geqrf_batch(queue(), m, n, x, m, m * n, tau, std::min(m, n), a_.batch, work, scratch_);
    });
  }

 private:
  Matrices a_;
  int64_t scratch_;
};

template <class T>
class Orgqr : public LapackCall {
 public:
  // `k` reflectors.
  Orgqr(FerruleDevice* device, const Matrices& a, int64_t k) : LapackCall(device), a_(a), k_(k) {
    const int64_t m = a.rows, n = a.columns;
    if constexpr (kIsComplex<T>) {
      scratch_ = a.batch == 1 ? lapack::ungqr_scratchpad_size<T>(queue(), m, n, k, m)
                              : lapack::ungqr_batch_scratchpad_size<T>(queue(), m, n, k, m, m * n, k, a.batch);
    } else {
      scratch_ = a.batch == 1 ? lapack::orgqr_scratchpad_size<T>(queue(), m, n, k, m)
                              : lapack::orgqr_batch_scratchpad_size<T>(queue(), m, n, k, m, m * n, k, a.batch);
    }
    scratch_bytes = ScratchBytes<T>(scratch_);
  }

 protected:
  void Work(void* const* operands, void* const* results, void* scratch) override {
    auto *x = static_cast<T*>(results[0]), *work = static_cast<T*>(scratch);
    const auto* tau = static_cast<const T*>(operands[1]);
    const int64_t m = a_.rows, n = a_.columns, size = a_.size(), batch = a_.batch;
    Copy(x, operands[0], batch * size * static_cast<int64_t>(sizeof(T)));
    Info([&] {
      if constexpr (kIsComplex<T>) {
        if (batch == 1) return lapack::ungqr(queue(), m, n, k_, x, m, tau, work, scratch_);
        return lapack::ungqr_batch(queue(), m, n, k_, x, m, size, tau, k_, batch, work, scratch_);
      } else {
        if (batch == 1) return lapack::orgqr(queue(), m, n, k_, x, m, tau, work, scratch_);
        return lapack::orgqr_batch(queue(), m, n, k_, x, m, size, tau, k_, batch, work, scratch_);
      }
    });
  }

 private:
  Matrices a_;
  int64_t k_, scratch_;
};

}  // namespace

std::unique_ptr<FerruleCall> PrepareGetrf(FerruleDevice* device, const FerruleCallDesc& desc) {
  Matrices a = MatricesOf(desc.operands[0]);
  int dtype = desc.operands[0].dtype;
  Expect(desc.results[0], dtype, a.batch * a.size(), "the factors");
  Expect(desc.results[1], kS64, a.batch * std::min(a.rows, a.columns), "the pivots");
  return MakeFor<Getrf>(dtype, device, a);
}

std::unique_ptr<FerruleCall> PrepareGeqrf(FerruleDevice* device, const FerruleCallDesc& desc) {
  Matrices a = MatricesOf(desc.operands[0]);
  int dtype = desc.operands[0].dtype;
  Expect(desc.results[0], dtype, a.batch * a.size(), "the factors");
  Expect(desc.results[1], dtype, a.batch * std::min(a.rows, a.columns), "tau");
  return MakeFor<Geqrf>(dtype, device, a);
}

std::unique_ptr<FerruleCall> PrepareOrgqr(FerruleDevice* device, const FerruleCallDesc& desc) {
  Matrices a = MatricesOf(desc.operands[0]);
  int dtype = desc.operands[0].dtype;
  int64_t k = ElementsOf(desc.operands[1]) / a.batch;
  if (a.columns > a.rows || k > a.columns || k < 1) Refuse("the reflectors do not fit the matrix");
  Expect(desc.operands[1], dtype, a.batch * k, "tau");
  Expect(desc.results[0], dtype, a.batch * a.size(), "the result");
  return MakeFor<Orgqr>(dtype, device, a, k);
}

}  // namespace ferrule_sycl

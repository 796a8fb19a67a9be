// Library call "eigh": eigenvalues and vectors of one symmetric matrix, as LAPACK's syevd gives them, in whose order of
// elements (columns are adjacent) the matrix and the vectors lie. LAPACK makes the matrix tridiagonal and finds
// the vectors of that; these are turned back by the own matrix product with all threads, for which LAPACK's ormtr on
// one takes a third of the whole time. Without the vectors, of which there is no result then, it is LAPACK's call.
#include <algorithm>
#include <climits>
#include <cmath>
#include <limits>
#include <string>

#include "aligned_scratch.h"
#include "attributes.h"
#include "blas.h"
#include "calls.h"
#include "element.h"
#include "gemm_spread.h"
#include "program.h"
#include "thread_pool.h"
#include "triangular.h"

#pragma GCC optimize("O3")

namespace ferrule {
namespace {

constexpr int64_t kReflectors = 32;  // that are applied at once
constexpr int64_t kVectors = 32;     // that are worth a thread

template <class T>
struct Routines {
  using Syevd = void (*)(const char* job, const char* triangle, const int* n, T* a, const int* lda, T* w, T* work,
                         const int* work_size, int* integers, const int* integers_size, int* info);
  using Sytrd = void (*)(const char* triangle, const int* n, T* a, const int* lda, T* d, T* e, T* tau, T* work,
                         const int* work_size, int* info);
  using Stedc = void (*)(const char* vectors, const int* n, T* d, T* e, T* z, const int* ldz, T* work,
                         const int* work_size, int* integers, const int* integers_size, int* info);

  template <class F>
  static F Find(const char* name) {
    return reinterpret_cast<F>(BlasRoutine(kBlasLetter<T> + std::string(name)));
  }

  Syevd syevd = Find<Syevd>("syevd");
  Sytrd sytrd = Find<Sytrd>("sytrd");
  Stedc stedc = Find<Stedc>("stedc");
};

// The product of the reflections that made a matrix tridiagonal, H(0) H(1) … H(n - 2), where H(i) = 1 - tau v v^T with
// v = 0 in the first i + 1 places but for v[i + 1] = 1, and the rest below the diagonal of column i. A block of them
// is 1 - V S V^T with a triangular S; of a block's V only the rows from `first` on are not zero.
template <class T>
class Reflections {
 public:
  Reflections(const T* a, const T* tau, int64_t n, AlignedScratch& scratch, ThreadPool* pool)
      : n_(n), blocks_((n - 1 + kReflectors - 1) / kReflectors), at_(scratch.Get<T>(2 * blocks_ * kReflectors * n)) {
    gemm::Spread(pool, blocks_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) Make(a, tau, block);
    });
  }

  // Multiplies each of the rows [begin, end), which are vectors, by it.
  void Apply(T* rows, int64_t begin, int64_t end) const {
    static thread_local AlignedScratch scratch;
    T* products = scratch.Get<T>((end - begin) * kReflectors);
    for (int64_t block = blocks_ - 1; block >= 0; --block) {
      const int64_t first = block * kReflectors + 1, length = n_ - first, count = Count(block);
      T* part = rows + begin * n_ + first;
      std::fill_n(products, (end - begin) * count, T(0));
      AddProduct(end - begin, count, length, part, n_, Columns(block), count, products, count);
      AddProduct(end - begin, length, count, products, count, Factors(block), length, part, n_);
    }
  }

 private:
  int64_t Count(int64_t block) const { return std::min(kReflectors, n_ - 1 - block * kReflectors); }
  T* Columns(int64_t block) const { return at_ + 2 * block * kReflectors * n_; }  // V, row by row
  T* Factors(int64_t block) const { return Columns(block) + kReflectors * n_; }   // -S^T V^T

  void Make(const T* a, const T* tau, int64_t block) const {
    const int64_t before = block * kReflectors, first = before + 1, length = n_ - first, count = Count(block);
    T *columns = Columns(block), *factors = Factors(block);
    for (int64_t i = 0; i < count; ++i) {
      const T* column = a + (before + i) * n_ + first;
      for (int64_t r = 0; r < length; ++r) columns[r * count + i] = r < i ? T(0) : r == i ? T(1) : column[r];
    }
    T sums[kReflectors * kReflectors] = {}, s[kReflectors * kReflectors] = {};  // V^T V, S
    for (int64_t r = 0; r < length; ++r) {
      const T* row = columns + r * count;
      for (int64_t i = 0; i < count; ++i) {
        const T x = row[i];
        for (int64_t j = 0; j < count; ++j) sums[i * kReflectors + j] += x * row[j];
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      const T scale = tau[before + i];
      s[i * kReflectors + i] = scale;
      for (int64_t j = 0; j < i; ++j) {
        T sum(0);
        for (int64_t k = j; k < i; ++k) sum += s[j * kReflectors + k] * sums[k * kReflectors + i];
        s[j * kReflectors + i] = -scale * sum;
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      T* to = factors + i * length;
      std::fill_n(to, length, T(0));
      for (int64_t k = 0; k <= i; ++k) {
        const T factor = -s[k * kReflectors + i];
        const T* column = a + (before + k) * n_ + first;
        to[k] += factor;
        for (int64_t r = k + 1; r < length; ++r) to[r] += factor * column[r];
      }
    }
  }

  int64_t n_, blocks_;
  T* at_;
};

template <class T>
class Eigh : public Prepared {
 public:
  Eigh(int64_t n, bool values_only, const Routines<T>& routines)
      : n_(n), values_only_(values_only), routines_(routines) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    static thread_local AlignedScratch a_scratch, work_scratch, integer_scratch, reflections_scratch;
    if (values_only_) {
      const int n = static_cast<int>(n_), integers_size = 1;
      const int work_size = static_cast<int>((2 + kReflectors) * n_ + 1);  // sytrd works in blocks
      T* a = a_scratch.Get<T>(n_ * n_);
      std::copy_n(static_cast<const T*>(operands[0]), n_ * n_, a);
      int integers = 0;
      OneBlasThread one;
      routines_.syevd("N", "L", &n, a, &n, static_cast<T*>(results[0]), work_scratch.Get<T>(work_size), &work_size,
                      &integers, &integers_size, static_cast<int*>(results[1]));
      return Status();
    }
    T *vectors = static_cast<T*>(results[0]), *values = static_cast<T*>(results[1]);
    int* info = static_cast<int*>(results[2]);
    const T* given = static_cast<const T*>(operands[0]);
    const int n = static_cast<int>(n_), integers_size = 3 + 5 * n;
    const int64_t size = std::min<int64_t>(1 + 6 * n_ + 2 * n_ * n_, INT_MAX);
    const int work_size = static_cast<int>(size);
    T* work = work_scratch.Get<T>(size + 2 * n_);
    T *beside = work + size, *tau = beside + n_;
    int* integers = integer_scratch.Get<int>(integers_size);
    *info = 0;
    if (!InRange(given)) {
      if (vectors != given) std::copy_n(given, n_ * n_, vectors);
      OneBlasThread one;
      routines_.syevd("V", "L", &n, vectors, &n, values, work, &work_size, integers, &integers_size, info);
      return Status();
    }
    T* a = a_scratch.Get<T>(n_ * n_);
    std::copy_n(given, n_ * n_, a);
    {
      OneBlasThread one;
      routines_.sytrd("L", &n, a, &n, values, beside, tau, work, &work_size, info);
      if (*info == 0) {
        routines_.stedc("I", &n, values, beside, vectors, &n, work, &work_size, integers, &integers_size, info);
      }
    }
    if (*info != 0) return Status();
    const Reflections<T> reflections(a, tau, n_, reflections_scratch, context.pool);
    const int64_t share = (n_ + context.pool->threads() - 1) / context.pool->threads();
    gemm::Spread(context.pool, n_, std::max(share, kVectors),
                 [&](int64_t begin, int64_t end) { reflections.Apply(vectors, begin, end); });
    return Status();
  }

 private:
  // Whether syevd would not scale the matrix, of which the lower triangle counts, nor find anything but numbers.
  bool InRange(const T* a) const {
    using Limits = std::numeric_limits<T>;
    const T least = std::sqrt(Limits::min() / Limits::epsilon());
    T greatest(0);
    bool numbers = true;
    for (int64_t c = 0; c < n_; ++c) {
      for (int64_t r = c; r < n_; ++r) {
        const T x = std::abs(a[c * n_ + r]);
        numbers &= x <= Limits::max();
        greatest = x > greatest ? x : greatest;
      }
    }
    return numbers && (greatest == 0 || (greatest >= least && greatest <= 1 / least));
  }

  int64_t n_;
  bool values_only_;
  Routines<T> routines_;
};

template <class T>
Result<std::unique_ptr<Prepared>> MakeEigh(Attributes& attributes, int64_t n, bool values_only) {
  const Routines<T> routines;
  if (!routines.syevd || !routines.sytrd || !routines.stedc) {
    attributes.Fail("SciPy's LAPACK, for which this program was compiled, is not there: pip install scipy");
    return attributes.status();
  }
  return std::unique_ptr<Prepared>(new Eigh<T>(n, values_only, routines));
}

Result<std::unique_ptr<Prepared>> PrepareEigh(const CallDesc& call) {
  Attributes attributes(call);
  const bool values_only = call.results.size() == 2;
  attributes.Expect(1, values_only ? 2 : 3);
  FERRULE_RETURN_IF_ERROR(attributes.status());
  const auto& dims = call.operands[0].dims;
  const Element type = ElementOf(call.operands[0]);
  const size_t values = values_only ? 0 : 1, info = values + 1;
  const bool fit = dims.size() == 2 && dims[0] == dims[1] &&
                   (values_only || (call.results[0].dims == dims && ElementOf(call.results[0]) == type)) &&
                   call.results[values].dims == std::vector<int64_t>{dims[0]} && call.results[info].dims.empty() &&
                   ElementOf(call.results[values]) == type && ElementOf(call.results[info]) == Element::kS32;
  if (!fit || dims[0] < 2 || dims[0] > 16384) {
    attributes.Fail("the matrix is not square, or the results do not fit it");
    return attributes.status();
  }
  if (type == Element::kF32) return MakeEigh<float>(attributes, dims[0], values_only);
  if (type == Element::kF64) return MakeEigh<double>(attributes, dims[0], values_only);
  attributes.Fail("the matrix is neither of f32 nor of f64");
  return attributes.status();
}

[[maybe_unused]] const bool registered = RegisterCall("eigh", &PrepareEigh);

}  // namespace
}  // namespace ferrule

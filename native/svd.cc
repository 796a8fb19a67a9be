// Library call "svd": singular values and vectors of batches of row-major matrices, A = U diag(s) V^T, as LAPACK's
// gesdd gives them. A square matrix is made bidiagonal (bidiagonal.h); the singular vectors of that
// (bidiagonal_vectors.h) are turned back by the own products with all threads. What is not square is first factored,
// A = Q R, and a wide matrix transposed.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "aligned_scratch.h"
#include "attributes.h"
#include "bidiagonal.h"
#include "bidiagonal_vectors.h"
#include "blas.h"
#include "calls.h"
#include "element.h"
#include "gemm_spread.h"
#include "program.h"
#include "qr_factor.h"
#include "thread_pool.h"
#include "triangular.h"

#pragma GCC optimize("O3")

namespace ferrule {
namespace {

constexpr int64_t kAlone = 64;  // rows of a bidiagonal matrix that is LAPACK's alone
constexpr int64_t kKept = bidiagonal::kKept;
constexpr int kNotNumbers = -4;  // what gesdd says of a matrix with a NaN

template <class T>
struct Routines {
  using Bdsdc = void (*)(const char* triangle, const char* vectors, const int* n, T* d, T* e, T* u, const int* ldu,
                         T* vt, const int* ldvt, T* q, int* iq, T* work, int* integers, int* info);

  template <class F>
  static F Find(const char* name) {
    return reinterpret_cast<F>(BlasRoutine(kBlasLetter<T> + std::string(name)));
  }

  Bdsdc bdsdc = Find<Bdsdc>("bdsdc");
  bidiagonal::Vectors<T> vectors;
};

struct SvdShape {
  int64_t batch, rows, columns;
  bool vectors, full;
};

template <class T>
class Svd : public Prepared {
 public:
  Svd(const SvdShape& shape, const Routines<T>& routines)
      : s_(shape), wide_(s_.rows < s_.columns), routines_(routines) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    const int64_t least = std::min(s_.rows, s_.columns), matrix = s_.rows * s_.columns;
    const int64_t u = s_.rows * (s_.full ? s_.rows : least), vt = s_.columns * (s_.full ? s_.columns : least);
    const double work = 4.0 * static_cast<double>(matrix) * static_cast<double>(least);
    qr::EachMatrix(context.pool, s_.batch, work, [&](int64_t i, ThreadPool* pool) {
      const T* a = static_cast<const T*>(operands[0]) + i * matrix;
      T* values = static_cast<T*>(results[0]) + i * least;
      int* info = static_cast<int*>(results[s_.vectors ? 3 : 1]) + i;
      if (!s_.vectors) return One(a, values, nullptr, nullptr, info, pool);
      One(a, values, static_cast<T*>(results[1]) + i * u, static_cast<T*>(results[2]) + i * vt, info, pool);
    });
    return Status();
  }

 private:
  void One(const T* given, T* values, T* u, T* vt, int* info, ThreadPool* pool) const {
    static thread_local AlignedScratch kept[3];
    AlignedScratch freed[3], *scratch = std::min(s_.rows, s_.columns) > kKept ? freed : kept;
    const int64_t m = std::max(s_.rows, s_.columns), n = std::min(s_.rows, s_.columns), u_row = s_.full ? m : n;
    const int64_t row = bidiagonal::RowOf<T>(n);
    T* square = scratch[0].Get<T>(n * row);
    // What is square already is where it is made bidiagonal.
    T* a = m == n ? square : scratch[1].Get<T>(m * n + n);
    const int64_t a_row = m == n ? row : n;
    gemm::Spread(pool, m, qr::kSlice, [&](int64_t begin, int64_t end) {
      if (wide_) return Transpose(given + begin, m, n, end - begin, false, a + begin * n, n);
      for (int64_t i = begin; i < end; ++i) {
        std::copy_n(given + i * n, n, a + i * a_row);
        std::fill(a + i * a_row + n, a + (i + 1) * a_row, T(0));
      }
    });
    int exponent = 0;
    *info = ToRange(a, m * a_row, &exponent) ? 0 : kNotNumbers;
    if (*info != 0) return;
    T* tau = a + m * n;  // of what is not square
    if (!s_.vectors || !wide_) {
      Tall(a, m, n, square, row, tau, values, u, u_row, vt, info, pool);
    } else {
      T *left = scratch[2].Get<T>(m * u_row + n * n), *right = left + m * u_row;
      Tall(a, m, n, square, row, tau, values, left, u_row, right, info, pool);
      Transpose(right, n, n, n, false, u, n);
      gemm::Spread(pool, u_row, qr::kSlice, [&](int64_t begin, int64_t end) {
        Transpose(left + begin, u_row, m, end - begin, false, vt + begin * m, m);
      });
    }
    if (exponent != 0) {
      for (int64_t i = 0; i < n; ++i) values[i] = std::ldexp(values[i], exponent);
    }
  }

  // Where the largest element is so far from one that products would leave the range of exponents, a power of two is
  // taken out. False where there is anything but numbers.
  static bool ToRange(T* a, int64_t count, int* exponent) {
    using Limits = std::numeric_limits<T>;
    T greatest(0);
    bool numbers = true;
    for (int64_t i = 0; i < count; ++i) {
      const T x = std::abs(a[i]);
      numbers &= x <= Limits::max();
      greatest = x > greatest ? x : greatest;
    }
    const T least = std::sqrt(Limits::min()) / Limits::epsilon();
    if (!numbers || greatest == 0 || (greatest >= least && greatest <= 1 / least)) return numbers;
    std::frexp(greatest, exponent);
    for (int64_t i = 0; i < count; ++i) a[i] = std::ldexp(a[i], -*exponent);
    return true;
  }

  // A matrix in range of at least as many rows as columns: `a`, which is overwritten, or in `square`.
  void Tall(T* a, int64_t m, int64_t n, T* square, int64_t row, T* tau, T* values, T* u, int64_t u_row, T* vt,
            int* info, ThreadPool* pool) const {
    if (m == n) return Square(square, n, row, values, u, u_row, vt, info, pool);
    const auto scales = qr::CopyScaled(a, n, m, n, a, n, pool);
    qr::FactorLarge(a, m, n, tau, pool);
    scales.Restore(a, n, n);
    for (int64_t i = 0; i < n; ++i) {
      std::fill_n(square + i * row, i, T(0));
      std::copy(a + i * n + i, a + (i + 1) * n, square + i * row + i);
      std::fill(square + i * row + n, square + (i + 1) * row, T(0));
    }
    Square(square, n, row, values, u, u_row, vt, info, pool);
    if (!s_.vectors) return;
    for (int64_t i = 0; i < m; ++i) {
      const int64_t from = i < n ? n : 0;
      std::fill(u + i * u_row + from, u + (i + 1) * u_row, T(0));
      if (i >= n && i < u_row) u[i * u_row + i] = T(1);
    }
    qr::AllReflections<T>(a, n, m, n, tau, pool).Apply(true, false, u, u_row, u_row, pool);
  }

  // A^T = Q B P^T and B = X diag(s) Y^T, with an upper bidiagonal B.
  void Square(T* a, int64_t n, int64_t row, T* values, T* u, int64_t u_row, T* vt, int* info, ThreadPool* pool) const {
    static thread_local AlignedScratch kept, integer_scratch;
    AlignedScratch freed, &scratch = n > kKept ? freed : kept;
    const int size = static_cast<int>(n), leading = static_cast<int>(u_row);
    const int64_t room = !s_.vectors ? 0 : n > kAlone ? n * n : 3 * n * n;
    T* beside = scratch.Get<T>(room + 11 * n);
    T *right = beside + n, *left = right + n, *work = left + n;
    bidiagonal::Bidiagonalize(a, n, values, beside, right, left, pool);
    {
      OneBlasThread one;
      if (s_.vectors && n > kAlone) {
        *info = routines_.vectors.Find(n, values, beside, vt, u, u_row, pool);
      } else {
        routines_.bdsdc("U", s_.vectors ? "I" : "N", &size, values, beside, vt, &size, u, &leading, nullptr, nullptr,
                        work, integer_scratch.Get<int>(8 * n), info);
      }
    }
    if (*info != 0 || !s_.vectors) return;
    // LAPACK's columns are adjacent: row by row, vt has X^T and u has Y. They become X^T Q^T and P Y.
    T* columns = work;
    Transpose(a, row, n, n, false, columns, n);
    qr::AllReflections<T>(columns, n, n, n, right, pool).Apply(false, true, vt, n, n, pool);
    qr::AllReflections<T>(a + row, row, n - 1, n - 1, left, pool).Apply(true, false, u + u_row, u_row, n, pool);
  }

  SvdShape s_;
  bool wide_;
  Routines<T> routines_;
};

template <class T>
Result<std::unique_ptr<Prepared>> MakeSvd(Attributes& attributes, const SvdShape& shape) {
  const Routines<T> routines;
  if (!routines.bdsdc || !routines.vectors) {
    attributes.Fail("SciPy's LAPACK, for which this program was compiled, is not there: pip install scipy");
    return attributes.status();
  }
  return std::unique_ptr<Prepared>(new Svd<T>(shape, routines));
}

Result<std::unique_ptr<Prepared>> PrepareSvd(const CallDesc& call) {
  Attributes attributes(call);
  SvdShape shape{};
  shape.vectors = call.results.size() == 4;
  attributes.Expect(1, shape.vectors ? 4 : 2);
  shape.full = attributes.Bool("full", false);
  FERRULE_RETURN_IF_ERROR(attributes.status());
  const auto& dims = call.operands[0].dims;
  const Element type = ElementOf(call.operands[0]);
  bool fit = dims.size() >= 2;
  if (fit) {
    const std::vector<int64_t> batch(dims.begin(), dims.end() - 2);
    shape.batch = std::accumulate(batch.begin(), batch.end(), int64_t{1}, std::multiplies<>());
    shape.rows = dims[dims.size() - 2], shape.columns = dims.back();
    const int64_t least = std::min(shape.rows, shape.columns);
    auto is = [&](const Shape& given, Element element, std::vector<int64_t> own) {
      own.insert(own.begin(), batch.begin(), batch.end());
      return given.dims == own && ElementOf(given) == element;
    };
    const int64_t u = shape.full ? shape.rows : least, vt = shape.full ? shape.columns : least;
    fit = least > 1 && std::max(shape.rows, shape.columns) <= 1 << 20 && least <= 1 << 14 &&
          is(call.results[0], type, {least}) && is(call.results.back(), Element::kS32, {}) &&
          (!shape.vectors ||
           (is(call.results[1], type, {shape.rows, u}) && is(call.results[2], type, {vt, shape.columns})));
  }
  if (!fit) {
    attributes.Fail("the results' shapes do not fit the matrix");
    return attributes.status();
  }
  if (type == Element::kF32) return MakeSvd<float>(attributes, shape);
  if (type == Element::kF64) return MakeSvd<double>(attributes, shape);
  attributes.Fail("the matrix is neither of f32 nor of f64");
  return attributes.status();
}

[[maybe_unused]] const bool registered = RegisterCall("svd", &PrepareSvd);

}  // namespace
}  // namespace ferrule

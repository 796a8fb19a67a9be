// Library calls "cholesky" and "triangular_solve": LAPACK's potrf and BLAS' trsm where Python handed them over, own
// loops where not and for small matrices. f16 and bf16 are computed in f32. Matrices are row-major: to the column-major
// routines they are their transposes, so upper and lower, left and right change places.
#include <algorithm>
#include <climits>
#include <cmath>
#include <complex>
#include <limits>
#include <type_traits>
#include <vector>

#include "aligned_scratch.h"
#include "attributes.h"
#include "blas.h"
#include "calls.h"
#include "element.h"
#include "program.h"
#include "thread_pool.h"

namespace ferrule {
namespace {

template <class T>
T Conjugate(T x) {
  if constexpr (std::is_floating_point_v<T>) {
    return x;
  } else {
    return std::conj(x);
  }
}

template <class T>
auto RealOf(T x) {
  if constexpr (std::is_floating_point_v<T>) {
    return x;
  } else {
    return x.real();
  }
}

constexpr int64_t kOwnBelow = 24;  // matrices up to this size are faster in the plain loops than through a library

// In place, on the lower triangle of a row-major matrix: A = L * L^H. False when A is not positive definite.
template <class T>
bool OwnCholeskyLower(T* a, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    T* row = a + j * n;
    for (int64_t i = 0; i < j; ++i) {
      const T* other = a + i * n;
      T sum = row[i];
      for (int64_t k = 0; k < i; ++k) sum -= row[k] * Conjugate(other[k]);
      row[i] = sum / RealOf(other[i]);
    }
    auto diagonal = RealOf(row[j]);
    for (int64_t k = 0; k < j; ++k) diagonal -= RealOf(row[k] * Conjugate(row[k]));
    if (!(diagonal > 0)) return false;
    row[j] = T(std::sqrt(diagonal));
  }
  return true;
}

template <class T>
void ConjugateTranspose(T* a, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    a[i * n + i] = Conjugate(a[i * n + i]);
    for (int64_t j = 0; j < i; ++j) {
      T x = Conjugate(a[i * n + j]);
      a[i * n + j] = Conjugate(a[j * n + i]);
      a[j * n + i] = x;
    }
  }
}

template <class T>
bool Factor(T* a, int64_t n, bool lower, PotrfRoutine<T> potrf) {
  if (potrf && n > kOwnBelow && n <= INT_MAX) {
    int size = static_cast<int>(n), info = 0;
    potrf(lower ? "U" : "L", &size, a, &size, &info);
    for (int64_t i = 0; i < n && info == 0; ++i) {
      if (std::isnan(RealOf(a[i * n + i]))) info = 1;  // OpenBLAS takes a NaN for a pivot
    }
    return info == 0;
  }
  if (lower) return OwnCholeskyLower(a, n);
  ConjugateTranspose(a, n);
  bool done = OwnCholeskyLower(a, n);
  ConjugateTranspose(a, n);
  return done;
}

template <class T>
class Cholesky : public Prepared {
 public:
  Cholesky(Element type, int64_t batch, int64_t n, bool lower) : type_(type), batch_(batch), n_(n), lower_(lower) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    PotrfRoutine<T> potrf = LapackPotrf<T>();
    int64_t matrix = n_ * n_, size = SizeOf(type_);
    auto some = [&](int64_t begin, int64_t end) {
      static thread_local AlignedScratch scratch;
      T* a = scratch.Get<T>(matrix);
      for (int64_t i = begin; i < end; ++i) {
        LoadElements(type_, static_cast<const char*>(operands[0]) + i * matrix * size, 1, matrix, a);
        bool done = Factor(a, n_, lower_, potrf);
        using R = decltype(RealOf(T()));
        T nan = T(std::numeric_limits<R>::quiet_NaN());
        if constexpr (!std::is_floating_point_v<T>) nan = T(nan.real(), nan.real());
        for (int64_t r = 0; r < n_; ++r) {
          for (int64_t c = 0; c < n_; ++c) {
            T& x = a[r * n_ + c];
            if (!done) {
              x = nan;
            } else if (lower_ ? c > r : c < r) {
              x = T(0);
            }
          }
        }
        StoreElements(type_, static_cast<char*>(results[0]) + i * matrix * size, 1, matrix, a);
      }
    };
    // A large matrix is the library's to spread; small ones are spread here.
    if (n_ > 256 || batch_ == 1) {
      some(0, batch_);
    } else {
      context.pool->For(batch_, std::max<int64_t>(1, 32768 / (n_ * n_ * n_ + 1)), some);
    }
    return Status();
  }

 private:
  Element type_;
  int64_t batch_, n_;
  bool lower_;
};

enum class Form { kPlain, kTransposed, kAdjoint };

// Element (i, j) of op(A).
template <class T>
T FormOf(const T* a, int64_t n, Form form, int64_t i, int64_t j) {
  if (form == Form::kPlain) return a[i * n + j];
  T x = a[j * n + i];
  return form == Form::kAdjoint ? Conjugate(x) : x;
}

struct SolveShape {
  int64_t batch, n;        // A is n x n
  int64_t rows, columns;   // of B
  bool left, lower, unit;  // lower: A itself, before op
  Form form;
};

// In place in B (row-major): op(A) X = B or X op(A) = B.
template <class T>
void OwnSolve(const SolveShape& s, const T* a, T* b) {
  bool lower = s.lower == (s.form == Form::kPlain);
  bool forward = lower == s.left;  // X op(A) = B with a lower op(A) starts at the last column
  for (int64_t step = 0; step < s.n; ++step) {
    int64_t i = forward ? step : s.n - 1 - step;
    int64_t begin = forward ? 0 : i + 1, end = forward ? i : s.n;
    T pivot = s.unit ? T(1) : FormOf(a, s.n, s.form, i, i);
    if (s.left) {
      T* to = b + i * s.columns;
      for (int64_t k = begin; k < end; ++k) {
        T factor = FormOf(a, s.n, s.form, i, k);
        const T* from = b + k * s.columns;
        for (int64_t c = 0; c < s.columns; ++c) to[c] -= factor * from[c];
      }
      if (!s.unit) {
        for (int64_t c = 0; c < s.columns; ++c) to[c] /= pivot;
      }
    } else {
      for (int64_t r = 0; r < s.rows; ++r) {
        T* row = b + r * s.columns;
        T sum = row[i];
        for (int64_t k = begin; k < end; ++k) sum -= row[k] * FormOf(a, s.n, s.form, k, i);
        row[i] = s.unit ? sum : sum / pivot;
      }
    }
  }
}

template <class T>
class TriangularSolve : public Prepared {
 public:
  TriangularSolve(Element type, const SolveShape& shape) : type_(type), s_(shape) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    TrsmRoutine<T> trsm = BlasTrsm<T>();
    int64_t size = SizeOf(type_), matrix = s_.n * s_.n, right = s_.rows * s_.columns;
    bool library = trsm && s_.n > kOwnBelow && s_.n <= INT_MAX && s_.rows <= INT_MAX && s_.columns <= INT_MAX;
    auto some = [&](int64_t begin, int64_t end) {
      static thread_local AlignedScratch scratch_a, scratch_b;
      for (int64_t i = begin; i < end; ++i) {
        T* a = scratch_a.Get<T>(matrix);
        T* b = scratch_b.Get<T>(right);
        LoadElements(type_, static_cast<const char*>(operands[0]) + i * matrix * size, 1, matrix, a);
        LoadElements(type_, static_cast<const char*>(operands[1]) + i * right * size, 1, right, b);
        if (library) {
          int rows = static_cast<int>(s_.columns), columns = static_cast<int>(s_.rows), n = static_cast<int>(s_.n);
          const char* form = s_.form == Form::kPlain ? "N" : s_.form == Form::kTransposed ? "T" : "C";
          const T one(1);
          trsm(s_.left ? "R" : "L", s_.lower ? "U" : "L", form, s_.unit ? "U" : "N", &rows, &columns, &one, a, &n, b,
               &rows);
        } else {
          OwnSolve(s_, a, b);
        }
        StoreElements(type_, static_cast<char*>(results[0]) + i * right * size, 1, right, b);
      }
    };
    if (s_.n > 256 || s_.batch == 1) {
      some(0, s_.batch);
    } else {
      context.pool->For(s_.batch, std::max<int64_t>(1, 32768 / (s_.n * right + 1)), some);
    }
    return Status();
  }

 private:
  Element type_;
  SolveShape s_;
};

// Makes Call<T> for the type to compute in.
template <template <class> class Call, class... Args>
Result<std::unique_ptr<Prepared>> Make(Attributes& attributes, Element type, Args... args) {
  switch (type) {
    case Element::kF16:
    case Element::kBF16:
    case Element::kF32:
      return std::unique_ptr<Prepared>(new Call<float>(type, args...));
    case Element::kF64:
      return std::unique_ptr<Prepared>(new Call<double>(type, args...));
    case Element::kC64:
      return std::unique_ptr<Prepared>(new Call<std::complex<float>>(type, args...));
    case Element::kC128:
      return std::unique_ptr<Prepared>(new Call<std::complex<double>>(type, args...));
    default:
      attributes.Fail("it is not defined for elements of type " + NameOf(type));
      return attributes.status();
  }
}

Result<std::unique_ptr<Prepared>> PrepareCholesky(const CallDesc& call) {
  Attributes attributes(call);
  attributes.Expect(1, 1);
  bool lower = attributes.Bool("lower", false);
  FERRULE_RETURN_IF_ERROR(attributes.status());
  const auto& dims = call.operands[0].dims;
  if (dims.size() < 2 || dims[dims.size() - 1] != dims[dims.size() - 2]) {
    attributes.Fail("the operand's last two dimensions are not a square matrix");
    return attributes.status();
  }
  int64_t n = dims.back(), batch = 1;
  for (size_t i = 0; i + 2 < dims.size(); ++i) batch *= dims[i];
  return Make<Cholesky>(attributes, ElementOf(call.operands[0]), batch, n, lower);
}

Result<std::unique_ptr<Prepared>> PrepareTriangularSolve(const CallDesc& call) {
  Attributes attributes(call);
  attributes.Expect(2, 1);
  SolveShape shape{};
  shape.left = attributes.Bool("left_side", true);
  shape.lower = attributes.Bool("lower", true);
  shape.unit = attributes.Bool("unit_diagonal", false);
  std::string form = attributes.String("transpose_a", "NO_TRANSPOSE");
  shape.form = form == "TRANSPOSE" ? Form::kTransposed : form == "ADJOINT" ? Form::kAdjoint : Form::kPlain;
  FERRULE_RETURN_IF_ERROR(attributes.status());
  const auto &a = call.operands[0].dims, &b = call.operands[1].dims;
  if (a.size() < 2 || a.size() != b.size() || a[a.size() - 1] != a[a.size() - 2] ||
      a.back() != (shape.left ? b[b.size() - 2] : b.back())) {
    attributes.Fail("the operands' shapes do not fit each other");
    return attributes.status();
  }
  shape.n = a.back();
  shape.rows = b[b.size() - 2], shape.columns = b.back();
  shape.batch = 1;
  for (size_t i = 0; i + 2 < a.size(); ++i) shape.batch *= a[i];
  return Make<TriangularSolve>(attributes, ElementOf(call.operands[0]), shape);
}

[[maybe_unused]] const bool registered =
    RegisterCall("cholesky", &PrepareCholesky) && RegisterCall("triangular_solve", &PrepareTriangularSolve);

}  // namespace
}  // namespace ferrule

// Library calls "cholesky" and "triangular_solve", over batches: own loops (cholesky.h, triangular.h), and where Python
// handed them over and they are faster LAPACK's potrf and BLAS' trsm. f16 and bf16 are computed in f32.
//
// Matrices are row-major: to the column-major routines they are their transposes, so upper and lower, left and right
// change places.
#include <algorithm>
#include <climits>
#include <cmath>
#include <complex>
#include <limits>
#include <type_traits>

#include "aligned_scratch.h"
#include "attributes.h"
#include "blas.h"
#include "calls.h"
#include "cholesky.h"
#include "element.h"
#include "gemm_spread.h"
#include "program.h"
#include "thread_pool.h"
#include "triangular.h"

#pragma GCC optimize("O3")

namespace ferrule {
namespace {

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

// Up to kOwnBelow the plain loops are as fast as a library. OpenBLAS runs on one thread: from some size on the own
// products with all threads are ahead.
constexpr int64_t kOwnBelow = 32, kSolveAlone = 256, kManyColumns = 64;
// Of complex numbers OpenBLAS factors so many rows faster than the own loops, and is asked for the diagonal's blocks.
constexpr int64_t kFactorAlone = 512, kFactorBlock = 256;
constexpr int64_t kOneThread = 256;   // rows, up to which handing parts over takes longer than what is won
constexpr int64_t kCopiedRows = 128;  // that are worth a thread

// The lower triangle of one matrix.
template <class T>
bool FactorLower(T* a, int64_t n, PotrfRoutine<T> potrf, ThreadPool* pool) {
  static thread_local AlignedScratch scratch;
  auto factor = [&](int64_t leaf, const auto& small) {
    return CholeskyLower(a, n, n, leaf, small, scratch.Get<T>(CholeskyAside(n, leaf)), pool);
  };
  if constexpr (std::is_floating_point_v<T>) {
    return factor(kSmallMatrix, SmallMatrix<T>().cholesky);
  } else {
    if (!potrf || n > INT_MAX) return factor(kLeaf, CholeskySmall<T>);
    auto library = [&](T* block, int64_t row, int64_t rows) {
      OneBlasThread one;
      int size = static_cast<int>(rows), leading = static_cast<int>(row), info = 0;
      potrf("U", &size, block, &leading, &info);
      for (int64_t i = 0; i < rows && info == 0; ++i) {
        if (std::isnan(block[i * row + i].real())) info = 1;  // OpenBLAS takes a NaN for a pivot
      }
      return info == 0;
    };
    bool threads = pool && pool->threads() > 1 && n > kFactorAlone;
    return factor(threads ? kFactorBlock : n, library);
  }
}

template <class T>
bool Factor(T* a, int64_t n, bool lower, PotrfRoutine<T> potrf, ThreadPool* pool) {
  if (lower) return FactorLower(a, n, potrf, pool);
  ConjugateTranspose(a, n);
  bool done = FactorLower(a, n, potrf, pool);
  ConjugateTranspose(a, n);
  return done;
}

template <class T>
class Cholesky : public Prepared {
 public:
  Cholesky(Element type, int64_t batch, int64_t n, bool lower) : type_(type), batch_(batch), n_(n), lower_(lower) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    PotrfRoutine<T> potrf = std::is_floating_point_v<T> || n_ <= kOwnBelow ? nullptr : LapackPotrf<T>();
    // A large matrix is spread over the pool by itself; small ones one to a thread.
    bool alone = n_ > kOneThread;
    ThreadPool* pool = alone ? context.pool : nullptr;
    int64_t matrix = n_ * n_, size = SizeOf(type_);
    auto some = [&](int64_t begin, int64_t end) {
      static thread_local AlignedScratch scratch;
      using R = decltype(RealOf(T()));
      T nan = T(std::numeric_limits<R>::quiet_NaN());
      if constexpr (!std::is_floating_point_v<T>) nan = T(nan.real(), nan.real());
      bool direct = type_ == kElementOf<T>;
      for (int64_t i = begin; i < end; ++i) {
        char* to = static_cast<char*>(results[0]) + i * matrix * size;
        T* a = direct ? reinterpret_cast<T*>(to) : scratch.Get<T>(matrix);
        const char* from = static_cast<const char*>(operands[0]) + i * matrix * size;
        gemm::Spread(pool, n_, kCopiedRows, [&](int64_t row, int64_t rows_end) {
          LoadElements(type_, from + row * n_ * size, 1, (rows_end - row) * n_, a + row * n_);
        });
        const bool done = Factor(a, n_, lower_, potrf, pool);
        gemm::Spread(pool, n_, kCopiedRows, [&](int64_t row, int64_t rows_end) {
          for (int64_t r = row; r < rows_end; ++r) {
            T* elements = a + r * n_;
            if (!done) std::fill_n(elements, n_, nan);
            if (done)
              lower_ ? std::fill(elements + r + 1, elements + n_, T(0)) : std::fill(elements, elements + r, T(0));
          }
        });
        if (!direct) StoreElements(type_, to, 1, matrix, a);
      }
    };
    if (alone) {
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

// Up to so many right-hand sides are solved for as vectors, or one for so many rows of the matrix.
constexpr int64_t kFewVectors = 16, kRowsOfEach = 16;
// Unknowns from which they are read where the matrix lies; it need not be turned or copied.
constexpr int64_t kVectorRows = 17;
// With up to so many multiply-adds it is the rearranging for vectors that takes the time.
constexpr int64_t kFewSums = 256;

// In place in x: A X = B. Rows and columns of both lie as the steps between them say.
template <class T>
void SolveFew(bool lower, bool unit, bool conjugate, int64_t n, const T* a, int64_t a_row, int64_t a_column, T* x,
              int64_t x_row, int64_t columns, int64_t x_column) {
  for (int64_t step = 0; step < n; ++step) {
    int64_t i = lower ? step : n - 1 - step, begin = lower ? 0 : i + 1, end = lower ? i : n;
    const T* row = a + i * a_row;
    for (int64_t c = 0; c < columns; ++c) {
      T* column = x + c * x_column;
      T rest = column[i * x_row];
      for (int64_t k = begin; k < end; ++k) {
        T factor = row[k * a_column];
        rest -= (conjugate ? Conjugate(factor) : factor) * column[k * x_row];
      }
      T pivot = row[i * a_column];
      column[i * x_row] = unit ? rest : rest / (conjugate ? Conjugate(pivot) : pivot);
    }
  }
}

struct SolveShape {
  int64_t batch, n;        // A is n x n
  int64_t rows, columns;   // of B
  bool left, lower, unit;  // lower: A itself, before op
  Form form;
};

template <class T>
class TriangularSolve : public Prepared {
 public:
  TriangularSolve(Element type, const SolveShape& shape) : type_(type), s_(shape) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    int64_t size = SizeOf(type_), matrix = s_.n * s_.n, right = s_.rows * s_.columns;
    const int64_t grain = std::max<int64_t>(1, 32768 / (s_.n * right + 1));  // that are worth a thread
    if (type_ == kElementOf<T> && s_.n * right <= kFewSums && results[0] != operands[0]) {
      auto some = [&](int64_t begin, int64_t end) { SolveFewOf(operands, results, begin, end); };
      if (s_.batch <= grain) {
        some(0, s_.batch);
      } else {
        context.pool->For(s_.batch, grain, some);
      }
      return Status();
    }
    if constexpr (std::is_floating_point_v<T>) {
      const int64_t few = std::max(kFewVectors, s_.n / kRowsOfEach);
      if (type_ == kElementOf<T> && s_.n >= kVectorRows && (s_.left ? s_.columns : s_.rows) <= few) {
        SolveVectorsOf(operands, results, context.pool, grain);
        return Status();
      }
    }
    bool one_vector = s_.left ? s_.columns == 1 : s_.rows == 1;
    bool own = s_.n <= kSolveLeaf<T> || s_.n <= kOwnBelow || one_vector ||
               (context.pool->threads() > 1 && s_.n > kSolveAlone &&
                ((s_.left ? s_.columns : s_.rows) >= kManyColumns || s_.n >= 2 * kSolveAlone));
    // To look for it takes as long as a solve of few rows.
    TrsmRoutine<T> trsm = own ? nullptr : BlasTrsm<T>();
    bool library = trsm && s_.n <= INT_MAX && s_.rows <= INT_MAX && s_.columns <= INT_MAX;
    // In the own loops X op(A) = B is op(A)^T X^T = B^T.
    bool transpose_a = s_.left == (s_.form != Form::kPlain), conjugate = s_.form == Form::kAdjoint;
    bool lower = s_.lower != transpose_a;
    int64_t columns = s_.left ? s_.columns : s_.rows;
    // Whole vectors of zeros follow what there is of several columns.
    bool padded = std::is_floating_point_v<T> && !library && !one_vector;
    int64_t lanes = padded ? kSmallLanes<T> : 1, width = (columns + lanes - 1) / lanes * lanes;
    // Rows a multiple of 4 KB apart would share few places of the first cache.
    constexpr int64_t kPage = 4096 / static_cast<int64_t>(sizeof(T));
    if (padded && width % kPage == 0 && s_.n > kSolveLeaf<T>) width += 2 * lanes;
    bool alone = s_.n > 256 || s_.batch == 1;
    auto some = [&](int64_t begin, int64_t end) {
      static thread_local AlignedScratch a_scratch, b_scratch, turned_scratch;
      T* a = a_scratch.Get<T>(matrix);
      T* b = b_scratch.Get<T>(s_.n * width);
      T* turned = turned_scratch.Get<T>(std::max(matrix, right));
      for (int64_t i = begin; i < end; ++i) {
        const char* from = static_cast<const char*>(operands[0]) + i * matrix * size;
        if (library) {
          LoadElements(type_, from, 1, matrix, a);
          LoadElements(type_, static_cast<const char*>(operands[1]) + i * right * size, 1, right, b);
          Trsm(trsm, a, b);
          StoreElements(type_, static_cast<char*>(results[0]) + i * right * size, 1, right, b);
          continue;
        }
        const T* factor = a;
        if (type_ == kElementOf<T>) {
          factor = reinterpret_cast<const T*>(from);
        } else {
          LoadElements(type_, from, 1, matrix, transpose_a ? turned : a);
          factor = transpose_a ? turned : a;
        }
        if (transpose_a) {
          Transpose(factor, s_.n, s_.n, s_.n, conjugate, a, s_.n, alone ? context.pool : nullptr);
          factor = a;
        } else if (conjugate) {
          std::transform(factor, factor + matrix, a, [](T x) { return Conjugate(x); });
          factor = a;
        }
        from = static_cast<const char*>(operands[1]) + i * right * size;
        char* to = static_cast<char*>(results[0]) + i * right * size;
        ThreadPool* pool = alone ? context.pool : nullptr;
        if (s_.left && type_ == kElementOf<T>) {
          Rows(reinterpret_cast<const T*>(from), columns, b, width, pool);
        } else {
          LoadElements(type_, from, 1, right, turned);
          if (s_.left) {
            Rows(turned, columns, b, width, nullptr);
          } else {
            Transpose(turned, s_.columns, s_.rows, s_.columns, false, b, width);
          }
        }
        for (int64_t r = 0; r < s_.n; ++r) std::fill(b + r * width + columns, b + (r + 1) * width, T(0));
        SolveTriangular(lower, s_.unit, s_.n, factor, s_.n, b, width, pool);
        if (s_.left && type_ == kElementOf<T>) {
          Rows(b, width, reinterpret_cast<T*>(to), columns, pool);
          continue;
        }
        if (s_.left) {
          Rows(b, width, turned, columns, nullptr);
        } else {
          Transpose(b, width, s_.columns, s_.rows, false, turned, s_.columns);
        }
        StoreElements(type_, to, 1, right, turned);
      }
    };
    if (alone) {
      some(0, s_.batch);
    } else {
      context.pool->For(s_.batch, grain, some);
    }
    return Status();
  }

 private:
  void SolveFewOf(void* const* operands, void* const* results, int64_t begin, int64_t end) const {
    const T *a = static_cast<const T*>(operands[0]), *b = static_cast<const T*>(operands[1]);
    T* x = static_cast<T*>(results[0]);
    int64_t right = s_.rows * s_.columns;
    if (x != b) std::copy(b + begin * right, b + end * right, x + begin * right);
    bool transpose_a = s_.left == (s_.form != Form::kPlain), conjugate = s_.form == Form::kAdjoint;
    int64_t a_row = transpose_a ? 1 : s_.n, a_column = transpose_a ? s_.n : 1;
    int64_t x_row = s_.left ? s_.columns : 1, x_column = s_.left ? 1 : s_.columns;
    for (int64_t i = begin; i < end; ++i) {
      SolveFew(s_.lower != transpose_a, s_.unit, conjugate, s_.n, a + i * s_.n * s_.n, a_row, a_column, x + i * right,
               x_row, s_.left ? s_.columns : s_.rows, x_column);
    }
  }

  // Few right-hand sides, as vectors: nothing is done to the matrix but to read it.
  void SolveVectorsOf(void* const* operands, void* const* results, ThreadPool* pool, int64_t grain) const {
    constexpr int64_t kPage = 4096 / static_cast<int64_t>(sizeof(T)), kWorth = 1 << 18, kLeast = 4;
    const auto& small = SmallMatrix<T>();
    const int64_t right = s_.rows * s_.columns, count = s_.left ? s_.columns : s_.rows;
    const int64_t padded = s_.n + kSmallLanes<T>, row = padded % kPage ? padded : padded + kSmallLanes<T>;
    const bool turned = s_.left == (s_.form != Form::kPlain), lower = s_.lower != turned;
    const bool shared = s_.batch == 1 && s_.n * s_.n * count >= kWorth;
    gemm::Spread(pool, s_.batch, grain, [&](int64_t begin, int64_t end) {
      static thread_local AlignedScratch vectors;
      T* x = vectors.Get<T>(count * row);
      for (int64_t i = begin; i < end; ++i) {
        const T* a = static_cast<const T*>(operands[0]) + i * s_.n * s_.n;
        const T* b = static_cast<const T*>(operands[1]) + i * right;
        T* to = static_cast<T*>(results[0]) + i * right;
        if (s_.left) small.turn(b, count, s_.n, count, x, row);
        for (int64_t c = 0; c < count && !s_.left; ++c) std::copy_n(b + c * s_.n, s_.n, x + c * row);
        gemm::Spread(shared ? pool : nullptr, count, kLeast, [&](int64_t first, int64_t last) {
          static thread_local AlignedScratch scratch;
          T* sums = turned ? scratch.Get<T>(kSolvedVectors * row) : nullptr;
          small.solve_vectors(lower, s_.unit, turned, s_.n, a, s_.n, last - first, x + first * row, row, sums);
        });
        if (s_.left) small.turn(x, row, count, s_.n, to, count);
        for (int64_t c = 0; c < count && !s_.left; ++c) std::copy_n(x + c * row, s_.n, to + c * s_.n);
      }
    });
  }

  // What two matrices of n rows have in common.
  void Rows(const T* from, int64_t from_row, T* to, int64_t to_row, ThreadPool* pool) const {
    const int64_t columns = std::min(from_row, to_row), grain = (1 << 15) / std::max<int64_t>(1, columns) + 1;
    gemm::Spread(pool, s_.n, grain, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) std::copy_n(from + r * from_row, columns, to + r * to_row);
    });
  }

  void Trsm(TrsmRoutine<T> trsm, const T* a, T* b) const {
    int rows = static_cast<int>(s_.columns), columns = static_cast<int>(s_.rows), n = static_cast<int>(s_.n);
    const char* form = s_.form == Form::kPlain ? "N" : s_.form == Form::kTransposed ? "T" : "C";
    const T one(1);
    OneBlasThread thread;
    trsm(s_.left ? "R" : "L", s_.lower ? "U" : "L", form, s_.unit ? "U" : "N", &rows, &columns, &one, a, &n, b, &rows);
  }

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

// Library calls "geqrf", "householder_product" and "ormqr", over batches of row-major matrices: QR factorizations and
// the products of their reflections, with the answers of LAPACK's routines (geqrf, orgqr and ungqr, ormqr and unmqr).
//
// Matrices of a few vectors' columns are one panel (qr_kernel.h), one matrix in each thread. Others are factored in
// blocks of columns (qr_factor.h).
#include <algorithm>
#include <numeric>
#include <vector>

#include "aligned_scratch.h"
#include "attributes.h"
#include "calls.h"
#include "element.h"
#include "gemm_spread.h"
#include "program.h"
#include "qr_factor.h"
#include "qr_reflections.h"
#include "thread_pool.h"

#pragma GCC optimize("O3")

namespace ferrule {
namespace qr {
namespace {

template <class T>
void FactorSmall(const T* from, int64_t rows, int64_t columns, T* to, T* tau) {
  static thread_local AlignedScratch scratch;
  const int64_t vectors = VectorsOf<T>(columns), width = vectors * Functions<T>().lanes;
  T* panel = scratch.Get<T>(rows * width);
  if (width > columns) {
    for (int64_t i = 0; i < rows; ++i) std::fill_n(panel + i * width + columns, width - columns, T(0));
  }
  const Scales<T> scales = CopyScaled(from, columns, rows, columns, panel, width, nullptr);
  Functions<T>().factor(panel, vectors, rows, std::min(rows, columns), tau);
  scales.Restore(panel, width, rows);
  for (int64_t i = 0; i < rows; ++i) std::copy_n(panel + i * width, columns, to + i * columns);
}

template <class T>
void GenerateSmall(const T* a, int64_t rows, int64_t columns, int64_t steps, const T* tau, T* q) {
  static thread_local AlignedScratch scratch;
  const int64_t vectors = VectorsOf<T>(columns), width = vectors * Functions<T>().lanes;
  if (width == columns) return Functions<T>().generate(a, columns, rows, steps, tau, q, vectors);
  T* panel = scratch.Get<T>(rows * width);
  Functions<T>().generate(a, columns, rows, steps, tau, panel, vectors);
  for (int64_t i = 0; i < rows; ++i) std::copy_n(panel + i * width, columns, q + i * columns);
}

template <class T>
void GenerateLarge(const T* a, int64_t rows, int64_t columns, int64_t steps, const T* tau, T* q, ThreadPool* pool) {
  const AllReflections<T> all(a, columns, rows, steps, tau, pool);
  for (int64_t i = 0; i < rows && steps < columns; ++i) {
    std::fill(q + i * columns + steps, q + (i + 1) * columns, T(0));
    if (i >= steps && i < columns) q[i * columns + i] = T(1);
  }
  const int64_t threads = pool ? pool->threads() : 1;
  int64_t start = steps;
  for (size_t block = all.blocks().size(); block-- > 0;) {
    const Reflections<T>& some = all.blocks()[block];
    start -= some.count();
    T* corner = q + start * columns + start;
    const int64_t rest = columns - start - some.count();
    const int64_t slices = threads == 1 ? rest > 0 : std::clamp<int64_t>(rest / kSlice, rest > 0, 3 * threads);
    for (int64_t i = 0; i < start; ++i) std::fill_n(q + i * columns + start, some.count(), T(0));
    gemm::Spread(pool, 1 + slices, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (i == slices) {
          some.Columns(corner, columns, slices == 0 ? pool : nullptr);
        } else {
          const int64_t from = gemm::Border(rest, slices, 16, i), to = gemm::Border(rest, slices, 16, i + 1);
          if (from < to) some.ApplyBelow(corner + some.count() + from, columns, to - from);
        }
      }
    });
  }
}

// One reflection after the other on few columns from the left, as for a least-squares problem's right side: blocks of
// reflections would take longer to make than these to apply.
template <class T>
void ApplyToFew(const T* a, int64_t rows, int64_t columns, int64_t steps, const T* tau, bool adjoint, T* c,
                int64_t c_columns) {
  static thread_local AlignedScratch scratch;
  const auto& kernels = FloatKernels<T>();
  T* vectors = scratch.Get<T>((steps + c_columns) * rows + c_columns);
  T *sides = vectors + steps * rows, *factors = sides + c_columns * rows;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t k = 0; k < std::min(i, steps); ++k) vectors[k * rows + i] = a[i * columns + k];
    if (i < steps) vectors[i * rows + i] = T(1);
    for (int64_t j = 0; j < c_columns; ++j) sides[j * rows + i] = c[i * c_columns + j];
  }
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t k = adjoint ? step : steps - 1 - step;
    if (tau[k] == T(0)) continue;  // none, whatever stands in the sides
    const T* v = vectors + k * rows + k;
    T* rest = sides + k;
    kernels.dots[0](rows - k, c_columns, v, 0, rest, rows, factors, 0, 1);
    for (int64_t j = 0; j < c_columns; ++j) {
      const T factor = -tau[k] * factors[j];
      kernels.add_rows(1, rows - k, &factor, 0, v, 0, rest + j * rows);
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < c_columns; ++j) c[i * c_columns + j] = sides[j * rows + i];
  }
}

struct QrShape {
  int64_t batch, rows, columns, steps;  // steps: the reflections
  int64_t c_rows = 0, c_columns = 0;    // of what they are applied to
  bool left = true, adjoint = false;
};

double WorkOf(const QrShape& s) { return 2.0 * static_cast<double>(s.rows) * s.columns * s.steps; }

template <class T>
class Geqrf : public Prepared {
 public:
  explicit Geqrf(const QrShape& shape) : s_(shape) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    const int64_t matrix = s_.rows * s_.columns;
    EachMatrix(context.pool, s_.batch, WorkOf(s_), [&](int64_t i, ThreadPool* pool) {
      const T* from = static_cast<const T*>(operands[0]) + i * matrix;
      T *to = static_cast<T*>(results[0]) + i * matrix, *tau = static_cast<T*>(results[1]) + i * s_.steps;
      if (IsSmall<T>(s_.rows, s_.columns)) return FactorSmall(from, s_.rows, s_.columns, to, tau);
      const Scales<T> scales = CopyScaled(from, s_.columns, s_.rows, s_.columns, to, s_.columns, pool);
      FactorLarge(to, s_.rows, s_.columns, tau, pool);
      scales.Restore(to, s_.columns, s_.rows);
    });
    return Status();
  }

 private:
  QrShape s_;
};

template <class T>
class HouseholderProduct : public Prepared {
 public:
  explicit HouseholderProduct(const QrShape& shape) : s_(shape) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    const int64_t matrix = s_.rows * s_.columns;
    EachMatrix(context.pool, s_.batch, WorkOf(s_), [&](int64_t i, ThreadPool* pool) {
      const T* a = static_cast<const T*>(operands[0]) + i * matrix;
      const T* tau = static_cast<const T*>(operands[1]) + i * s_.steps;
      T* q = static_cast<T*>(results[0]) + i * matrix;
      if (IsSmall<T>(s_.rows, s_.columns)) return GenerateSmall(a, s_.rows, s_.columns, s_.steps, tau, q);
      GenerateLarge(a, s_.rows, s_.columns, s_.steps, tau, q, pool);
    });
    return Status();
  }

 private:
  QrShape s_;
};

template <class T>
class Ormqr : public Prepared {
 public:
  explicit Ormqr(const QrShape& shape) : s_(shape) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    const int64_t matrix = s_.rows * s_.columns, other = s_.c_rows * s_.c_columns;
    EachMatrix(context.pool, s_.batch, 2.0 * static_cast<double>(other) * s_.steps, [&](int64_t i, ThreadPool* pool) {
      const T* a = static_cast<const T*>(operands[0]) + i * matrix;
      const T* tau = static_cast<const T*>(operands[1]) + i * s_.steps;
      const T* from = static_cast<const T*>(operands[2]) + i * other;
      T* c = static_cast<T*>(results[0]) + i * other;
      if (c != from) std::copy_n(from, other, c);
      if (s_.left && s_.c_columns <= kFewSides && s_.rows * s_.steps <= kNearReflections) {
        return ApplyToFew(a, s_.rows, s_.columns, s_.steps, tau, s_.adjoint, c, s_.c_columns);
      }
      const AllReflections<T> all(a, s_.columns, s_.rows, s_.steps, tau, pool);
      all.Apply(s_.left, s_.adjoint, c, s_.c_columns, s_.left ? s_.c_columns : s_.c_rows, pool);
    });
    return Status();
  }

 private:
  static constexpr int64_t kFewSides = 8, kNearReflections = 1 << 20;

  QrShape s_;
};

template <template <class> class Call>
Result<std::unique_ptr<Prepared>> Make(Attributes& attributes, Element type, const QrShape& shape) {
  if (type == Element::kF32) return std::unique_ptr<Prepared>(new Call<float>(shape));
  if (type == Element::kF64) return std::unique_ptr<Prepared>(new Call<double>(shape));
  attributes.Fail("it is not defined for elements of type " + NameOf(type));
  return attributes.status();
}

// Reads matrices[…][rows][columns] and taus[…][steps] with the same leading dimensions; false where they do not fit.
bool ReadShape(const Shape& a, const Shape& taus, QrShape* shape) {
  const auto &dims = a.dims, &tau = taus.dims;
  if (dims.size() < 2 || tau.size() + 1 != dims.size() || a.dtype != taus.dtype) return false;
  shape->columns = dims.back(), shape->rows = dims[dims.size() - 2], shape->steps = tau.back();
  shape->batch = std::accumulate(dims.begin(), dims.end() - 2, int64_t{1}, std::multiplies<>());
  return std::equal(tau.begin(), tau.end() - 1, dims.begin()) && shape->steps <= std::min(shape->rows, shape->columns);
}

Result<std::unique_ptr<Prepared>> PrepareGeqrf(const CallDesc& call) {
  Attributes attributes(call);
  attributes.Expect(1, 2);
  FERRULE_RETURN_IF_ERROR(attributes.status());
  QrShape shape{};
  if (!ReadShape(call.operands[0], call.results[1], &shape) || call.results[0].dims != call.operands[0].dims ||
      call.results[0].dtype != call.operands[0].dtype || shape.steps != std::min(shape.rows, shape.columns)) {
    attributes.Fail("the results' shapes do not fit the matrix");
    return attributes.status();
  }
  return Make<Geqrf>(attributes, ElementOf(call.operands[0]), shape);
}

Result<std::unique_ptr<Prepared>> PrepareProduct(const CallDesc& call) {
  Attributes attributes(call);
  attributes.Expect(2, 1);
  FERRULE_RETURN_IF_ERROR(attributes.status());
  QrShape shape{};
  if (!ReadShape(call.operands[0], call.operands[1], &shape) || call.results[0].dims != call.operands[0].dims ||
      call.results[0].dtype != call.operands[0].dtype || shape.rows < shape.columns) {
    attributes.Fail("the shapes do not fit each other");
    return attributes.status();
  }
  return Make<HouseholderProduct>(attributes, ElementOf(call.operands[0]), shape);
}

Result<std::unique_ptr<Prepared>> PrepareOrmqr(const CallDesc& call) {
  Attributes attributes(call);
  attributes.Expect(3, 1);
  QrShape shape{};
  shape.left = attributes.Bool("left", true);
  shape.adjoint = attributes.Bool("adjoint", false);
  FERRULE_RETURN_IF_ERROR(attributes.status());
  const auto &a = call.operands[0].dims, &c = call.operands[2].dims;
  bool fit = ReadShape(call.operands[0], call.operands[1], &shape) && c.size() == a.size() &&
             std::equal(a.begin(), a.end() - 2, c.begin()) && call.results[0].dims == c &&
             call.operands[2].dtype == call.operands[0].dtype && call.results[0].dtype == call.operands[0].dtype;
  if (fit) {
    shape.c_rows = c[c.size() - 2], shape.c_columns = c.back();
    fit = (shape.left ? shape.c_rows : shape.c_columns) == shape.rows;
  }
  if (!fit) {
    attributes.Fail("the shapes do not fit each other");
    return attributes.status();
  }
  return Make<Ormqr>(attributes, ElementOf(call.operands[0]), shape);
}

[[maybe_unused]] const bool registered = RegisterCall("geqrf", &PrepareGeqrf) &&
                                         RegisterCall("householder_product", &PrepareProduct) &&
                                         RegisterCall("ormqr", &PrepareOrmqr);

}  // namespace
}  // namespace qr
}  // namespace ferrule

// Library call "gemm.pair": T = A * X for each matrix of a batch, and D = C * R, as two dimensions of images are
// resized. Each R is a row of T taken as a matrix (the first dimension goes first), or each of its rows is one of T's
// matrices. With `right`, or `then_right`, the product is X * A, or T * C, which is the transposed weights times each
// row. Where A and C are mostly zeros, what C takes of T stays in a cache. The last result is memory for T, where it is
// needed.
#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "aligned_scratch.h"
#include "attributes.h"
#include "calls.h"
#include "gemm_call.h"
#include "gemm_terms.h"
#include "program.h"
#include "small_matrix_tables.h"

namespace ferrule {
namespace {

using namespace sparse;

constexpr int64_t kSlotBytes = 1 << 18;  // of matrices that are kept
constexpr int64_t kFewestRows = 8;       // of sums in one part; the next part forms a few of its matrices again

// A product of which the weights, given first, may be the right side: then `shape` is of them and each row.
struct Half {
  GemmShape shape;
  bool right;
  std::unique_ptr<Prepared> dense;

  Status Run(const void* weights, const void* x, void* d, ExecContext& context) const {
    void* sides[] = {const_cast<void*>(weights), const_cast<void*>(x)};
    if (right) std::swap(sides[0], sides[1]);
    return dense->Run(sides, &d, context);
  }
};

template <class T>
class Pair : public Prepared {
 public:
  Pair(Half first, Half second)
      : s_(first.shape), t_(second.shape), first_(std::move(first)), second_(std::move(second)) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    if (Sparse(operands[0], operands[1], operands[2], static_cast<T*>(results[0]), context.pool)) return Status();
    FERRULE_RETURN_IF_ERROR(first_.Run(operands[0], operands[1], results[1], context));
    return second_.Run(operands[2], results[1], results[0], context);
  }

 private:
  static Side<T> Left(const GemmShape& s, const void* data) {
    return {static_cast<const T*>(data), s.m, s.k, s.a_row, s.a_col};
  }

  // False where the results are not those of the products: a side is not sparse after all, or a zero may have met what
  // is not finite.
  bool Sparse(const void* a, const void* x, const void* c, T* d, ThreadPool* pool) const {
    if (t_.batch == 0) return true;
    const Side<T> sides[] = {Left(s_, a), Left(t_, c)};
    Terms<T> terms[2];
    std::atomic<bool> sparse = true;
    gemm::Spread(pool, 2, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end && sparse; ++i) {
        if (!LooksSparse(sides[i], kRare) || !terms[i].ListRare(sides[i])) sparse = false;
      }
    });
    if (!sparse) return false;
    auto* images = static_cast<const T*>(x);
    if (t_.batch > s_.batch) return EachRow(terms[0], terms[1], images, d, pool);
    return EachMatrix(terms[0], terms[1], images, d, pool);
  }

  // Sums of single elements of each row of x: up to Rows() of them lie side by side in vectors meanwhile.
  class Turned {
   public:
    static int64_t Rows() { return FloatKernels<T>().columns; }

    // d[row][m] of x[row][k], whose rows are x_row apart.
    void operator()(const GemmShape& s, const Terms<T>& terms, int64_t rows, const T* x, int64_t x_row, T* d) {
      constexpr int64_t kColumns = 256;
      const auto& kernels = FloatKernels<T>();
      const int64_t width = Rows();
      T* beside = beside_.Get<T>(width * s.k);
      T* sums = sums_.Get<T>(width * kColumns);
      kernels.pack_columns(x, x_row, s.b_row, rows, s.k, beside);
      for (int64_t j = 0; j < s.m; j += kColumns) {
        const int64_t columns = std::min(kColumns, s.m - j);
        kernels.combine(columns, terms.starts.data() + j, terms.at.data(), terms.value.data(), beside, width, width,
                        sums, width);
        SmallMatrix<T>().turn(sums, width, columns, rows, d + j, s.m);
      }
    }

   private:
    AlignedScratch beside_, sums_;
  };

  struct Scratch {
    AlignedScratch between;
    Turned turned;
  };
  static Scratch& ThreadScratch() {
    static thread_local Scratch scratch;
    return scratch;
  }

  // A row of T is a matrix R.
  bool EachRow(const Terms<T>& first, const Terms<T>& second, const T* x, T* d, ThreadPool* pool) const {
    const auto& kernels = FloatKernels<T>();
    const int64_t at_once = t_.n == 1 ? Turned::Rows() : 1, row = 2 * (s_.n + t_.m * t_.n);
    const int64_t unit = RoundUp(kWorthATask / row + 1, at_once), parts = DivideUp(s_.m, unit);
    std::atomic<bool> finite = true;
    gemm::Spread(pool, s_.batch * parts, 1, [&](int64_t begin, int64_t end) {
      Scratch& scratch = ThreadScratch();
      T* sums = scratch.between.template Get<T>(at_once * s_.n);
      for (int64_t i = begin; i < end && finite.load(std::memory_order_relaxed); ++i) {
        const int64_t batch = i / parts, part = i % parts, stop = std::min(s_.m, (part + 1) * unit);
        const T* b = x + batch * s_.b_batch;
        // Each row of X is looked at once, by the part whose it is, where possible before its terms are added up.
        int64_t seen = s_.k * part / parts;
        const int64_t last = s_.k * (part + 1) / parts;
        auto look = [&](int64_t to) {
          if (to > seen && !AllFinite(b + seen * s_.b_row, to - seen, s_.n, s_.b_row, nullptr)) finite = false;
          seen = std::max(seen, to);
        };
        for (int64_t r = part * unit; r < stop; r += at_once) {
          const int64_t rows = std::min(at_once, stop - r);
          for (int64_t next = r; next < r + rows; ++next) look(std::min(last, first.End(next)));
          kernels.combine(rows, first.starts.data() + r, first.at.data(), first.value.data(), b, s_.b_row, s_.n, sums,
                          s_.n);
          if (!kernels.finite(rows * s_.n, sums)) finite = false;  // sums of large numbers
          T* to = d + (batch * s_.m + r) * t_.m * t_.n;
          if (t_.n == 1) {
            scratch.turned(t_, second, rows, sums, s_.n, to);
          } else {
            kernels.combine(t_.m, second.starts.data(), second.at.data(), second.value.data(), sums, t_.n, t_.n, to,
                            t_.n);
          }
        }
        look(last);
      }
    });
    return finite;
  }

  // A matrix of T is a row of R, and sums of neighbours take neighbours: the last few are kept, each in the slot of its
  // number.
  bool EachMatrix(const Terms<T>& first, const Terms<T>& second, const T* x, T* d, ThreadPool* pool) const {
    const auto& kernels = FloatKernels<T>();
    int64_t behind = 0;
    const int64_t at_once = s_.n == 1 ? Turned::Rows() : 1, apart = second.Apart(&behind);
    const int64_t slots = RoundUp(apart + at_once - 1, at_once);
    if (slots * t_.n * static_cast<int64_t>(sizeof(T)) > kSlotBytes) return false;
    std::vector<int32_t> slot(second.at.size());
    for (size_t i = 0; i < slot.size(); ++i) slot[i] = second.at[i] % static_cast<int32_t>(slots);
    const int64_t most = std::min(DivideUp(t_.m, kFewestRows), DivideUp(2 * t_.m * t_.n, kWorthATask));
    const int64_t threads = pool ? pool->threads() : 1, parts = std::min(most, DivideUp(4 * threads, t_.batch));
    std::atomic<bool> finite = true;
    gemm::Spread(pool, t_.batch * parts, 1, [&](int64_t begin, int64_t end) {
      Scratch& scratch = ThreadScratch();
      T* kept = scratch.between.template Get<T>(slots * t_.n);
      for (int64_t i = begin; i < end && finite.load(std::memory_order_relaxed); ++i) {
        const int64_t batch = i / parts, part = i % parts, rows = t_.m * (part + 1) / parts;
        // Each matrix of X is looked at by the part whose it is, which takes it, too: its sums may not be finite.
        const int64_t from = t_.k * part / parts, last = t_.k * (part + 1) / parts;
        int64_t next = from;
        for (int64_t r = t_.m * part / parts; r < rows; ++r) next = std::min(next, second.Begin(r));
        next -= next % at_once;
        auto take = [&](int64_t to) {
          for (int64_t count; next < to; next += count) {
            count = std::min(at_once, t_.k - next);
            const T* b = x + (batch * t_.k + next) * s_.b_batch;
            T* sums = kept + next % slots * t_.n;
            for (int64_t m = std::max(next, from); m < std::min(next + count, last); ++m) {
              if (!AllFinite(b + (m - next) * s_.b_batch, s_.k, s_.n, s_.b_row, nullptr)) finite = false;
            }
            if (s_.n == 1) {
              scratch.turned(s_, first, count, b, s_.b_batch, sums);
            } else {
              kernels.combine(s_.m, first.starts.data(), first.at.data(), first.value.data(), b, s_.b_row, s_.n, sums,
                              s_.n);
            }
            if (!kernels.finite(count * t_.n, sums)) finite = false;
          }
        };
        for (int64_t r = t_.m * part / parts; r < rows; ++r) {
          take(second.End(r));
          kernels.combine(1, second.starts.data() + r, slot.data(), second.value.data(), kept, t_.n, t_.n,
                          d + (batch * t_.m + r) * t_.n, t_.n);
        }
        take(last);
      }
    });
    return finite;
  }

  GemmShape s_, t_;
  Half first_, second_;
};

// As the weights and each row of the other side; the weights are the right one.
GemmShape ByRows(const GemmShape& all) {
  GemmShape s = all;
  s.batch = all.batch == 1 ? all.m : -1, s.m = all.n, s.n = 1;
  s.a_batch = all.b_batch, s.a_row = all.b_col, s.a_col = all.b_row;
  s.b_batch = all.a_row, s.b_row = all.a_col, s.b_col = 1;
  return s;
}

Result<std::unique_ptr<Prepared>> PreparePair(const CallDesc& call) {
  Attributes attributes(call);
  attributes.Expect(3, 2);
  FERRULE_RETURN_IF_ERROR(attributes.status());
  CallDesc calls[2];
  calls[0].operands = {call.operands[0], call.operands[1]}, calls[0].results = {call.results[1]};
  calls[1].operands = {call.operands[2], call.results[1]}, calls[1].results = {call.results[0]};
  if (!call.sources.empty()) {
    calls[0].sources = {call.sources[0], call.sources[1]}, calls[1].sources = {call.sources[2], {}};
  }
  const std::string then = "then_";
  for (const auto& [name, value] : call.attrs) {
    if (name.rfind(then, 0) == 0) {
      calls[1].attrs[name.substr(then.size())] = value;
    } else {
      calls[0].attrs[name] = value;
    }
  }
  Half halves[2];
  for (int i = 0; i < 2; ++i) {
    Attributes of_one(calls[i]);
    halves[i].right = of_one.Int("right", 0) != 0;
    if (halves[i].right) {
      std::swap(calls[i].operands[0], calls[i].operands[1]);
      if (!calls[i].sources.empty()) std::swap(calls[i].sources[0], calls[i].sources[1]);
    }
    halves[i].shape = GemmShapeOf(calls[i], calls[i].results[0], &of_one);
    FERRULE_RETURN_IF_ERROR(of_one.status());
    calls[i].target = "gemm";
    auto dense = FindCall("gemm")(calls[i]);
    FERRULE_RETURN_IF_ERROR(dense.status());
    halves[i].dense = std::move(*dense);
    if (halves[i].right) halves[i].shape = ByRows(halves[i].shape);
  }
  const GemmShape &s = halves[0].shape, &t = halves[1].shape;
  const bool by_row = t.batch == s.batch * s.m && s.n == t.k * t.n;
  const bool by_matrix = s.batch == t.batch * t.k && t.n == s.m * s.n;
  const bool fits = (by_row || by_matrix) && s.a_batch == 0 && t.a_batch == 0 && s.b_col == 1 &&
                    t.b_batch == t.k * t.n && t.b_row == t.n && t.b_col == 1 && std::max(s.k, t.k) <= INT32_MAX;
  const bool types = s.a_type == s.b_type && s.a_type == s.d_type && s.a_type == t.a_type && s.a_type == t.d_type &&
                     (s.a_type == Element::kF32 || s.a_type == Element::kF64);
  if (!fits || !types || std::min({s.m, s.k, t.m, t.k}) < kLeast || t.n < 1) {
    attributes.Fail("the products do not fit");
    return attributes.status();
  }
  if (s.a_type == Element::kF64) {
    return std::unique_ptr<Prepared>(new Pair<double>(std::move(halves[0]), std::move(halves[1])));
  }
  return std::unique_ptr<Prepared>(new Pair<float>(std::move(halves[0]), std::move(halves[1])));
}

[[maybe_unused]] const bool registered = RegisterCall("gemm.pair", &PreparePair);

}  // namespace
}  // namespace ferrule

// Library call "gemm.ragged": products of groups of rows, each with a matrix of its own (passes/ragged.py). Group g is
// the rows from start[g] to end[g], which may be anything; a row may belong to no group or to several.
//   rows   D[m][n] = sum over the groups of row m, and over k, of A[m][k] * B[g][k][n]
//   sums   D[g][m][n] = sum over the rows k of group g of A[m][k] * B[k][n]
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "attributes.h"
#include "calls.h"
#include "gemm_blocked.h"
#include "program.h"
#include "thread_pool.h"

namespace ferrule {
namespace {

// Multiply-adds of a group below which each group is one thread's; elements that are looked at by one thread.
constexpr int64_t kThreadGroup = 1 << 21, kThreadLook = 1 << 16;

struct Rows {
  int64_t begin, end;
  int64_t count() const { return end - begin; }
};

// The groups' rows among `rows`; those of an empty group are 0 to 0.
std::vector<Rows> Groups(const void* start, const void* end, int64_t groups, int64_t rows) {
  const auto *from = static_cast<const int32_t*>(start), *to = static_cast<const int32_t*>(end);
  std::vector<Rows> found;
  for (int64_t g = 0; g < groups; ++g) {
    Rows r{std::max<int64_t>(from[g], 0), std::min<int64_t>(to[g], rows)};
    found.push_back(r.begin < r.end ? r : Rows{0, 0});
  }
  return found;
}

template <class T>
bool AllFinite(const T* x, int64_t n, ThreadPool* pool) {
  std::atomic<bool> finite{true};
  pool->For(n, kThreadLook, [&](int64_t begin, int64_t end) {
    T sum = 0;  // 0 * x is 0, or NaN
    for (int64_t i = begin; i < end; i += 256) {
      const int64_t stop = std::min(end, i + 256);
      T lanes[8] = {};
      int64_t j = i;
      for (; j + 8 <= stop; j += 8) {
        for (int64_t l = 0; l < 8; ++l) lanes[l] += x[j + l] * 0;
      }
      for (; j < stop; ++j) sum += x[j] * 0;
      for (T lane : lanes) sum += lane;
    }
    if (sum != 0) finite.store(false, std::memory_order_relaxed);
  });
  return finite.load();
}

template <class T>
class Ragged : public Prepared {
 public:
  Ragged(const GemmShape& shape, Accumulator accumulator, int64_t groups, int64_t b_group, bool sums)
      : shape_(shape), accumulator_(accumulator), groups_(groups), b_group_(b_group), sums_(sums) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    const auto *a = static_cast<const T*>(operands[0]), *b = static_cast<const T*>(operands[1]);
    auto* d = static_cast<T*>(results[0]);
    std::vector<Rows> groups = Groups(operands[2], operands[3], groups_, sums_ ? shape_.k : shape_.m);
    const bool apart = sums_ || Apart(groups);
    if (!apart) std::fill_n(d, shape_.m * shape_.n, T(0));
    if (apart && !sums_) ClearBetween(groups, d);
    auto some = [&](int64_t begin, int64_t end, ThreadPool* pool) {
      for (int64_t g = begin; g < end; ++g)
        sums_ ? Sum(g, groups[g], a, b, d, pool) : Multiply(g, groups[g], a, b, d, !apart, pool);
    };
    if (apart && shape_.m * shape_.n * shape_.k < groups_ * kThreadGroup) {
      context.pool->For(groups_, 1, [&](int64_t begin, int64_t end) { some(begin, end, nullptr); });
    } else {
      some(0, groups_, context.pool);
    }
    // What was left out is 0 times the other groups' matrices.
    if (!sums_ && !AllFinite(b, groups_ * shape_.k * shape_.n, context.pool)) Spoil(groups, b, d);
    return Status();
  }

 private:
  // Whether the groups come one after the other.
  static bool Apart(const std::vector<Rows>& groups) {
    int64_t done = 0;
    for (const Rows& r : groups) {
      if (r.count() == 0) continue;
      if (r.begin < done) return false;
      done = r.end;
    }
    return true;
  }

  void ClearBetween(const std::vector<Rows>& groups, T* d) const {
    int64_t done = 0;
    for (const Rows& r : groups) {
      if (r.count() == 0) continue;
      std::fill_n(d + done * shape_.n, (r.begin - done) * shape_.n, T(0));
      done = r.end;
    }
    std::fill_n(d + done * shape_.n, (shape_.m - done) * shape_.n, T(0));
  }

  void Multiply(int64_t g, const Rows& rows, const T* a, const T* b, T* d, bool add, ThreadPool* pool) const {
    if (rows.count() == 0) return;
    GemmShape s = shape_;
    s.m = rows.count(), s.add = add;
    BlockedGemm(s, accumulator_, a + rows.begin * s.a_row, b + g * b_group_, d + rows.begin * s.d_row, pool);
  }

  void Sum(int64_t g, const Rows& rows, const T* a, const T* b, T* d, ThreadPool* pool) const {
    GemmShape s = shape_;
    d += g * s.m * s.n;
    if (rows.count() == 0) {
      std::fill_n(d, s.m * s.n, T(0));
      return;
    }
    s.k = rows.count();
    BlockedGemm(s, accumulator_, a + rows.begin * s.a_col, b + rows.begin * s.b_row, d, pool);
  }

  void Spoil(const std::vector<Rows>& groups, const T* b, T* d) const {
    for (int64_t g = 0; g < groups_; ++g) {
      for (int64_t j = 0; j < shape_.n; ++j) {
        const T* column = b + g * b_group_ + j * shape_.b_col;
        bool finite = true;
        for (int64_t i = 0; i < shape_.k; ++i) finite = finite && std::isfinite(column[i * shape_.b_row]);
        for (int64_t i = 0; i < shape_.m && !finite; ++i) {
          if (i < groups[g].begin || i >= groups[g].end) d[i * shape_.d_row + j] = std::numeric_limits<T>::quiet_NaN();
        }
      }
    }
  }

  GemmShape shape_;  // of all groups together
  Accumulator accumulator_;
  int64_t groups_, b_group_;
  bool sums_;
};

Result<std::unique_ptr<Prepared>> PrepareRagged(const CallDesc& call) {
  Attributes attributes(call);
  attributes.Expect(4, 1);
  const std::string form = attributes.String("form", "");
  GemmShape shape;
  shape.m = attributes.Int("m"), shape.n = attributes.Int("n"), shape.k = attributes.Int("k");
  const int64_t groups = attributes.Int("groups");
  std::vector<int64_t> a = attributes.Ints("a_strides", 2), b = attributes.Ints("b_strides", 3);
  FERRULE_RETURN_IF_ERROR(attributes.status());
  shape.a_row = a[0], shape.a_col = a[1], shape.b_row = b[1], shape.b_col = b[2], shape.d_row = shape.n;
  shape.d_batch = shape.m * shape.n;
  shape.a_type = shape.b_type = shape.d_type = ElementOf(call.results[0]);
  const bool sums = form == "sums", known = sums || form == "rows";
  const bool bounds = call.operands[2].elements() == groups && call.operands[3].elements() == groups &&
                      ElementOf(call.operands[2]) == Element::kS32 && ElementOf(call.operands[3]) == Element::kS32;
  const bool sizes = shape.m >= 0 && shape.n >= 0 && shape.k >= 0 && groups >= 0 &&
                     call.results[0].elements() == (sums ? groups : 1) * shape.m * shape.n &&
                     call.operands[0].elements() == shape.m * shape.k &&
                     call.operands[1].elements() == (sums ? 1 : groups) * shape.k * shape.n;
  if (!known || !bounds || !sizes || ElementOf(call.operands[0]) != shape.d_type ||
      ElementOf(call.operands[1]) != shape.d_type) {
    attributes.Fail("the operands and the result do not fit the form, or the bounds are not i32");
    return attributes.status();
  }
  switch (shape.d_type) {
    case Element::kF32:
      return std::unique_ptr<Prepared>(new Ragged<float>(shape, Accumulator::kF32, groups, b[0], sums));
    case Element::kF64:
      return std::unique_ptr<Prepared>(new Ragged<double>(shape, Accumulator::kF64, groups, b[0], sums));
    default:
      attributes.Fail("it is defined for f32 and f64 only");
      return attributes.status();
  }
}

[[maybe_unused]] const bool registered = RegisterCall("gemm.ragged", &PrepareRagged);

}  // namespace
}  // namespace ferrule

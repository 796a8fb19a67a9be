// Library call "gemm.ragged": products of groups of rows, each with a matrix of its own (passes/ragged.py). Group g is
// the rows from start[g] to end[g], which may be anything; a row may belong to no group or to several.
//   rows   D[m][n] = sum over the groups of row m, and over k, of A[m][k] * B[g][k][n]
//   sums   D[g][m][n] = sum over the rows k of group g of A[m][k] * B[k][n]
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
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

// Whether 0 times each of n numbers is 0. T: the numbers' type, or the bits of a short one, whose exponent's are given.
template <class T>
bool AllFinite(const T* x, int64_t n, T exponent, ThreadPool* pool) {
  std::atomic<bool> finite{true};
  pool->For(n, kThreadLook, [&](int64_t begin, int64_t end) {
    T found = 0;
    if constexpr (std::is_floating_point_v<T>) {
      T lanes[16] = {};
      int64_t i = begin;
      for (; i + 16 <= end; i += 16) {
        for (int64_t l = 0; l < 16; ++l) lanes[l] += x[i + l] * 0;
      }
      for (; i < end; ++i) found += x[i] * 0;
      for (T lane : lanes) found += lane;
    } else {
      for (int64_t i = begin; i < end; ++i) found |= static_cast<T>((x[i] & exponent) == exponent);
    }
    if (found != 0) finite.store(false, std::memory_order_relaxed);
  });
  return finite.load();
}

bool AllFinite(Element type, const void* x, int64_t n, ThreadPool* pool) {
  if (type == Element::kF64) return AllFinite(static_cast<const double*>(x), n, 0.0, pool);
  if (type == Element::kF32) return AllFinite(static_cast<const float*>(x), n, 0.0f, pool);
  const auto exponent = static_cast<uint16_t>(type == Element::kBF16 ? 0x7F80 : 0x7C00);
  return AllFinite(static_cast<const uint16_t*>(x), n, exponent, pool);
}

// T: the type of the sums, f32 or f64.
template <class T>
class Ragged : public Prepared {
 public:
  Ragged(const GemmShape& shape, int64_t groups, int64_t b_group, bool sums)
      : shape_(shape), groups_(groups), b_group_(b_group), sums_(sums) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    const auto *a = static_cast<const char*>(operands[0]), *b = static_cast<const char*>(operands[1]);
    auto* d = static_cast<char*>(results[0]);
    std::vector<Rows> groups = Groups(operands[2], operands[3], groups_, sums_ ? shape_.k : shape_.m);
    if (sums_) {
      Each(context.pool, [&](int64_t g, ThreadPool* pool) { Sum(g, groups[g], a, b, d, pool); });
      return Status();
    }
    if (Apart(groups)) {
      ClearBetween(groups, d);
      Each(context.pool, [&](int64_t g, ThreadPool* pool) { Multiply(shape_, g, groups[g], a, b, d, pool); });
    } else {
      const int64_t elements = shape_.m * shape_.n, bytes = elements * static_cast<int64_t>(sizeof(T));
      auto* total = static_cast<T*>(context.allocate(context.allocate_self, bytes));
      if (!total) return OutOfMemory("no memory for sums of groups of rows (" + std::to_string(bytes) + " bytes)");
      std::fill_n(total, elements, T(0));
      GemmShape s = shape_;
      s.add = true, s.d_type = kSums;
      for (int64_t g = 0; g < groups_; ++g) {
        Multiply(s, g, groups[g], a, b, reinterpret_cast<char*>(total), context.pool);
      }
      StoreElements(shape_.d_type, d, 1, elements, total);
    }
    // What was left out is 0 times the other groups' matrices.
    if (!AllFinite(shape_.b_type, b, groups_ * shape_.k * shape_.n, context.pool)) Spoil(groups, b, d);
    return Status();
  }

 private:
  static constexpr Element kSums = std::is_same_v<T, double> ? Element::kF64 : Element::kF32;
  static constexpr Accumulator kIn = std::is_same_v<T, double> ? Accumulator::kF64 : Accumulator::kF32;

  // Small groups side by side, large ones one after the other by all threads.
  template <class F>
  void Each(ThreadPool* pool, F&& group) const {
    if (shape_.m * shape_.n * shape_.k < groups_ * kThreadGroup) {
      pool->For(groups_, 1, [&](int64_t begin, int64_t end) {
        for (int64_t g = begin; g < end; ++g) group(g, nullptr);
      });
    } else {
      for (int64_t g = 0; g < groups_; ++g) group(g, pool);
    }
  }

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

  // The first byte of a place, counted in elements.
  static const char* At(const char* x, Element type, int64_t place) { return x + place * SizeOf(type); }
  char* Result(char* d, int64_t place) const { return d + place * SizeOf(shape_.d_type); }

  void Clear(char* d, int64_t begin, int64_t end) const {
    std::memset(Result(d, begin), 0, static_cast<size_t>((end - begin) * SizeOf(shape_.d_type)));
  }

  void ClearBetween(const std::vector<Rows>& groups, char* d) const {
    int64_t done = 0;
    for (const Rows& r : groups) {
      if (r.count() == 0) continue;
      Clear(d, done * shape_.n, r.begin * shape_.n);
      done = r.end;
    }
    Clear(d, done * shape_.n, shape_.m * shape_.n);
  }

  void Multiply(GemmShape s, int64_t g, const Rows& rows, const char* a, const char* b, char* d,
                ThreadPool* pool) const {
    if (rows.count() == 0) return;
    s.m = rows.count();
    BlockedGemm(s, kIn, At(a, s.a_type, rows.begin * s.a_row), At(b, s.b_type, g * b_group_),
                d + rows.begin * s.d_row * SizeOf(s.d_type), pool);
  }

  void Sum(int64_t g, const Rows& rows, const char* a, const char* b, char* d, ThreadPool* pool) const {
    GemmShape s = shape_;
    if (rows.count() == 0) {
      Clear(d, g * s.m * s.n, (g + 1) * s.m * s.n);
      return;
    }
    s.k = rows.count();
    BlockedGemm(s, kIn, At(a, s.a_type, rows.begin * s.a_col), At(b, s.b_type, rows.begin * s.b_row),
                Result(d, g * s.m * s.n), pool);
  }

  void Spoil(const std::vector<Rows>& groups, const char* b, char* d) const {
    const T nan = std::numeric_limits<T>::quiet_NaN();
    std::vector<T> column(shape_.k);
    for (int64_t g = 0; g < groups_; ++g) {
      for (int64_t j = 0; j < shape_.n; ++j) {
        const char* first = At(b, shape_.b_type, g * b_group_ + j * shape_.b_col);
        LoadElements(shape_.b_type, first, shape_.b_row, shape_.k, column.data());
        if (std::all_of(column.begin(), column.end(), [](T x) { return std::isfinite(x); })) continue;
        for (int64_t i = 0; i < shape_.m; ++i) {
          if (i >= groups[g].begin && i < groups[g].end) continue;
          StoreElements(shape_.d_type, Result(d, i * shape_.d_row + j), 1, 1, &nan);
        }
      }
    }
  }

  GemmShape shape_;  // of all groups together
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
  shape.a_type = ElementOf(call.operands[0]), shape.b_type = ElementOf(call.operands[1]);
  shape.d_type = ElementOf(call.results[0]);
  const bool sums = form == "sums", known = sums || form == "rows";
  const bool bounds = call.operands[2].elements() == groups && call.operands[3].elements() == groups &&
                      ElementOf(call.operands[2]) == Element::kS32 && ElementOf(call.operands[3]) == Element::kS32;
  const bool sizes = shape.m >= 0 && shape.n >= 0 && shape.k >= 0 && groups >= 0 &&
                     call.results[0].elements() == (sums ? groups : 1) * shape.m * shape.n &&
                     call.operands[0].elements() == shape.m * shape.k &&
                     call.operands[1].elements() == (sums ? 1 : groups) * shape.k * shape.n;
  const bool wide = shape.a_type == Element::kF64, narrow = SizeOf(shape.a_type) == 2;
  const bool types = IsFloat(shape.a_type) && SizeOf(shape.a_type) >= 2 && shape.b_type == shape.a_type &&
                     (shape.d_type == shape.a_type || (narrow && shape.d_type == Element::kF32));
  if (!known || !bounds || !sizes || !types) {
    attributes.Fail("the operands and the result do not fit the form, or the bounds are not i32");
    return attributes.status();
  }
  if (wide) return std::unique_ptr<Prepared>(new Ragged<double>(shape, groups, b[0], sums));
  return std::unique_ptr<Prepared>(new Ragged<float>(shape, groups, b[0], sums));
}

[[maybe_unused]] const bool registered = RegisterCall("gemm.ragged", &PrepareRagged);

}  // namespace
}  // namespace ferrule

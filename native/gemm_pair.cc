// Library call "gemm.pair": T = A * X for each matrix of a batch, and D = C * R, as two dimensions of images are
// resized. Each R is a row of T taken as a matrix (the first dimension goes first), or each of its rows is one of T's
// matrices. Where A and C are mostly zeros, what C takes of T stays in a cache. The last result is memory for T, where
// it is needed.
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

namespace ferrule {
namespace {

using namespace sparse;

constexpr int64_t kSlotBytes = 1 << 18;  // of matrices that are kept
constexpr int64_t kFewestRows = 8;       // of sums in one part; the next part forms a few of its matrices again

template <class T>
class Pair : public Prepared {
 public:
  Pair(const GemmShape& first, const GemmShape& second, std::unique_ptr<Prepared> product,
       std::unique_ptr<Prepared> next)
      : s_(first), t_(second), product_(std::move(product)), next_(std::move(next)) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    if (Sparse(operands[0], operands[1], operands[2], static_cast<T*>(results[0]), context.pool)) return Status();
    FERRULE_RETURN_IF_ERROR(product_->Run(operands, results + 1, context));
    void* const next[] = {operands[2], results[1]};
    return next_->Run(next, results, context);
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
    return t_.batch > s_.batch ? EachRow(terms[0], terms[1], images, d, pool)
                               : EachMatrix(terms[0], terms[1], images, d, pool);
  }

  // A row of T is a matrix R.
  bool EachRow(const Terms<T>& first, const Terms<T>& second, const T* x, T* d, ThreadPool* pool) const {
    const auto& kernels = FloatKernels<T>();
    const int64_t row = 2 * (s_.n + t_.m * t_.n), unit = kWorthATask / row + 1, parts = DivideUp(s_.m, unit);
    std::atomic<bool> finite = true;
    gemm::Spread(pool, s_.batch * parts, 1, [&](int64_t begin, int64_t end) {
      static thread_local AlignedScratch scratch;
      T* sums = scratch.Get<T>(s_.n);
      for (int64_t i = begin; i < end && finite.load(std::memory_order_relaxed); ++i) {
        const int64_t batch = i / parts, part = i % parts;
        const T* b = x + batch * s_.b_batch;
        // Each row of X is looked at once, by the part whose it is, where possible before its terms are added up.
        int64_t seen = s_.k * part / parts;
        const int64_t last = s_.k * (part + 1) / parts;
        auto look = [&](int64_t to) {
          if (to > seen && !AllFinite(b + seen * s_.b_row, to - seen, s_.n, s_.b_row, nullptr)) finite = false;
          seen = std::max(seen, to);
        };
        for (int64_t r = part * unit; r < std::min(s_.m, (part + 1) * unit); ++r) {
          look(std::min(last, first.End(r)));
          kernels.combine(1, first.starts.data() + r, first.at.data(), first.value.data(), b, s_.b_row, s_.n, sums,
                          s_.n);
          if (!kernels.finite(s_.n, sums)) finite = false;  // sums of large numbers
          kernels.combine(t_.m, second.starts.data(), second.at.data(), second.value.data(), sums, t_.n, t_.n,
                          d + (batch * s_.m + r) * t_.m * t_.n, t_.n);
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
    const int64_t slots = second.Apart(&behind);
    if (slots * t_.n * static_cast<int64_t>(sizeof(T)) > kSlotBytes) return false;
    std::vector<int32_t> slot(second.at.size());
    for (size_t i = 0; i < slot.size(); ++i) slot[i] = second.at[i] % static_cast<int32_t>(slots);
    const int64_t most = std::min(DivideUp(t_.m, kFewestRows), DivideUp(2 * t_.m * t_.n, kWorthATask));
    const int64_t threads = pool ? pool->threads() : 1, parts = std::min(most, DivideUp(4 * threads, t_.batch));
    std::atomic<bool> finite = true;
    gemm::Spread(pool, t_.batch * parts, 1, [&](int64_t begin, int64_t end) {
      static thread_local AlignedScratch scratch;
      T* kept = scratch.Get<T>(slots * t_.n);
      for (int64_t i = begin; i < end && finite.load(std::memory_order_relaxed); ++i) {
        const int64_t batch = i / parts, part = i % parts, rows = t_.m * (part + 1) / parts;
        // Each matrix of X is looked at by the part whose it is, which takes it, too: its sums may not be finite.
        const int64_t from = t_.k * part / parts, last = t_.k * (part + 1) / parts;
        int64_t next = from;
        for (int64_t r = t_.m * part / parts; r < rows; ++r) next = std::min(next, second.Begin(r));
        auto take = [&](int64_t to) {
          for (; next < to; ++next) {
            const T* b = x + (batch * t_.k + next) * s_.b_batch;
            T* sums = kept + next % slots * t_.n;
            if (next >= from && next < last && !AllFinite(b, s_.k, s_.n, s_.b_row, nullptr)) finite = false;
            kernels.combine(s_.m, first.starts.data(), first.at.data(), first.value.data(), b, s_.b_row, s_.n, sums,
                            s_.n);
            if (!kernels.finite(t_.n, sums)) finite = false;
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
  std::unique_ptr<Prepared> product_, next_;
};

Result<std::unique_ptr<Prepared>> PreparePair(const CallDesc& call) {
  Attributes attributes(call);
  attributes.Expect(3, 2);
  FERRULE_RETURN_IF_ERROR(attributes.status());
  CallDesc first, second;
  first.operands = {call.operands[0], call.operands[1]}, first.results = {call.results[1]};
  second.operands = {call.operands[2], call.results[1]}, second.results = {call.results[0]};
  if (!call.sources.empty()) first.sources = {call.sources[0], call.sources[1]}, second.sources = {call.sources[2], {}};
  first.target = second.target = "gemm";
  const std::string then = "then_";
  for (const auto& [name, value] : call.attrs) {
    if (name.rfind(then, 0) == 0) {
      second.attrs[name.substr(then.size())] = value;
    } else {
      first.attrs[name] = value;
    }
  }
  Attributes of_first(first), of_second(second);
  const GemmShape s = GemmShapeOf(first, first.results[0], &of_first);
  const GemmShape t = GemmShapeOf(second, second.results[0], &of_second);
  FERRULE_RETURN_IF_ERROR(of_first.status());
  FERRULE_RETURN_IF_ERROR(of_second.status());
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
  const Factory gemm = FindCall("gemm");
  auto product = gemm(first), next = gemm(second);
  FERRULE_RETURN_IF_ERROR(product.status());
  FERRULE_RETURN_IF_ERROR(next.status());
  if (s.a_type == Element::kF64) {
    return std::unique_ptr<Prepared>(new Pair<double>(s, t, std::move(*product), std::move(*next)));
  }
  return std::unique_ptr<Prepared>(new Pair<float>(s, t, std::move(*product), std::move(*next)));
}

[[maybe_unused]] const bool registered = RegisterCall("gemm.pair", &PreparePair);

}  // namespace
}  // namespace ferrule

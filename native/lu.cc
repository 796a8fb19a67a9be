// Library call "lu", over batches: P A = L U with partial pivoting, of row-major matrices. Small ones are factored as
// they are (small_matrix_kernel.h), larger ones by panels of columns. A panel is turned, so that its columns are
// vectors, factored on one thread (lu_panel_kernel.h), and turned back. The columns behind it then follow in strips:
// rows exchanged, those beside the panel's triangle solved, those below less a product. The strip that is the next
// panel comes first, and whoever has it factors it, while the other threads are busy with the others.
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "aligned_scratch.h"
#include "attributes.h"
#include "calls.h"
#include "element.h"
#include "gemm_spread.h"
#include "program.h"
#include "small_matrix_tables.h"
#include "thread_pool.h"
#include "triangular.h"

#pragma GCC optimize("O3")

namespace ferrule {
namespace {

constexpr int64_t kThreadWork = 1 << 16;  // multiply-adds that are worth a thread: some microseconds
constexpr int64_t kThreadCopy = 1 << 14;  // elements that are
constexpr int64_t kOneThread = 128;       // columns, up to which handing parts over takes longer than what is won

// Columns of a panel: many are one long product with the rest, few are soon factored.
int64_t PanelWidth(int64_t steps) { return steps <= 256 ? 32 : steps <= 1024 ? 64 : 128; }

template <class T>
class Factorization {
 public:
  Factorization(T* a, int64_t rows, int64_t columns, int32_t* pivots, ThreadPool* pool)
      : a_(a), rows_(rows), columns_(columns), steps_(std::min(rows, columns)), pivots_(pivots), pool_(pool) {}

  int32_t Run() {
    static thread_local AlignedScratch scratch;
    const int64_t width = PanelWidth(steps_);
    T* panels = scratch.Get<T>(2 * width * stride_);
    Panel panel{0, std::min(width, steps_), panels};
    FactorPanel(panel);
    for (;;) {
      const int64_t end = panel.first + panel.width;
      if (end == columns_) break;
      const Panel next{end, std::min(width, steps_ - end), panel.at == panels ? panels + width * stride_ : panels};
      const int64_t begin = end + next.width;
      const int64_t strips = StripsOf(columns_ - begin, rows_ - panel.first, panel.width);
      const Exchanges exchanges = ExchangesOf(panel);
      gemm::Spread(pool_, 1 + strips, 1, [&](int64_t from, int64_t to) {
        for (int64_t i = from; i < to; ++i) {
          if (i > 0) {
            Strip(panel, exchanges, begin + gemm::Border(columns_ - begin, strips, kUnit, i - 1),
                  begin + gemm::Border(columns_ - begin, strips, kUnit, i));
          } else if (next.width > 0) {
            Strip(panel, exchanges, next.first, begin);
            FactorPanel(next);
          }
        }
      });
      if (next.width == 0) break;
      panel = next;
    }
    // The exchanges of later rows in the panels before them.
    gemm::Spread(pool_, (steps_ - 1) / width, std::max<int64_t>(1, kThreadCopy / (width * steps_)),
                 [&](int64_t from, int64_t to) {
                   for (int64_t i = from; i < to; ++i) Exchange((i + 1) * width, steps_, i * width, (i + 1) * width);
                 });
    return info_;
  }

 private:
  static constexpr int64_t kUnit = 64, kStrip = 128, kLongStrip = 512;  // columns

  struct Panel {
    int64_t first, width;
    T* at;  // where it lies turned
  };

  struct Exchanges {
    std::vector<int64_t> from;
    std::vector<std::pair<int64_t, int64_t>> others;  // rows, and whose elements they get
  };

  int64_t StripsOf(int64_t columns, int64_t rows, int64_t width) const {
    if (columns <= 0) return 0;
    const int64_t threads = pool_ ? pool_->threads() : 1;
    const int64_t strip = threads == 1 ? kLongStrip : kStrip;
    const int64_t most = std::min((columns + kUnit - 1) / kUnit, columns * rows * width / kThreadWork + 1);
    return std::min(most, std::max(threads, (columns + strip - 1) / strip));
  }

  void FactorPanel(const Panel& p) {
    T* block = a_ + p.first * columns_ + p.first;
    const int64_t rows = rows_ - p.first;
    SmallMatrix<T>().turn(block, columns_, rows, p.width, p.at, stride_);
    const int32_t zero = SmallMatrix<T>().panel(p.at, stride_, rows, p.width, pivots_ + p.first);
    SmallMatrix<T>().turn(p.at, stride_, p.width, rows, block, columns_);
    if (zero && info_ == 0) info_ = static_cast<int32_t>(p.first) + zero;
    for (int64_t i = 0; i < p.width; ++i) {
      pivots_[p.first + i] += static_cast<int32_t>(p.first);
      T* column = p.at + i * stride_;
      std::transform(column, column + rows, column, [](T x) { return -x; });
    }
  }

  // What the exchanges of a panel come to: which rows come to be its first ones, and what comes to be in others.
  Exchanges ExchangesOf(const Panel& p) const {
    Exchanges e;
    e.from.resize(static_cast<size_t>(p.width));
    std::iota(e.from.begin(), e.from.end(), p.first);
    for (int64_t r = 0; r < p.width; ++r) {
      const int64_t row = pivots_[p.first + r] - 1;
      int64_t& here = e.from[static_cast<size_t>(r)];
      if (row < p.first + p.width) {
        std::swap(here, e.from[static_cast<size_t>(row - p.first)]);
        continue;
      }
      auto other = std::find_if(e.others.begin(), e.others.end(), [row](const auto& o) { return o.first == row; });
      if (other == e.others.end()) {
        e.others.emplace_back(row, here);
        here = row;
      } else {
        std::swap(other->second, here);
      }
    }
    return e;
  }

  // Rows `from` to `to` change places with their pivots, in some columns.
  void Exchange(int64_t from, int64_t to, int64_t begin, int64_t end) const {
    for (int64_t k = from; k < to; ++k) {
      const int64_t p = pivots_[k] - 1;
      if (p != k) std::swap_ranges(a_ + k * columns_ + begin, a_ + k * columns_ + end, a_ + p * columns_ + begin);
    }
  }

  // What the factors of a panel make of columns behind it. The rows beside the panel's triangle are gathered elsewhere:
  // where rows lie a multiple of 4 KB apart, the nearest cache would forget them.
  void Strip(const Panel& p, const Exchanges& exchanges, int64_t begin, int64_t end) const {
    if (begin == end) return;
    static thread_local AlignedScratch scratch;
    const int64_t width = end - begin, padded = (width + kSmallLanes<T> - 1) / kSmallLanes<T> * kSmallLanes<T>;
    const int64_t row = padded + kSmallLanes<T>;
    T *upper = scratch.Get<T>(p.width * row), *a = a_ + begin;
    for (int64_t r = 0; r < p.width; ++r) {
      std::copy_n(a + exchanges.from[static_cast<size_t>(r)] * columns_, width, upper + r * row);
      std::fill(upper + r * row + width, upper + r * row + padded, T(0));
    }
    for (const auto& [to, from] : exchanges.others) std::copy_n(a + from * columns_, width, a + to * columns_);
    for (int64_t r = 0; r < p.width; r += kSmallMatrix) {
      const int64_t rows = std::min(kSmallMatrix, p.width - r);
      if (r > 0) Subtract(p.at + r, rows, padded, r, upper, row, upper + r * row, row);
      const T* triangle = a_ + (p.first + r) * columns_ + p.first + r;
      SolveLeaf(true, true, rows, triangle, columns_, upper + r * row, row, padded);
    }
    for (int64_t r = 0; r < p.width; ++r) std::copy_n(upper + r * row, width, a + (p.first + r) * columns_);
    const int64_t below = p.first + p.width;
    Subtract(p.at + p.width, rows_ - below, width, p.width, upper, row, a + below * columns_, columns_);
  }

  // to -= L * right, where `left` is -L, turned.
  void Subtract(const T* left, int64_t m, int64_t n, int64_t k, const T* right, int64_t right_row, T* to,
                int64_t to_row) const {
    GemmShape s = ProductShape<T>(m, n, k);
    s.a_row = 1, s.a_col = stride_;
    s.b_row = right_row, s.d_row = to_row;
    BlockedGemm(s, kAccumulatorOf<T>, left, right, to, nullptr);
  }

  T* a_;
  const int64_t rows_, columns_, steps_;
  // Columns of a turned panel do not share sets of the cache, and are followed by room for a vector.
  const int64_t stride_ = (rows_ + 2 * kSmallLanes<T> - 1) / kSmallLanes<T> * kSmallLanes<T> + kSmallLanes<T>;
  int32_t* pivots_;
  ThreadPool* pool_;
  int32_t info_ = 0;
};

template <class T>
class Lu : public Prepared {
 public:
  Lu(int64_t batch, int64_t rows, int64_t columns) : batch_(batch), rows_(rows), columns_(columns) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    const int64_t steps = std::min(rows_, columns_), matrix = rows_ * columns_;
    const T* from = static_cast<const T*>(operands[0]);
    T* to = static_cast<T*>(results[0]);
    auto *pivots = static_cast<int32_t*>(results[1]), *info = static_cast<int32_t*>(results[2]);
    const bool small = std::max(rows_, columns_) <= kSmallMatrix;
    const bool alone = !small && columns_ > kOneThread && batch_ < context.pool->threads();
    ThreadPool* pool = alone ? context.pool : nullptr;
    auto some = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* a = from + i * matrix;
        T* factors = to + i * matrix;
        if (small) {
          info[i] = SmallMatrix<T>().factor(a, rows_, columns_, factors, pivots + i * steps);
          continue;
        }
        gemm::Spread(pool, rows_, kThreadCopy / columns_ + 1, [&](int64_t row, int64_t rows_end) {
          std::copy(a + row * columns_, a + rows_end * columns_, factors + row * columns_);
        });
        info[i] = Factorization<T>(factors, rows_, columns_, pivots + i * steps, pool).Run();
      }
    };
    if (alone) {
      some(0, batch_);
    } else {
      context.pool->For(batch_, kThreadWork / (matrix * steps + 1) + 1, some);
    }
    return Status();
  }

 private:
  int64_t batch_, rows_, columns_;
};

Result<std::unique_ptr<Prepared>> PrepareLu(const CallDesc& call) {
  Attributes attributes(call);
  attributes.Expect(1, 3);
  FERRULE_RETURN_IF_ERROR(attributes.status());
  const auto& dims = call.operands[0].dims;
  if (dims.size() < 2 || call.operands[0].elements() == 0) {
    attributes.Fail("the operand's last two dimensions are not those of a matrix");
    return attributes.status();
  }
  const int64_t columns = dims.back(), rows = dims[dims.size() - 2];
  const int64_t batch = std::accumulate(dims.begin(), dims.end() - 2, int64_t{1}, std::multiplies<>());
  switch (ElementOf(call.operands[0])) {
    case Element::kF32:
      return std::unique_ptr<Prepared>(new Lu<float>(batch, rows, columns));
    case Element::kF64:
      return std::unique_ptr<Prepared>(new Lu<double>(batch, rows, columns));
    default:
      attributes.Fail("it is defined for f32 and f64 only");
      return attributes.status();
  }
}

[[maybe_unused]] const bool registered = RegisterCall("lu", &PrepareLu);

}  // namespace
}  // namespace ferrule

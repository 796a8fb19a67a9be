#include "gemm_sparse.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "aligned_scratch.h"
#include "divide.h"
#include "gemm_spread.h"
#include "gemm_terms.h"
#include "small_matrix_tables.h"
#include "thread_pool.h"

namespace ferrule {
namespace {

using gemm::Spread;
using namespace sparse;

// Of sides larger than this, rows that are added up are taken in blocks of columns: what is added one after the other
// should stay in a cache. Where that makes narrow blocks, or kBlockColumns of all rows are more than the most, whole
// rows are taken, which come from further away.
constexpr int64_t kFarBytes = 2 << 20, kRareFar = 32, kRareNarrow = 16;
constexpr int64_t kBlockBytes = 1 << 18, kMostBlockBytes = 1 << 19, kBlockColumns = 64, kNarrow = 512;
constexpr int64_t kAtOnceBytes = 1 << 15;  // of a block's rows that are looked through before some are added up
constexpr int64_t kLeastRows = 16;         // that are listed at once
constexpr double kWorth = 1 << 18;         // multiply-adds
constexpr int64_t kMostAhead = 1 << 22;    // elements of a side whose terms are listed before the product begins

template <class T>
class SparseGemm : public Prepared {
 public:
  SparseGemm(const GemmShape& shape, const EpilogueCall& epilogue, std::unique_ptr<Prepared> dense)
      : s_(shape), epilogue_(epilogue), dense_(std::move(dense)) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    const T* a = static_cast<const T*>(operands[0]);
    const T* b = static_cast<const T*>(operands[1]);
    T* d = static_cast<T*>(results[epilogue_.home()]);
    const EpilogueRun run(epilogue_, operands, results);
    const Epilogue* after = run.get();
    const Sides left = SidesOf({a, s_.m, s_.k, s_.a_row, s_.a_col}, s_.a_batch);
    const Sides right = SidesOf({b, s_.n, s_.k, s_.b_col, s_.b_row}, s_.b_batch);
    constexpr int64_t kSize = sizeof(T);
    const bool large = s_.b_col == 1 && right.count * s_.k * s_.n * kSize > kFarBytes;
    const bool blocks = large && s_.k * std::min(s_.n, kBlockColumns) * kSize <= kMostBlockBytes;
    const bool far = large && !blocks;
    const bool done =
        (Sparse(left, s_.n, far ? kRareFar : kRare) &&
         (blocks ? InBlocks(left, right, d, context.pool, after)
                 : Finite(right, context.pool) && Left(left, right, d, context.pool, after))) ||
        (Sparse(right, s_.m, kRare) && Finite(left, context.pool) && Right(right, left, d, context.pool, after));
    return done ? Status() : dense_->Run(operands, results, context);
  }

 private:
  struct Scratch {
    AlignedScratch panel, sums;
    Terms<T> terms;
  };
  static Scratch& ThreadScratch() {
    static thread_local Scratch scratch;
    return scratch;
  }

  // A side of each matrix of the batch, or one that all share.
  struct Sides {
    Side<T> first;
    int64_t count, apart;
    Side<T> operator[](int64_t i) const {
      Side<T> side = first;
      if (count > 1) side.data += i * apart;
      return side;
    }
  };
  Sides SidesOf(const Side<T>& first, int64_t batch) const { return {first, batch == 0 ? 1 : s_.batch, batch}; }

  // Whether the sides are sparse, and the other ones have enough for each element to be looked through: where memory
  // has it across the rows that are listed, one element of each line may be all that is wanted of another processor's
  // cache.
  bool Sparse(const Sides& sides, int64_t others, int64_t rare) const {
    constexpr int64_t kAcross = 128;
    if (sides.first.step != 1 && others * (s_.batch / sides.count) < kAcross) return false;
    for (int64_t i = 0; i < sides.count; ++i) {
      if (!LooksSparse(sides[i], rare)) return false;
    }
    return true;
  }

  static bool Finite(const Sides& sides, ThreadPool* pool) {
    const int64_t elements = sides.first.rows * sides.first.k, all = sides.count * elements;
    if (sides.count > 1 && sides.apart == elements) return AllFinite(sides.first.data, 1, all, all, pool);
    for (int64_t i = 0; i < sides.count; ++i) {
      const Side<T> x = sides[i];
      const bool finite = x.step == 1  ? AllFinite(x.data, x.rows, x.k, x.row, pool)
                          : x.row == 1 ? AllFinite(x.data, x.k, x.rows, x.step, pool)
                                       : false;
      if (!finite) return false;
    }
    return true;
  }

  // The terms of whole sides; none where they are too many after all.
  static std::vector<Terms<T>> All(const Sides& sides) {
    const int64_t rows = sides.first.rows, elements = rows * sides.first.k;
    if (sides.count * elements > kMostAhead) return {};
    std::vector<Terms<T>> all(static_cast<size_t>(sides.count));
    for (int64_t i = 0; i < sides.count; ++i) {
      if (!all[static_cast<size_t>(i)].ListRare(sides[i])) return {};
    }
    return all;
  }

  static const Terms<T>& Of(const std::vector<Terms<T>>& all, int64_t batch) {
    return all[all.size() == 1 ? 0 : static_cast<size_t>(batch)];
  }

  // So many pieces of each matrix of the batch, of so much work.
  template <class F>
  void Pieces(int64_t each, int64_t work, ThreadPool* pool, F&& f) const {
    Spread(pool, s_.batch * each, kWorthATask / (work + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) f(i / each, i % each);
    });
  }

  // Columns of B, where its rows lie, of which a cache holds `rows` rows; at most all there are.
  int64_t BlockColumns(int64_t rows) const {
    const int64_t columns = kBlockBytes / (rows * static_cast<int64_t>(sizeof(T))) / kBlockColumns * kBlockColumns;
    return columns * 5 / 4 < s_.n ? std::max(columns, kBlockColumns) : s_.n;
  }

  // Sums of rows of B, where they lie, block by block of its columns. Whether they are finite is looked at on the way,
  // while a cache has them, unless something follows the product that may write over what it reads.
  bool InBlocks(const Sides& left, const Sides& right, T* d, ThreadPool* pool, const Epilogue* after) const {
    const int64_t rows = std::max(kLeastRows, kWorthATask / s_.k), parts = DivideUp(s_.m, rows);
    const std::vector<Terms<T>> all = InParts(left, rows, parts, pool);
    if (all.empty()) return false;
    const int64_t threads = pool ? pool->threads() : 1, wanted = 2 * threads;
    int64_t columns = BlockColumns(Apart(all, parts));
    // Sums of rows that lie anywhere read short pieces of them in narrow blocks, and whole ones from far away.
    if (columns < std::min(s_.n, kNarrow)) {
      if (IsRare(all, left.count, kRareFar)) return Finite(right, pool) && Left(left, right, d, pool, after);
      if (!IsRare(all, left.count, kRareNarrow)) return false;
    }
    auto pieces = [&] { return s_.batch * DivideUp(s_.n, columns); };
    while (pieces() < wanted && columns >= 2 * kBlockColumns) columns = RoundUp(columns / 2, kBlockColumns);
    const bool ahead = after != nullptr || (threads > 1 && pieces() < wanted);
    if (ahead && !Finite(right, pool)) return false;
    const int64_t split = ahead ? std::min(parts, wanted) : 1, blocks = DivideUp(s_.n, columns);
    std::atomic<bool> finite = true;
    Pieces(blocks * split, columns * (2 * s_.m / split + (ahead ? 0 : s_.k)), pool, [&](int64_t i, int64_t piece) {
      const int64_t from = piece / split * columns, width = std::min(columns, s_.n - from);
      const int64_t begin = parts * (piece % split) / split, end = parts * (piece % split + 1) / split;
      const T* b = right[i].data + from;
      int64_t seen = 0;  // so many rows of the block are known to be finite
      auto look = [&](int64_t to) {
        if (to <= seen) return true;
        const bool found = finite.load(std::memory_order_relaxed) &&
                           AllFinite(b + seen * s_.b_row, to - seen, width, s_.b_row, nullptr);
        if (!found) finite.store(false, std::memory_order_relaxed);
        seen = to;
        return found;
      };
      const int64_t at_once = std::max(kAtOnceBytes / (width * static_cast<int64_t>(sizeof(T))), int64_t{1});
      for (int64_t part = begin; part < end; ++part) {
        const Terms<T>& terms = all[static_cast<size_t>((left.count == 1 ? 0 : i * parts) + part)];
        const int64_t first = part * rows, count = std::min(rows, s_.m - first);
        for (int64_t r = 0, next; r < count; r = next) {
          next = count;
          if (!ahead) {
            int64_t to = seen;
            for (next = r; next < count && to < seen + at_once; ++next) to = std::max(to, terms.End(next));
            if (!look(to)) return;
          }
          FloatKernels<T>().combine(next - r, terms.starts.data() + r, terms.at.data(), terms.value.data(), b, s_.b_row,
                                    width, d + i * s_.d_batch + (first + r) * s_.d_row + from, s_.d_row);
        }
        if (after) (*after)(i* s_.m + first, count, from, width);
      }
      if (!ahead) look(s_.k);
    });
    return finite.load(std::memory_order_relaxed);
  }

  // How far apart the rows are that sums which follow each other take.
  static int64_t Apart(const std::vector<Terms<T>>& all, int64_t parts) {
    int64_t apart = 1, last = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      if (i % static_cast<size_t>(parts) == 0) last = 0;
      apart = std::max(apart, all[i].Apart(&last));
    }
    return apart;
  }

  bool IsRare(const std::vector<Terms<T>>& all, int64_t sides, int64_t rare) const {
    int64_t terms = 0;
    for (const Terms<T>& part : all) terms += static_cast<int64_t>(part.at.size());
    return terms <= sides * s_.m * s_.k / rare;
  }

  // The terms of whole sides, so many rows in each element; none where they are too many after all.
  std::vector<Terms<T>> InParts(const Sides& left, int64_t rows, int64_t parts, ThreadPool* pool) const {
    std::vector<Terms<T>> all(static_cast<size_t>(left.count * parts));
    Spread(pool, left.count * parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t r = i % parts * rows;
        all[static_cast<size_t>(i)].List(left[i / parts], r, std::min(s_.m, r + rows));
      }
    });
    if (!IsRare(all, left.count, kRare)) return {};
    return all;
  }

  bool Left(const Sides& left, const Sides& right, T* d, ThreadPool* pool, const Epilogue* after) const {
    const auto& kernels = FloatKernels<T>();
    // Sums of rows of B, where they lie. What several matrices share is listed once.
    const bool in_place = s_.b_col == 1, once = !in_place || (left.count == 1 && s_.batch > 1);
    const std::vector<Terms<T>> all = once ? All(left) : std::vector<Terms<T>>();
    if (once && all.empty()) return false;
    if (in_place) {
      // A row is two terms or so, and to be looked through.
      const int64_t row = 2 * s_.n + (once ? 0 : s_.k / 8), unit = std::max(kLeastRows, kWorthATask / row);
      Pieces(DivideUp(s_.m, unit), unit * row, pool, [&](int64_t batch, int64_t piece) {
        const int64_t r = piece * unit, rows = std::min(unit, s_.m - r);
        Terms<T>& listed = ThreadScratch().terms;
        if (!once) listed.List(left[batch], r, r + rows);
        const Terms<T>& terms = once ? Of(all, batch) : listed;
        kernels.combine(rows, terms.starts.data() + (once ? r : 0), terms.at.data(), terms.value.data(),
                        right[batch].data, s_.b_row, s_.n, d + batch * s_.d_batch + r * s_.d_row, s_.d_row);
        if (after) (*after)(batch* s_.m + r, rows, 0, s_.n);
      });
      return true;
    }
    const int64_t width = kernels.columns;
    Pieces(DivideUp(s_.n, kEpilogueUnit), kEpilogueUnit * (2 * s_.m + s_.k), pool, [&](int64_t batch, int64_t piece) {
      T* panel = ThreadScratch().panel.template Get<T>(s_.k * width);
      const Terms<T>& terms = Of(all, batch);
      const int64_t from = piece * kEpilogueUnit, to = std::min(s_.n, from + kEpilogueUnit);
      for (int64_t j = from; j < to; j += width) {
        const int64_t columns = std::min(width, to - j);
        kernels.pack_columns(right[batch].data + j * s_.b_col, s_.b_col, s_.b_row, columns, s_.k, panel);
        kernels.combine(s_.m, terms.starts.data(), terms.at.data(), terms.value.data(), panel, width, columns,
                        d + batch * s_.d_batch + j, s_.d_row);
      }
      if (after) (*after)(batch* s_.m, s_.m, from, to - from);
    });
    return true;
  }

  // Rows of A side by side in a panel, whose sums are turned around.
  bool Right(const Sides& right, const Sides& left, T* d, ThreadPool* pool, const Epilogue* after) const {
    const std::vector<Terms<T>> all = All(right);
    if (all.empty()) return false;
    const auto& kernels = FloatKernels<T>();
    constexpr int64_t kColumns = 256;
    const int64_t width = kernels.columns;
    Pieces(DivideUp(s_.m, width), width * (2 * s_.n + s_.k), pool, [&](int64_t batch, int64_t piece) {
      T* panel = ThreadScratch().panel.template Get<T>(s_.k * width);
      T* sums = ThreadScratch().sums.template Get<T>(kColumns * width);
      const Terms<T>& terms = Of(all, batch);
      const int64_t i = piece * width, rows = std::min(width, s_.m - i);
      kernels.pack_columns(left[batch].data + i * s_.a_row, s_.a_row, s_.a_col, rows, s_.k, panel);
      for (int64_t j = 0; j < s_.n; j += kColumns) {
        const int64_t columns = std::min(kColumns, s_.n - j);
        kernels.combine(columns, terms.starts.data() + j, terms.at.data(), terms.value.data(), panel, width, width,
                        sums, width);
        SmallMatrix<T>().turn(sums, width, columns, rows, d + batch * s_.d_batch + i * s_.d_row + j, s_.d_row);
      }
      if (after) (*after)(batch* s_.m + i, rows, 0, s_.n);
    });
    return true;
  }

  GemmShape s_;
  EpilogueCall epilogue_;
  std::unique_ptr<Prepared> dense_;
};

}  // namespace

std::unique_ptr<Prepared> SparseOrNot(const GemmShape& s, const EpilogueCall& epilogue,
                                      std::unique_ptr<Prepared> dense) {
  const double work = static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
  if (s.add || s.batch < 1 || std::min({s.m, s.n, s.k}) < kLeast || work < kWorth || s.k > INT32_MAX) return dense;
  if (s.a_type != s.b_type || s.a_type != s.d_type) return dense;
  if (s.a_type == Element::kF32) return std::make_unique<SparseGemm<float>>(s, epilogue, std::move(dense));
  if (s.a_type == Element::kF64) return std::make_unique<SparseGemm<double>>(s, epilogue, std::move(dense));
  return dense;
}

}  // namespace ferrule

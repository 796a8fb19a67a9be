#include "gemm_blocked.h"

#include <algorithm>
#include <complex>
#include <type_traits>

#include "cpu_features.h"
#include "epilogue.h"
#include "gemm_block.h"
#include "gemm_few.h"
#include "gemm_made.h"
#include "gemm_parts.h"
#include "gemm_spread.h"
#include "gemm_tall.h"
#include "gemm_vectors.h"

namespace ferrule {

const GemmKernels& ChosenKernels() {
#if defined(__x86_64__)
  if (ChosenIsa() == Isa::kAvx512) return kAvx512Gemm;
  if (ChosenIsa() == Isa::kAvx2) return kAvx2Gemm;
#endif
  return kBaselineGemm;
}

const GroupKernels* ChosenQuads() {
#if defined(__x86_64__)
  static const GroupKernels* const quads = []() -> const GroupKernels* {
    if (ChosenIsa() == Isa::kAvx512 && MissingCpuFeatures("avx512vnni").empty()) return &kAvx512Quads;
    if (ChosenIsa() == Isa::kAvx2 && MissingCpuFeatures("avxvnni").empty()) return &kAvx2Quads;
    return nullptr;
  }();
  return quads;
#else
  return nullptr;
#endif
}

bool TakesQuads(const GemmShape& s) {
  auto byte = [](Element e) { return e == Element::kS8 || e == Element::kU8; };
  return ChosenQuads() && byte(s.a_type) && byte(s.b_type) && SizeOf(s.d_type) <= 4 && !IsFloat(s.d_type);
}

Result<Accumulator> AccumulatorFor(Element a, Element b, Element d) {
  if (SizeOf(a) == 0 || SizeOf(b) == 0 || SizeOf(d) == 0) {
    return InvalidArgument("a matrix product of " + NameOf(a) + " and " + NameOf(b) + " to " + NameOf(d) +
                           " is not defined");
  }
  bool complex = IsComplex(a) || IsComplex(b) || IsComplex(d);
  bool wide = a == Element::kC128 || b == Element::kC128 || d == Element::kC128 || a == Element::kF64 ||
              b == Element::kF64 || d == Element::kF64;
  if (complex) return wide ? Accumulator::kC128 : Accumulator::kC64;
  if (IsFloat(a) || IsFloat(b) || IsFloat(d)) return wide ? Accumulator::kF64 : Accumulator::kF32;
  return SizeOf(d) == 8 ? Accumulator::kU64 : Accumulator::kU32;
}

bool ReadsBf16Once(const GemmShape& s) {
  int64_t large = s.m == 1 ? 256 << 10 : 4 << 20;  // elements; below, a library's instructions are worth more
  return s.b_type == Element::kBF16 && s.b_col == 1 && s.m <= kFewRows && !IsComplex(s.a_type) &&
         SizeOf(s.a_type) <= 4 && s.k * s.n >= large;
}

namespace {

using namespace gemm;

constexpr int64_t kFewVectors = 8;
// Up to so many rows a kept right side was measured to pay, of floats and of bytes.
constexpr int64_t kFewPacked = 100, kSomePacked = 1024;

// A vector times a large matrix, whose rows are read from end to end: each part of the rows, in pieces of columns, has
// sums of its own, which are added up at the end. The parts are the same for every number of threads.
template <class T, class F>
void RowByRow(int64_t k, int64_t n, const T* x, int64_t x_k, const T* y, int64_t y_k, T* d, ThreadPool* pool,
              F&& finish) {
  const auto& kernels = KernelsOf<T>(ChosenKernels());
  constexpr int64_t kColumns = (16 << 10) / sizeof(T), kMostTasks = 32, kTaskBytes = 1 << 20;
  int64_t pieces = (n + kColumns - 1) / kColumns;
  int64_t wanted = std::min(kMostTasks, k * n * static_cast<int64_t>(sizeof(T)) / kTaskBytes);
  int64_t parts = std::clamp<int64_t>(wanted / pieces, 1, std::max<int64_t>(1, k / 64));
  T* sums = parts == 1 ? d : ThreadScratch().d.template Get<T>(parts * n);
  Spread(pool, parts * pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t part = i / pieces, j = i % pieces * kColumns, columns = std::min(kColumns, n - j);
      int64_t from = Border(k, parts, 8, part), to = Border(k, parts, 8, part + 1);
      T* part_sums = sums + part * n + j;
      std::fill_n(part_sums, columns, T(0));
      kernels.add_rows(to - from, columns, x + from * x_k, x_k, y + from * y_k + j, y_k, part_sums);
    }
  });
  constexpr int64_t kUnit = 2 * kEpilogueUnit;
  Spread(pool, (n + kUnit - 1) / kUnit, std::max<int64_t>(1, kWorthAdding / (kUnit * parts)),
         [&](int64_t begin, int64_t end) {
           int64_t j = begin * kUnit, columns = std::min(n, end * kUnit) - j;
           const T one(1);
           if (parts > 1) kernels.row_times_matrix(parts, columns, &one, 0, sums + j, n, d + j);
           finish(j, columns);
         });
}

// Products with a vector, or with a few whose dot products with the columns of a matrix are wanted: memory bounds them,
// so nothing is packed. False when the case is another one.
template <class T>
bool VectorProduct(const GemmShape& s, const void* a, const void* b, void* d, ThreadPool* pool,
                   const Epilogue* epilogue) {
  if constexpr (!Traits<T>::kComplex) {
    if (!IsDirect<T>(s.a_type) || !IsDirect<T>(s.b_type) || !IsDirect<T>(s.d_type) || s.k == 0 || s.add) {
      return false;
    }
    const auto& kernels = KernelsOf<T>(ChosenKernels());
    // As row vectors x times a matrix Y of k rows; column vectors are the transposed case.
    bool row = s.m <= s.n;
    int64_t vectors = row ? s.m : s.n, count = row ? s.n : s.m;
    int64_t x_k = row ? s.a_col : s.b_row, x_vector = row ? s.a_row : s.b_col;
    int64_t y_k = row ? s.b_row : s.a_col, y_n = row ? s.b_col : s.a_row;
    int64_t d_vector = row ? s.d_row : 1, d_n = row ? 1 : s.d_row;
    bool dots = y_k == 1 && x_k == 1 && s.k >= 64 && vectors <= kFewVectors;
    if (!dots && (vectors != 1 || y_n != 1 || d_n != 1)) return false;
    if (!dots && s.batch == 1 && s.k * count * static_cast<int64_t>(sizeof(T)) >= Blocked<T>::kLargeBytes) {
      RowByRow(s.k, count, static_cast<const T*>(row ? a : b), x_k, static_cast<const T*>(row ? b : a), y_k,
               static_cast<T*>(d), pool, [&](int64_t j, int64_t n) {
                 if (epilogue && row) (*epilogue)(0, 1, j, n);
                 if (epilogue && !row) (*epilogue)(j, n, 0, 1);
               });
      return true;
    }
    int64_t unit = dots ? 4 : 256 / static_cast<int64_t>(sizeof(T));
    if (epilogue && row) unit = std::max(unit, kEpilogueUnit);
    int64_t units = (count + unit - 1) / unit;
    int64_t grain = std::max<int64_t>(1, (1 << 16) / (unit * s.k * vectors));
    Spread(pool, s.batch * units, grain, [&](int64_t begin, int64_t end) {
      while (begin < end) {
        int64_t batch = begin / units, first = begin % units, last = std::min(units, first + end - begin);
        const T* x = static_cast<const T*>(row ? a : b) + batch * (row ? s.a_batch : s.b_batch);
        const T* y = static_cast<const T*>(row ? b : a) + batch * (row ? s.b_batch : s.a_batch);
        T* to = static_cast<T*>(d) + batch * s.d_batch;
        int64_t from = first * unit, n = std::min(count, last * unit) - from;
        if (!dots) {
          kernels.row_times_matrix(s.k, n, x, x_k, y + from, y_k, to + from);
        }
        // A few columns of Y stay in the cache while all vectors meet them.
        for (int64_t j = from; dots && j < from + n; j += unit) {
          Dots(s.k, vectors, x, x_vector, std::min(unit, from + n - j), y + j * y_n, y_n, to + j * d_n, d_vector, d_n);
        }
        if (epilogue && row) (*epilogue)(batch* s.m, s.m, from, n);
        if (epilogue && !row) (*epilogue)(batch* s.m + from, n, 0, s.n);
        begin += last - first;
      }
    });
    return true;
  }
  return false;
}

// The parts in which the sums of a small result are formed where they are long, as in gradients of weights; else each
// thread would read one whole side. They are the same for every number of threads.
template <class T>
int64_t PartsOfSums(const GemmShape& s) {
  constexpr int64_t kMostParts = 32, kMostSums = (64 << 10) / sizeof(T);
  const GroupKernels* groups = GroupsOf<T>(s);
  const int64_t least = 8 * Blocked<T>::kDepth * (groups ? groups->elements : 1);
  bool fits =
      s.batch == 1 && !s.add && IsDirect<T>(s.d_type) && s.m * s.n <= kMostSums && !Blocked<T>::IsThin(s, s.m, s.n);
  return fits ? std::clamp<int64_t>(s.k / least, 1, kMostParts) : 1;
}

// False where the sums are formed in one part.
template <class T>
bool LongSums(const GemmShape& s, const void* a, const void* b, void* d, ThreadPool* pool, const Epilogue* epilogue) {
  const int64_t sums = s.m * s.n, parts = PartsOfSums<T>(s), depth = Blocked<T>::DepthOf(TilesOf<T>(s).columns);
  if (parts == 1) return false;
  GemmShape part = s;
  part.d_row = s.n;
  T* all = ThreadScratch().d.template Get<T>(parts * sums);
  Spread(pool, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      GemmShape shape = part;
      const int64_t from = Border(s.k, parts, depth, i);
      shape.k = Border(s.k, parts, depth, i + 1) - from;
      Blocked<T>(shape, GemmExtras{})
          .Block(At(a, s.a_type, from * s.a_col), At(b, s.b_type, from * s.b_row), all + i * sums, 0, 0, s.m, 0, s.n);
    }
  });
  AddParts(s, parts, all, sums, s.n, 1, static_cast<T*>(d), pool, epilogue);
  return true;
}

constexpr double kSmall = 1 << 17;  // multiply-adds below which another thread does not pay
// A longer product waits less for a thread that others have stopped, where each has two pieces; in one less is packed.
constexpr double kLong = 8192 * kSmall;

double WorkOf(const GemmShape& s) { return static_cast<double>(s.m) * s.n * std::max<int64_t>(s.k, 1); }

// A right side that each thread may as well have in its own cache. Then rows are cut: what comes before and after a
// product goes by rows, too, and what a thread has written it need not fetch from another's cache.
constexpr int64_t kNear = 1 << 18;

// Into how many pieces each matrix is cut, of whole units of rows and columns.
struct Grid {
  int64_t down = 1, across = 1;
};

Grid GridOf(const GemmShape& s, int64_t threads, int64_t rows, int64_t columns, bool packed, bool kept,
            bool a_in_place) {
  const double work = WorkOf(s), all = work * s.batch;
  if (threads == 1 || all < 2 * kSmall) return {};
  // Cut until there is enough for every thread, along the longer side first; of two equal ones along the columns where
  // only these are packed.
  const int64_t wanted = threads * (all > kLong ? 2 : 1);
  const bool near = kept && s.k * s.n * SizeOf(s.b_type) <= kNear && s.m >= threads * rows;
  int64_t down = 1, across = 1;
  auto worth = [&](int64_t pieces) { return work / static_cast<double>(pieces) > 2 * kSmall; };
  while (s.batch * down * across < wanted && worth(down * across)) {
    const int64_t high = s.m / down, wide = s.n / across;
    bool cut_rows = high > wide || (high == wide && !a_in_place) ? high >= 2 * rows : wide < 2 * columns;
    cut_rows = near || (cut_rows && !packed);  // else each thread would read all of B
    if (cut_rows && !near && high < 2 * rows) break;
    ++(cut_rows ? down : across);
  }
  if (threads <= 2 || packed) return {down, across};
  // Many threads are better off with a whole number of pieces each. They do not run equally fast, so that the last
  // pieces count, and each piece packs its rows and columns: in the time of some 32 multiply-adds an element.
  const int64_t row_units = (s.m + rows - 1) / rows, column_units = (s.n + columns - 1) / columns;
  auto cost = [&](int64_t d, int64_t a) {
    auto m = static_cast<double>((row_units + d - 1) / d * rows);
    auto n = static_cast<double>((column_units + a - 1) / a * columns);
    return static_cast<double>((s.batch * d * a - 1) / threads + 2) * (m * n + 32 * (m + n));
  };
  double least = cost(down, across);
  for (int64_t each = 1; each <= 4; ++each) {
    const int64_t pieces = (each * threads + s.batch - 1) / s.batch;
    for (int64_t a = 1; a <= std::min(pieces, column_units) && worth(pieces); ++a) {
      if (pieces % a != 0 || pieces / a > row_units) continue;
      if (double found = cost(pieces / a, a); found < least) {
        least = found;
        down = pieces / a;
        across = a;
      }
    }
  }
  return {down, across};
}

// Products for whose shapes there are loops of their own; false where it is another one.
template <class T>
bool OfSomeShape(const GemmShape& s, const void* a, const void* b, void* d, ThreadPool* pool,
                 const GemmExtras& extras) {
  const Epilogue* epilogue = extras.epilogue;
  if constexpr (std::is_floating_point_v<T>) {
    if (FewColumnsProduct<T>(s, a, b, d, pool, epilogue)) return true;
  }
  if (VectorProduct<T>(s, a, b, d, pool, epilogue)) return true;
  if (extras.packed) return false;
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, uint32_t>) {
    if (NarrowVectorProduct<T>(s, a, b, d, pool, epilogue)) return true;
  }
  if constexpr (!Traits<T>::kComplex) {
    if (TallProduct<T>(s, a, b, d, pool, epilogue)) return true;
  }
  return LongSums<T>(s, a, b, d, pool, epilogue);
}

template <class T>
void Multiply(const GemmShape& s, const void* a, const void* b, void* d, ThreadPool* pool, const GemmExtras& extras) {
  const Epilogue* epilogue = extras.epilogue;
  if (extras.made ? DotsWithMade(s, a, d, pool, extras) : OfSomeShape<T>(s, a, b, d, pool, extras)) return;
  Blocked<T> blocked(s, extras);
  const auto& kernels = TilesOf<T>(s);
  int64_t threads = pool ? pool->threads() : 1;
  // Threads share few columns more evenly by half panels.
  const int64_t panel = extras.packed || s.n >= 8 * threads * kernels.columns ? kernels.columns : kernels.columns / 2;
  const int64_t unit = std::max<int64_t>(panel, epilogue || extras.made ? kEpilogueUnit : 0);
  // Small kept panels are read by each thread as well as packed rows would be.
  const GroupKernels* groups = GroupsOf<T>(s);
  bool shared = extras.packed && !(groups && s.k * s.n * SizeOf(s.b_type) <= Blocked<T>::kLargeBytes);
  // What is computed is so once, where there are columns for all.
  if (extras.made) shared = s.n >= threads * unit;
  const bool a_in_place = !Traits<T>::kComplex && !groups && s.a_col == 1;
  const auto [down, across] = GridOf(s, threads, kernels.rows, unit, shared, extras.packed, a_in_place);
  int64_t tiles = down * across;
  int64_t grain = std::max<int64_t>(1, static_cast<int64_t>(kSmall / (WorkOf(s) / static_cast<double>(tiles) + 1)));
  Spread(pool, s.batch * tiles, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t batch = i / tiles, row = i % tiles / across, column = i % across;
      blocked.Block(a, b, d, batch, Border(s.m, down, kernels.rows, row), Border(s.m, down, kernels.rows, row + 1),
                    Border(s.n, across, unit, column), Border(s.n, across, unit, column + 1));
    }
  });
}

}  // namespace

bool TakesPacked(const GemmShape& s) {
  if (s.batch != 1 || s.add || s.n < 64) return false;
  if (TakesQuads(s)) {
    return s.d_type == Element::kS32 && s.m > 1 && s.m <= kSomePacked && PartsOfSums<uint32_t>(s) == 1;
  }
  bool direct = s.a_type == Element::kF32 && s.b_type == Element::kF32 && s.d_type == Element::kF32;
  bool vectors = s.m == 1 || (s.b_row == 1 && s.m <= kFewVectors);  // they read B from end to end anyway
  return direct && !vectors && s.m <= kFewPacked && PartsOfSums<float>(s) == 1 &&
         s.k * s.n * static_cast<int64_t>(sizeof(float)) >= Blocked<float>::kLargeBytes;
}

bool FitsPacked(const GemmShape& s) {
  return s.batch == 1 && s.b_type == Element::kF32 && s.n > 0 && s.k > 0 && s.n % ChosenKernels().f32.columns == 0;
}

namespace {

template <class T>
int64_t BytesOfPanels(const GemmShape& s) {
  const auto& tiles = TilesOf<T>(s);
  const GroupKernels* groups = GroupsOf<T>(s);
  const int64_t depth = Blocked<T>::DepthOf(tiles.columns), step = groups ? depth * groups->elements : depth;
  const int64_t rest = s.k % step, last = rest ? Blocked<T>::DepthOf(groups, rest) : 0;
  return (Blocked<T>::KeptAt(s, groups, s.k, depth) + last * PackedColumns(s.n, tiles.columns)) * 4;
}

template <class T>
void PackPanels(const GemmShape& s, const void* b, void* packed, ThreadPool* pool) {
  const Blocked<T> blocked(s, GemmExtras{});
  const int64_t width = TilesOf<T>(s).columns;
  Spread(pool, DivideUp(s.n, width), 1,
         [&](int64_t begin, int64_t end) { blocked.PackKept(b, begin * width, end * width, static_cast<T*>(packed)); });
}

}  // namespace

int64_t PackedBytes(const GemmShape& s) { return TakesQuads(s) ? BytesOfPanels<uint32_t>(s) : BytesOfPanels<float>(s); }

void PackRight(const GemmShape& s, const void* b, void* packed, ThreadPool* pool) {
  TakesQuads(s) ? PackPanels<uint32_t>(s, b, packed, pool) : PackPanels<float>(s, b, packed, pool);
}

void BlockedGemm(const GemmShape& shape, Accumulator accumulator, const void* a, const void* b, void* d,
                 ThreadPool* pool, const GemmExtras& extras) {
  if (shape.batch <= 0 || shape.m <= 0 || shape.n <= 0) return;
  switch (accumulator) {
    case Accumulator::kF32:
      return Multiply<float>(shape, a, b, d, pool, extras);
    case Accumulator::kF64:
      return Multiply<double>(shape, a, b, d, pool, extras);
    case Accumulator::kU32:
      return Multiply<uint32_t>(shape, a, b, d, pool, extras);
    case Accumulator::kU64:
      return Multiply<uint64_t>(shape, a, b, d, pool, extras);
    case Accumulator::kC64:
      return Multiply<std::complex<float>>(shape, a, b, d, pool, extras);
    case Accumulator::kC128:
      return Multiply<std::complex<double>>(shape, a, b, d, pool, extras);
  }
}

}  // namespace ferrule

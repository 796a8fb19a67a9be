// One block of the own matrix product on one thread: packed panels, and tiles of vector registers (gemm_kernel.h).
#pragma once

#include <algorithm>
#include <complex>
#include <type_traits>

#include "aligned_scratch.h"
#include "divide.h"
#include "epilogue.h"
#include "gemm_blocked.h"
#include "gemm_made.h"

namespace ferrule {
namespace gemm {

struct Scratch {
  AlignedScratch a, b, row, tile, d;
};
inline Scratch& ThreadScratch() {
  static thread_local Scratch scratch;
  return scratch;
}

template <class T>
struct Traits {  // float, double, uint32_t, uint64_t
  using Real = T;
  static constexpr bool kComplex = false;
  static constexpr int kParts = 1;
};
template <class R>
struct Traits<std::complex<R>> {
  using Real = R;
  static constexpr bool kComplex = true;
  static constexpr int kParts = 2;
};

template <class T>
const auto& KernelsOf(const GemmKernels& all) {
  if constexpr (std::is_same_v<T, float>) return all.f32;
  if constexpr (std::is_same_v<T, double>) return all.f64;
  if constexpr (std::is_same_v<T, uint32_t>) return all.u32;
  if constexpr (std::is_same_v<T, uint64_t>) return all.u64;
  if constexpr (std::is_same_v<T, std::complex<float>>) return all.c64;
  if constexpr (std::is_same_v<T, std::complex<double>>) return all.c128;
}

inline const char* At(const void* base, Element e, int64_t elements) {
  return static_cast<const char*>(base) + elements * SizeOf(e);
}

// Where GroupKernels has the packs of a type; -1 where it has none.
inline int GroupTypeOf(Element e) {
  return e == Element::kS8 ? kGroupS8 : e == Element::kU8 ? kGroupU8 : e == Element::kS16 ? kGroupS16 : -1;
}

// Where FloatPacks has the packs of a type; -1 where it has none.
inline int StoredTypeOf(Element e) {
  return e == Element::kBF16 ? kStoredBf16 : e == Element::kS8 ? kStoredS8 : e == Element::kU8 ? kStoredU8 : -1;
}

// What a product is made of whose sums in T are formed of groups of small integers; else null.
template <class T>
const GroupKernels* GroupsOf(const GemmShape& s) {
  if constexpr (std::is_same_v<T, uint32_t>) {
    if (GroupTypeOf(s.a_type) < 0 || GroupTypeOf(s.b_type) < 0) return nullptr;
    if (TakesQuads(s)) return ChosenQuads();
    if (ChosenKernels().pairs.elements > 0) return &ChosenKernels().pairs;
  }
  return nullptr;
}

// The tiles of a product.
template <class T>
const auto& TilesOf(const GemmShape& s) {
  if constexpr (std::is_same_v<T, uint32_t>) {
    if (const GroupKernels* groups = GroupsOf<T>(s)) return groups->tiles;
  }
  return KernelsOf<T>(ChosenKernels());
}

// All columns of whole panels.
inline int64_t PackedColumns(int64_t n, int64_t width) { return (n + width - 1) / width * width; }

// Dot products of all vectors, `x_vector` elements apart, with so many of y's, along k, in which both are adjacent.
template <class T>
void Dots(int64_t k, int64_t vectors, const T* x, int64_t x_vector, int64_t count, const T* y, int64_t y_n, T* d,
          int64_t d_vector, int64_t d_n) {
  const auto& kernels = KernelsOf<T>(ChosenKernels());
  for (int64_t v = 0; v < vectors;) {
    const int which = vectors - v >= 4 ? 2 : vectors - v >= 2 ? 1 : 0;
    kernels.dots[which](k, count, x + v * x_vector, x_vector, y, y_n, d + v * d_vector, d_vector, d_n);
    v += 1 << which;
  }
}

template <class T>
class Blocked {
 public:
  using R = typename Traits<T>::Real;
  static constexpr int kParts = Traits<T>::kParts;
  static constexpr bool kComplex = Traits<T>::kComplex;
  // A block of A stays in the second-level cache, a panel of B in the first-level one: with tiles of two vectors of 64
  // bytes so many rows of B, of narrower ones twice as many.
  static constexpr int64_t kDepth = sizeof(T) <= 4 ? 256 : sizeof(T) <= 8 ? 192 : 128;
  // A right side of so many bytes is read where it lies: it is in the first-level cache after the first tile.
  static constexpr int64_t kSmallBytes = 32 << 10;
  // One of so many is not in the second-level cache.
  static constexpr int64_t kLargeBytes = 1 << 20;
  // Rows of A of so many bytes may be fetched a tile ahead; those of complex numbers all at once, not in the tile's
  // steps.
  static constexpr int64_t kFetchedRow = kComplex ? 512 : 2048;
  // One of so many is hardly in the last cache when it is used again.
  static constexpr int64_t kHugeBytes = 16 << 20;
  // Sums of so many are written to where they have to be waited for.
  static constexpr int64_t kFarBytes = 6 << 20;
  static constexpr int64_t kColumns = 4096 / sizeof(T);
  // A side that is computed: so many of its columns, for so long a way along k, at a time, from which up to so many
  // rows are multiplied where they were written.
  static constexpr int64_t kWideColumns = 512, kWideDepth = 64, kWideRows = 128;
  // Up to so many rows of A read a B whose rows are on lines of their own where it lies.
  static constexpr int64_t kLineRows = 128, kLineBytes = 2 << 20;
  // Sums of so many terms take less time than writing them.
  static constexpr int64_t kShortSums = 16;
  // Rows so many bytes apart have the same places in the first-level cache.
  static constexpr int64_t kPage = 4096;
  // Rows of sums that are kept elsewhere until they are rounded: B is packed once for them.
  static constexpr int64_t kSumRows = 512;

  // So many columns of a block are finished at once, or of few rows as many as have kEpilogueBytes: they are in the
  // second-level cache, and each row is worth a loop.
  static constexpr int64_t kFinished = 2 * kEpilogueUnit;
  // So many sums whose rows are whole are.
  static constexpr int64_t kWorthFinishing = 4096;

  Blocked(const GemmShape& shape, const GemmExtras& extras)
      : s_(shape),
        epilogue_(extras.epilogue),
        packed_(static_cast<const R*>(extras.packed)),
        made_(extras.made),
        kernels_(TilesOf<T>(shape)),
        depth_(DepthOf(kernels_.columns)),
        rows_(IsNarrow(kernels_.columns) ? 96 : 192),
        groups_(GroupsOf<T>(shape)),
        a_direct_(IsDirect<T>(shape.a_type)),
        b_direct_(IsDirect<T>(shape.b_type)),
        d_direct_(IsDirect<T>(shape.d_type)) {}

  // The rows of B in a panel of so many columns.
  static int64_t DepthOf(int64_t columns) { return IsNarrow(columns) ? 2 * kDepth : kDepth; }

  // The elements of a panel of so many of the operand's.
  static int64_t DepthOf(const GroupKernels* groups, int64_t elements) {
    return groups ? DivideUp(elements, groups->elements) + (HasBeginning(groups) ? 1 : 0) : elements;
  }
  static bool HasBeginning(const GroupKernels* groups) { return groups && groups->add_up[0]; }

  // Where the kept panels of B begin whose first row is `k`, a multiple of what panels of `depth` hold.
  static int64_t KeptAt(const GemmShape& s, const GroupKernels* groups, int64_t k, int64_t depth) {
    const int64_t step = groups ? depth * groups->elements : depth;
    return k / step * DepthOf(groups, step) * PackedColumns(s.n, TilesOf<T>(s).columns);
  }

  // Packs B's columns from `begin` to `end`, whole panels, to where they are kept.
  void PackKept(const void* b, int64_t begin, int64_t end, R* packed) const {
    const int64_t step = groups_ ? depth_ * groups_->elements : depth_;
    for (int64_t pc = 0; pc < s_.k; pc += step) {
      const int64_t elements = std::min(step, s_.k - pc), depth = DepthOf(groups_, elements);
      Pack<false>(At(b, s_.b_type, begin * s_.b_col + pc * s_.b_row), s_.b_type, b_direct_, s_.b_col, s_.b_row,
                  std::min(end, s_.n) - begin, elements, packed + KeptAt(s_, groups_, pc, depth_) + begin * depth);
    }
  }

  // Whether a block of `m` rows and `n` columns reads its columns of B once, where they lie and a few rows at a time: B
  // comes from memory; or its rows are a multiple of a page apart, have the same places in the first-level cache, and
  // few of A's meet them there; or tiles are so narrow that panels of B take more steps.
  static bool IsThin(const GemmShape& s, int64_t m, int64_t n) {
    if constexpr (!kComplex) {
      constexpr int64_t kSize = sizeof(T), kWideTile = 128;
      const auto& kernels = TilesOf<T>(s);
      const bool slow = (s.b_row * kSize % kPage == 0 && m <= kernels.thin[kThinTiles - 2].rows) ||
                        kernels.columns * kSize < kWideTile;
      return IsDirect<T>(s.b_type) && s.b_col == 1 && m <= kernels.thin[kThinTiles - 1].rows &&
             s.k * n * kSize >= kLargeBytes && (slow || s.batch * s.k * s.n * kSize >= kHugeBytes);
    }
    return false;
  }

  // D[rows][columns] of one matrix, on this thread.
  void Block(const void* a, const void* b, void* d, int64_t batch, int64_t m0, int64_t m1, int64_t n0,
             int64_t n1) const {
    a = At(a, s_.a_type, batch * s_.a_batch);
    b = At(b, s_.b_type, batch * s_.b_batch);
    d = const_cast<char*>(At(d, s_.d_type, batch * s_.d_batch));
    if (m0 == m1 || n0 == n1) return;
    bool finished = Sums(a, b, d, batch, m0, m1, n0, n1);
    if (epilogue_ && !finished) (*epilogue_)(batch* s_.m + m0, m1 - m0, n0, n1 - n0);
  }

 private:
  // Where an element of B is; anywhere when it is computed.
  const void* RightAt(const void* b, int64_t elements) const { return made_ ? b : At(b, s_.b_type, elements); }

  // Tiles of vectors of up to 32 bytes.
  static bool IsNarrow(int64_t columns) { return columns * static_cast<int64_t>(sizeof(T)) <= 64; }

  // The block without the epilogue; true when that has been run as well.
  bool Sums(const void* a, const void* b, void* d, int64_t batch, int64_t m0, int64_t m1, int64_t n0,
            int64_t n1) const {
    a = At(a, s_.a_type, m0 * s_.a_row);
    b = RightAt(b, n0 * s_.b_col);
    char* to = const_cast<char*>(At(d, s_.d_type, m0 * s_.d_row + n0));
    int64_t m = m1 - m0, n = n1 - n0;
    if (s_.k == 0) {
      if (!s_.add) Zero(to, m, n);
      return false;
    }
    if (d_direct_) return Sum(a, b, reinterpret_cast<T*>(to), s_.d_row, m, n, batch * s_.m + m0, n0, n0);
    // Sums are kept in the accumulator's type; results are rounded once, at the end.
    for (int64_t i = 0; i < m; i += kSumRows) {
      int64_t rows = std::min(kSumRows, m - i);
      for (int64_t j = 0; j < n; j += kColumns) {
        int64_t columns = std::min(kColumns, n - j);
        T* sums = ThreadScratch().d.template Get<T>(rows * columns);
        Sum(At(a, s_.a_type, i * s_.a_row), RightAt(b, j * s_.b_col), sums, columns, rows, columns, -1, -1, n0 + j);
        for (int64_t r = 0; r < rows; ++r) {
          StoreElements(s_.d_type, to + ((i + r) * s_.d_row + j) * SizeOf(s_.d_type), 1, columns, sums + r * columns);
        }
      }
    }
    return false;
  }

  void Zero(char* to, int64_t m, int64_t n) const {
    int64_t size = SizeOf(s_.d_type);
    T zero(0);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) StoreElements(s_.d_type, to + (i * s_.d_row + j) * size, 1, 1, &zero);
    }
  }

  // `row` and `column`: where in the product this block is; negative when D is somewhere else. `right_column`: where
  // in B it is.
  bool Sum(const void* a, const void* b, T* d, int64_t d_row, int64_t m, int64_t n, int64_t row, int64_t column,
           int64_t right_column) const {
    const int mr = kernels_.rows, nr = kernels_.columns;
    if constexpr (!kComplex) {
      if (!packed_ && !made_ && IsThin(s_, m, n)) {
        ThinSum(a, static_cast<const T*>(b), d, d_row, m, n);
        return false;
      }
    }
    Scratch& scratch = ThreadScratch();
    // Packing pays when what is packed is used often: A for each panel of columns, B for each panel of rows. Rows of A
    // whose elements are adjacent are read as fast where they lie, if a tile's rows do not have the same places in the
    // first-level cache.
    const bool apart = s_.a_row * static_cast<int64_t>(sizeof(T)) % kPage != 0;
    bool a_in_place =
        !packed_ && a_direct_ && (n <= 4 * nr || m * s_.k <= 128 * 128 || (!kComplex && s_.a_col == 1 && apart));
    // Few rows wait for kept panels from memory; for panels that the last cache has, fetching them is only more work.
    bool fetch = packed_ && !groups_ && (m >= 32 || s_.k * s_.n * static_cast<int64_t>(sizeof(T)) >= kHugeBytes);
    bool in_cache = s_.k * n * static_cast<int64_t>(sizeof(T)) <= kSmallBytes && s_.b_row <= 2 * n;
    bool b_in_place = !kComplex && !packed_ && !made_ && b_direct_ && s_.b_col == 1 &&
                      (m <= 2 * mr || in_cache || (m <= kLineRows && OnLines(b, n)));
    // A tile reads its rows of A side by side, which no hardware looks ahead for: short ones are fetched a tile before.
    bool fetch_rows = a_in_place && s_.a_col == 1 && s_.a_row == s_.k && m > 4 * mr &&
                      s_.k * static_cast<int64_t>(sizeof(T)) * kParts <= kFetchedRow;
    // Short sums are mostly writing: D's rows are written from end to end then. The panels of B come from the
    // second-level cache.
    const bool far = s_.batch * s_.m * s_.n * static_cast<int64_t>(sizeof(T)) >= kFarBytes;
    const bool by_rows = !fetch && s_.k <= (far ? 3 : 1) * kShortSums;
    // Along k a panel has `depth` elements, each of which may be a group of the operand's.
    const int64_t step = groups_ ? groups_->elements : 1;
    // What is computed for few rows is multiplied from where it has been written to, in a near cache.
    const bool wide = made_ && s_.b_col == 1 && m <= kWideRows;
    const int64_t most = wide ? kWideColumns : kColumns, deepest = wide ? kWideDepth : depth_ * step;
    constexpr int64_t kWideStep = kWideColumns + 64 / sizeof(R);  // its rows have several places in a cache
    for (int64_t jc = 0; jc < n; jc += most) {
      int64_t columns = std::min(most, n - jc);
      for (int64_t pc = 0; pc < s_.k; pc += deepest) {
        int64_t elements = std::min(deepest, s_.k - pc), depth = DepthOf(groups_, elements);
        bool finish = epilogue_ && row >= 0 && pc + elements == s_.k;
        const void* right_from = RightAt(b, jc * s_.b_col + pc * s_.b_row);
        const R* right = packed_ ? packed_ + KeptAt(s_, groups_, pc, depth_) + (column + jc) * depth : nullptr;
        // Columns that are read where they are: whole panels, and half of one at the end.
        int64_t whole_columns = !b_in_place ? 0 : columns % (nr / 2) == 0 ? columns : columns / nr * nr;
        if (made_) {
          R* computed = scratch.b.Get<R>(std::max(kWideStep, columns + nr) * depth);
          if constexpr (std::is_same_v<T, float>) {
            if (wide) (*made_)(computed, kWideStep, pc, depth, right_column + jc, columns);
            if (!wide) Make(right_column + jc, columns, pc, depth, computed);
          }
          right = computed;
        } else if (!packed_ && whole_columns < columns) {
          R* panels = scratch.b.Get<R>((columns + nr) * depth * kParts);
          Pack<false>(At(right_from, s_.b_type, whole_columns * s_.b_col), s_.b_type, b_direct_, s_.b_col, s_.b_row,
                      columns - whole_columns, elements, panels);
          right = panels;
        }
        for (int64_t ic = 0; ic < m; ic += rows_) {
          int64_t rows = std::min(rows_, m - ic);
          const void* from = At(a, s_.a_type, ic * s_.a_row + pc * s_.a_col);
          R* left = scratch.a.Get<R>((rows + mr) * depth * kParts);
          // Rows that are read where they are: whole tiles, and the rest in tiles of few.
          int64_t whole = a_in_place ? rows / mr * mr : 0;
          int64_t few = a_in_place && (rows - whole) % kFewRows == 0 ? rows : whole;
          if (few < rows) {
            Pack<true>(At(from, s_.a_type, whole * s_.a_row), s_.a_type, a_direct_, s_.a_row, s_.a_col, rows - whole,
                       elements, left);
          }
          auto panel_at = [&](int64_t j) {
            if (wide) return Panel{depth, right + j, kWideStep, std::min<int64_t>(nr, columns - j), pc > 0 || s_.add};
            const bool there = j < whole_columns;
            const R* from_b = there ? reinterpret_cast<const R*>(At(right_from, s_.b_type, j * s_.b_col))
                                    : right + (j - whole_columns) * depth * kParts;
            return Panel{depth, from_b, there ? s_.b_row : nr * kParts, std::min<int64_t>(nr, columns - j),
                         pc > 0 || s_.add};
          };
          // One tile of rows, or what is left of the block's, for one panel.
          auto multiply = [&](int64_t i, int64_t j, Panel& panel) {
            T* to = d + (ic + i) * d_row + jc + j;
            if (i < whole) {
              panel.next_rows = fetch_rows && j == 0;
              if (kComplex && panel.next_rows) FetchRows(At(from, s_.a_type, (i + mr) * s_.a_row), mr * s_.a_row);
              Tile(kStridedRows, panel, reinterpret_cast<const R*>(At(from, s_.a_type, i * s_.a_row)),
                   s_.a_row * kParts, s_.a_col * kParts, to, d_row, mr);
              return;
            }
            if (i < few) {
              for (int64_t r = i; r < rows; r += kFewRows) {
                Tile(kFewStridedRows, panel, reinterpret_cast<const R*>(At(from, s_.a_type, r * s_.a_row)),
                     s_.a_row * kParts, s_.a_col * kParts, d + (ic + r) * d_row + jc + j, d_row, kFewRows);
              }
              return;
            }
            const R* a_panel = left + (i - whole) * depth * kParts;
            int64_t count = std::min<int64_t>(mr, rows - i);
            if ((count + kFewRows - 1) / kFewRows * kFewRows >= mr) {
              Tile(kPackedRows, panel, a_panel, kParts, mr * kParts, to, d_row, count);
              return;
            }
            for (int64_t r = 0; r < count; r += kFewRows) {
              Tile(kFewStridedRows, panel, a_panel + r * kParts, kParts, mr * kParts, to + r * d_row, d_row,
                   std::min<int64_t>(kFewRows, count - r));
            }
          };
          if (by_rows) {
            int64_t finished = 0;
            for (int64_t i = 0; i < rows; i += mr) {
              for (int64_t j = 0; j < columns; j += nr) {
                Panel panel = panel_at(j);
                multiply(i, j, panel);
              }
              const int64_t end = std::min(i + mr, rows);
              if (finish && ((end - finished) * columns >= kWorthFinishing || end == rows)) {
                (*epilogue_)(row + ic + finished, end - finished, column + jc, columns);
                finished = end;
              }
            }
            continue;
          }
          const int64_t finished_at =
              std::max(kFinished, kEpilogueBytes / (rows * static_cast<int64_t>(sizeof(T))) / kFinished * kFinished);
          int64_t finished = 0;
          for (int64_t j = 0; j < columns; j += nr) {
            Panel panel = panel_at(j);
            if (fetch) panel.FetchNext(nr, rows <= kFewRows || (rows <= mr && rows > mr - kFewRows));
            for (int64_t i = 0; i < rows; i += mr) multiply(i, j, panel);
            int64_t end = std::min(j + nr, columns);
            if (finish && (end % finished_at == 0 || end == columns)) {
              (*epilogue_)(row + ic, rows, column + jc + finished, end - finished);
              finished = end;
            }
          }
        }
      }
    }
    return epilogue_ && row >= 0;
  }

  // Computes panels of B's columns from `column` on, its rows from `k` on. Some rows as they lie in memory are computed
  // at a time, of B or of its transpose, since memory is read best so.
  void Make(int64_t column, int64_t columns, int64_t k, int64_t depth, float* panels) const {
    constexpr int64_t kRows = 32;
    const int64_t nr = kernels_.columns;
    if (s_.b_col == 1) {
      float* rows = ThreadScratch().row.template Get<float>(kRows * columns);
      for (int64_t p = 0; p < depth; p += kRows) {
        const int64_t count = std::min(kRows, depth - p);
        (*made_)(rows, columns, k + p, count, column, columns);
        for (int64_t j = 0; j < columns; j += nr) {
          kernels_.pack_columns(rows + j, 1, columns, std::min(nr, columns - j), count, panels + j * depth + p * nr);
        }
      }
      return;
    }
    float* rows = ThreadScratch().row.template Get<float>(nr * depth);
    for (int64_t j = 0; j < columns; j += nr) {
      const int64_t count = std::min(nr, columns - j);
      (*made_)(rows, depth, column + j, count, k, depth);
      kernels_.pack_columns(rows, depth, 1, count, depth, panels + j * depth);
    }
  }

  // Whether tiles read B's rows as fast as panels of them: their vectors are whole lines, which a second-level cache
  // has and which do not all have the same places in the first-level one.
  bool OnLines(const void* b, int64_t n) const {
    constexpr int64_t kLine = 64;
    const int64_t row = s_.b_row * static_cast<int64_t>(sizeof(T));
    return row % kLine == 0 && row % kPage != 0 && reinterpret_cast<uintptr_t>(b) % kLine == 0 &&
           s_.k * n * static_cast<int64_t>(sizeof(T)) <= kLineBytes;
  }

  // Asks for rows of A that lie close together.
  static void FetchRows(const char* rows, int64_t elements) {
    for (int64_t i = 0; i < elements * static_cast<int64_t>(sizeof(T)); i += 64) __builtin_prefetch(rows + i);
  }

  // The same for few rows: memory bounds it, so B is read once, where it lies.
  void ThinSum(const void* a, const T* b, T* d, int64_t d_row, int64_t m, int64_t n) const {
    const ThinTile<T>* tile = kernels_.thin;
    while (tile->rows < m) ++tile;
    Scratch& scratch = ThreadScratch();
    T* left = scratch.a.template Get<T>(tile->rows * depth_);
    T* sums = scratch.tile.template Get<T>(tile->rows * tile->columns);
    for (int64_t pc = 0; pc < s_.k; pc += depth_) {
      int64_t depth = std::min(depth_, s_.k - pc);
      PackThin(At(a, s_.a_type, pc * s_.a_col), m, depth, tile->rows, left);
      bool accumulate = pc > 0 || s_.add;
      for (int64_t j = 0; j < n; j += tile->columns) {
        int64_t columns = std::min<int64_t>(tile->columns, n - j), b_row = s_.b_row;
        const T* right = b + pc * s_.b_row + j;
        if (columns < tile->columns) {
          T* panel = scratch.b.template Get<T>(kernels_.columns * depth);
          kernels_.pack_columns(right, 1, s_.b_row, columns, depth, panel);
          right = panel, b_row = kernels_.columns;
        } else if (m == tile->rows) {
          tile->multiply(depth, left, 1, m, right, b_row, d + j, d_row, accumulate);
          continue;
        }
        tile->multiply(depth, left, 1, tile->rows, right, b_row, sums, tile->columns, false);
        AddTile(sums, tile->columns, m, columns, accumulate, d + j, d_row);
      }
    }
  }

  // panel[p][rows] = A[i][p], with zeros where A has no row.
  void PackThin(const void* a, int64_t m, int64_t depth, int64_t rows, T* panel) const {
    T* row = ThreadScratch().row.template Get<T>(depth);
    for (int64_t i = 0; i < rows; ++i) {
      if (i < m) {
        LoadElements(s_.a_type, At(a, s_.a_type, i * s_.a_row), s_.a_col, depth, row);
      } else {
        std::fill_n(row, depth, T(0));
      }
      for (int64_t p = 0; p < depth; ++p) panel[p * rows + i] = row[p];
    }
  }

  void AddTile(const T* tile, int64_t width, int64_t rows, int64_t columns, bool accumulate, T* d,
               int64_t d_row) const {
    if constexpr (!kComplex) return kernels_.put_tile(tile, width, rows, columns, accumulate, d, d_row);
    for (int64_t i = 0; i < rows; ++i) {
      const T* from = tile + i * width;
      T* to = d + i * d_row;
      for (int64_t j = 0; j < columns; ++j) to[j] = accumulate ? static_cast<T>(to[j] + from[j]) : from[j];
    }
  }

  struct Panel {  // of B
    int64_t depth;
    const R* b;
    int64_t b_k, columns;
    bool accumulate;
    // Where the next panel is that tiles are to fetch meanwhile, which part is to come, and how many there are: the
    // first two tiles fetch a half each, a single one all of it.
    int64_t ahead = 0;
    int part = 0, parts = 0;
    bool next_rows = false;  // whether a tile fetches the rows of A that follow its own

    void FetchNext(int64_t width, bool single) { ahead = depth * width, parts = single ? 1 : 2; }
  };

  void Tile(RowsKind kind, Panel& p, const R* a, int64_t a_row, int64_t a_k, T* d, int64_t d_row, int64_t rows) const {
    int half = 2 * p.columns <= kernels_.columns;
    int width = kernels_.columns >> half;
    auto multiply = kernels_.tile[kind][half];
    if constexpr (!kComplex) {
      if (p.part < p.parts && !half) {
        multiply = kernels_.ahead[kind == kFewStridedRows][p.parts == 1];
        a_row = p.ahead + p.part++ * (kernels_.columns / 2);
      } else if (kind == kStridedRows && p.next_rows) {
        multiply = kernels_.next_rows[half];
      }
    }
    if (rows == (kind == kFewStridedRows ? kFewRows : kernels_.rows) && p.columns == width) {
      multiply(p.depth, a, a_row, a_k, p.b, p.b_k, reinterpret_cast<R*>(d), d_row * kParts, p.accumulate);
      return;
    }
    T* tile = ThreadScratch().tile.template Get<T>((kernels_.rows + kFewRows) * kernels_.columns);
    multiply(p.depth, a, a_row, a_k, p.b, p.b_k, reinterpret_cast<R*>(tile), width * kParts, false);
    AddTile(tile, width, rows, p.columns, p.accumulate, d, d_row);
  }

  // Panels of a matrix with `count` rows (or columns, of B): element (w, p) is at x + w * x_w + p * x_k.
  template <bool kLeft>
  void Pack(const void* x, Element type, bool direct, int64_t x_w, int64_t x_k, int64_t count, int64_t depth,
            R* panels) const {
    const int width = kLeft ? kernels_.rows : kernels_.columns;
    if constexpr (!kComplex) {
      if (direct) {
        auto pack = kLeft ? kernels_.pack_rows : kernels_.pack_columns;
        for (int64_t w = 0; w < count; w += width) {
          pack(static_cast<const T*>(x) + w * x_w, x_w, x_k, std::min<int64_t>(width, count - w), depth,
               panels + w * depth);
        }
        return;
      }
    }
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, uint32_t>) {
      if (groups_ || (std::is_same_v<T, float> && StoredTypeOf(type) >= 0)) {
        PackNarrow<kLeft>(x, type, x_w, x_k, count, depth, panels);
        return;
      }
    }
    auto put = [&](int64_t w, int64_t p, T value) {
      R* panel = panels + w / width * width * depth * kParts;
      int64_t lane = w % width;
      if constexpr (!kComplex) {
        panel[p * width + lane] = value;
      } else if constexpr (kLeft) {
        panel[(p * width + lane) * 2] = value.real();
        panel[(p * width + lane) * 2 + 1] = value.imag();
      } else {
        panel[p * width * 2 + lane] = value.real();
        panel[p * width * 2 + width + lane] = value.imag();
      }
    };
    for (int64_t w = count; w < (count + width - 1) / width * width; ++w) {
      for (int64_t p = 0; p < depth; ++p) put(w, p, T(0));
    }
    if constexpr (kComplex) {
      if (direct && (!kLeft || x_k == 1))
        return PackComplex<kLeft>(static_cast<const T*>(x), x_w, x_k, count, depth, panels);
    }
    T* row = ThreadScratch().row.template Get<T>(std::max(count, depth));
    if (x_w == 1) {
      for (int64_t p = 0; p < depth; ++p) {
        LoadElements(type, At(x, type, p * x_k), 1, count, row);
        if constexpr (!kComplex) {
          for (int64_t w = 0; w < count; w += width) {
            std::copy_n(row + w, std::min<int64_t>(width, count - w), panels + w * depth + p * width);
          }
        } else {
          for (int64_t w = 0; w < count; ++w) put(w, p, row[w]);
        }
      }
      return;
    }
    for (int64_t w = 0; w < count; ++w) {
      LoadElements(type, At(x, type, w * x_w), x_k, depth, row);
      for (int64_t p = 0; p < depth; ++p) put(w, p, row[p]);
    }
  }

  // The same with kernels that know the type in memory.
  template <bool kLeft>
  void PackNarrow(const void* x, Element type, int64_t x_w, int64_t x_k, int64_t count, int64_t elements,
                  R* panels) const {
    const int width = kLeft ? kernels_.rows : kernels_.columns;
    const int64_t depth = DepthOf(groups_, elements);
    const auto& packs = [&]() -> const auto& {
      if constexpr (std::is_same_v<T, uint32_t>)
        return groups_->packs[GroupTypeOf(type)];
      else
        return ChosenKernels().stored.packs[StoredTypeOf(type)];
    }();
    auto pack = kLeft ? packs.rows : packs.columns;
    if constexpr (std::is_same_v<T, uint32_t>) {
      if (HasBeginning(groups_)) {
        pack(x, x_w, x_k, count, elements, panels);
        for (int64_t w = 0; w < count; w += width) Begin<kLeft>(elements, depth, panels + w * depth);
        return;
      }
    }
    for (int64_t w = 0; w < count; w += width) {
      pack(At(x, type, w * x_w), x_w, x_k, std::min<int64_t>(width, count - w), elements, panels + w * depth);
    }
  }

  // What the sums of a panel begin with. Its bytes are a' = a + more on the left side and b' = b - less on the right
  // one, and the sum of a * b is that of a' * b' and of less * a', without that of more * b.
  template <bool kLeft>
  void Begin(int64_t elements, int64_t depth, uint32_t* panel) const {
    const uint32_t more = s_.a_type == Element::kS8 ? 128 : 0, less = s_.b_type == Element::kU8 ? 128 : 0;
    const uint32_t taken = kLeft ? 0 : static_cast<uint32_t>(elements) * less, times = kLeft ? less : 0 - more;
    const int width = kLeft ? kernels_.rows : kernels_.columns;
    if (times != 0) groups_->add_up[!kLeft](depth, panel);
    for (int w = 0; w < width; ++w) panel[w] = times == 0 ? 0 : times * (panel[w] + taken);
  }

  // The common cases of complex numbers: B (parts separated), and A with adjacent columns.
  template <bool kLeft>
  void PackComplex(const T* x, int64_t x_w, int64_t x_k, int64_t count, int64_t depth, R* panels) const {
    const int width = kLeft ? kernels_.rows : kernels_.columns;
    for (int64_t w0 = 0; w0 < count; w0 += width) {
      int64_t lanes = std::min<int64_t>(width, count - w0);
      const R* from = reinterpret_cast<const R*>(x + w0 * x_w);
      R* panel = panels + w0 * depth * 2;
      for (int64_t p = 0; p < depth; ++p) {
        R* to = panel + p * width * 2;
        const R* row = from + 2 * p * x_k;
        if (kLeft) {
          for (int64_t w = 0; w < lanes; ++w) {
            to[2 * w] = row[2 * w * x_w];
            to[2 * w + 1] = row[2 * w * x_w + 1];
          }
        } else if (x_w == 1) {
          for (int64_t w = 0; w < lanes; ++w) {
            to[w] = row[2 * w];
            to[width + w] = row[2 * w + 1];
          }
        } else {
          for (int64_t w = 0; w < lanes; ++w) {
            to[w] = row[2 * w * x_w];
            to[width + w] = row[2 * w * x_w + 1];
          }
        }
      }
    }
  }

  const GemmShape& s_;
  const Epilogue* epilogue_;
  const R* packed_;        // B in panels, or null
  const MadeRight* made_;  // what computes B, or null
  const std::remove_reference_t<decltype(KernelsOf<T>(kBaselineGemm))>& kernels_;
  const int64_t depth_, rows_;
  const GroupKernels* groups_;
  bool a_direct_, b_direct_, d_direct_;
};

}  // namespace gemm
}  // namespace ferrule

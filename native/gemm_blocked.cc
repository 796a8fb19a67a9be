#include "gemm_blocked.h"

#include <algorithm>
#include <complex>
#include <type_traits>

#include "aligned_scratch.h"
#include "cpu_features.h"
#include "gemm_epilogue.h"
#include "thread_pool.h"

namespace ferrule {

const GemmKernels& ChosenKernels() {
#if defined(__x86_64__)
  if (ChosenIsa() == Isa::kAvx512) return kAvx512Gemm;
  if (ChosenIsa() == Isa::kAvx2) return kAvx2Gemm;
#endif
  return kBaselineGemm;
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

struct Scratch {
  AlignedScratch a, b, row, tile, d;
};
Scratch& ThreadScratch() {
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

// Whether elements in memory already are what the accumulator type T needs.
template <class T>
bool IsDirect(Element e) {
  if constexpr (std::is_same_v<T, float>) return e == Element::kF32;
  if constexpr (std::is_same_v<T, double>) return e == Element::kF64;
  if constexpr (std::is_same_v<T, uint32_t>) return e == Element::kU32 || e == Element::kS32;
  if constexpr (std::is_same_v<T, uint64_t>) return e == Element::kU64 || e == Element::kS64;
  if constexpr (std::is_same_v<T, std::complex<float>>) return e == Element::kC64;
  if constexpr (std::is_same_v<T, std::complex<double>>) return e == Element::kC128;
  return false;
}

template <class T>
const auto& KernelsOf(const GemmKernels& all) {
  if constexpr (std::is_same_v<T, float>) return all.f32;
  if constexpr (std::is_same_v<T, double>) return all.f64;
  if constexpr (std::is_same_v<T, uint32_t>) return all.u32;
  if constexpr (std::is_same_v<T, uint64_t>) return all.u64;
  if constexpr (std::is_same_v<T, std::complex<float>>) return all.c64;
  if constexpr (std::is_same_v<T, std::complex<double>>) return all.c128;
}

const char* At(const void* base, Element e, int64_t elements) {
  return static_cast<const char*>(base) + elements * SizeOf(e);
}

// All columns of whole panels.
int64_t PackedColumns(int64_t n, int64_t width) { return (n + width - 1) / width * width; }

template <class T>
class Blocked {
 public:
  using R = typename Traits<T>::Real;
  static constexpr int kParts = Traits<T>::kParts;
  static constexpr bool kComplex = Traits<T>::kComplex;
  // A block of A stays in the second-level cache, a panel of B in the first-level one.
  static constexpr int64_t kDepth = sizeof(T) <= 4 ? 256 : sizeof(T) <= 8 ? 192 : 128;
  // A right side of so many bytes is read where it lies: it is in the first-level cache after the first tile.
  static constexpr int64_t kSmallBytes = 16 << 10;
  // One of so many is not in the second-level cache.
  static constexpr int64_t kLargeBytes = 1 << 20;
  // Rows of A of so many bytes may be fetched a tile ahead.
  static constexpr int64_t kFetchedRow = 512;
  // One of so many is hardly in the last cache when it is used again.
  static constexpr int64_t kHugeBytes = 16 << 20;
  static constexpr int64_t kRows = 192, kColumns = 4096 / sizeof(T);

  // So many columns of a block are finished at once: they are in the second-level cache, and each row is worth a loop.
  static constexpr int64_t kFinished = 2 * kEpilogueUnit;

  Blocked(const GemmShape& shape, const GemmExtras& extras)
      : s_(shape),
        epilogue_(extras.epilogue),
        packed_(static_cast<const R*>(extras.packed)),
        kernels_(KernelsOf<T>(ChosenKernels())),
        a_direct_(IsDirect<T>(shape.a_type)),
        b_direct_(IsDirect<T>(shape.b_type)),
        d_direct_(IsDirect<T>(shape.d_type)) {}

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
  // The block without the epilogue; true when that has been run as well.
  bool Sums(const void* a, const void* b, void* d, int64_t batch, int64_t m0, int64_t m1, int64_t n0,
            int64_t n1) const {
    a = At(a, s_.a_type, m0 * s_.a_row);
    b = At(b, s_.b_type, n0 * s_.b_col);
    char* to = const_cast<char*>(At(d, s_.d_type, m0 * s_.d_row + n0));
    int64_t m = m1 - m0, n = n1 - n0;
    if (s_.k == 0) {
      if (!s_.add) Zero(to, m, n);
      return false;
    }
    if (d_direct_) return Sum(a, b, reinterpret_cast<T*>(to), s_.d_row, m, n, batch * s_.m + m0, n0);
    // Sums are kept in the accumulator's type; results are rounded once, at the end.
    for (int64_t i = 0; i < m; i += kRows) {
      int64_t rows = std::min(kRows, m - i);
      for (int64_t j = 0; j < n; j += kColumns) {
        int64_t columns = std::min(kColumns, n - j);
        T* sums = ThreadScratch().d.template Get<T>(rows * columns);
        Sum(At(a, s_.a_type, i * s_.a_row), At(b, s_.b_type, j * s_.b_col), sums, columns, rows, columns, -1, -1);
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

  // `row` and `column`: where in the product this block is; negative when D is somewhere else.
  bool Sum(const void* a, const void* b, T* d, int64_t d_row, int64_t m, int64_t n, int64_t row, int64_t column) const {
    const int mr = kernels_.rows, nr = kernels_.columns;
    if constexpr (!kComplex) {
      bool large = s_.k * n * static_cast<int64_t>(sizeof(T)) >= kLargeBytes;
      if (large && !packed_ && b_direct_ && s_.b_col == 1 && m <= kernels_.thin[kThinTiles - 1].rows) {
        ThinSum(a, static_cast<const T*>(b), d, d_row, m, n);
        return false;
      }
    }
    if constexpr (std::is_same_v<T, float>) {
      if (ReadsBf16Once(s_)) {
        FewBf16Rows(a, b, d, d_row, m, n);
        return false;
      }
    }
    Scratch& scratch = ThreadScratch();
    // Packing pays when what is packed is used often: A for each panel of columns, B for each panel of rows.
    bool a_in_place = !packed_ && a_direct_ && (n <= 4 * nr || m * s_.k <= 128 * 128);
    // Few rows wait for kept panels from memory; for panels that the last cache has, fetching them is only more work.
    bool fetch = packed_ && (m >= 32 || s_.k * s_.n * static_cast<int64_t>(sizeof(T)) >= kHugeBytes);
    bool in_cache = s_.k * n * static_cast<int64_t>(sizeof(T)) <= kSmallBytes && s_.b_row <= 2 * n;
    bool b_in_place = !kComplex && !packed_ && b_direct_ && s_.b_col == 1 && (m <= 2 * mr || in_cache);
    // A tile reads its rows of A side by side, which no hardware looks ahead for: short ones are fetched a tile before.
    bool fetch_rows = a_in_place && s_.a_col == 1 && s_.a_row == s_.k && m > 4 * mr &&
                      s_.k * static_cast<int64_t>(sizeof(T)) * kParts <= kFetchedRow;
    for (int64_t jc = 0; jc < n; jc += kColumns) {
      int64_t columns = std::min(kColumns, n - jc);
      for (int64_t pc = 0; pc < s_.k; pc += kDepth) {
        int64_t depth = std::min(kDepth, s_.k - pc);
        bool finish = epilogue_ && row >= 0 && pc + depth == s_.k;
        const void* right_from = At(b, s_.b_type, jc * s_.b_col + pc * s_.b_row);
        const R* right = packed_ ? packed_ + pc * PackedColumns(s_.n, nr) + (column + jc) * depth : nullptr;
        // Columns that are read where they are: whole panels, and half of one at the end.
        int64_t whole_columns = !b_in_place ? 0 : columns % (nr / 2) == 0 ? columns : columns / nr * nr;
        if (!packed_ && whole_columns < columns) {
          R* panels = scratch.b.Get<R>((columns + nr) * depth * kParts);
          Pack<false>(At(right_from, s_.b_type, whole_columns * s_.b_col), s_.b_type, b_direct_, s_.b_col, s_.b_row,
                      columns - whole_columns, depth, panels);
          right = panels;
        }
        for (int64_t ic = 0; ic < m; ic += kRows) {
          int64_t rows = std::min(kRows, m - ic);
          const void* from = At(a, s_.a_type, ic * s_.a_row + pc * s_.a_col);
          R* left = scratch.a.Get<R>((rows + mr) * depth * kParts);
          // Rows that are read where they are: whole tiles, and the rest in tiles of few.
          int64_t whole = a_in_place ? rows / mr * mr : 0;
          int64_t few = a_in_place && (rows - whole) % kFewRows == 0 ? rows : whole;
          if (few < rows) {
            Pack<true>(At(from, s_.a_type, whole * s_.a_row), s_.a_type, a_direct_, s_.a_row, s_.a_col, rows - whole,
                       depth, left);
          }
          for (int64_t j = 0; j < columns; j += nr) {
            bool there = j < whole_columns;
            const R* b_panel = there ? reinterpret_cast<const R*>(At(right_from, s_.b_type, j * s_.b_col))
                                     : right + (j - whole_columns) * depth * kParts;
            Panel panel{depth, b_panel, there ? s_.b_row : nr * kParts, std::min<int64_t>(nr, columns - j),
                        pc > 0 || s_.add};
            if (fetch) panel.FetchNext(nr, rows <= kFewRows || (rows <= mr && rows > mr - kFewRows));
            for (int64_t i = 0; i < rows; i += mr) {
              T* to = d + (ic + i) * d_row + jc + j;
              if (i < whole) {
                if (fetch_rows && j == 0) FetchRows(At(from, s_.a_type, (i + mr) * s_.a_row), mr * s_.a_row);
                Tile(kStridedRows, panel, reinterpret_cast<const R*>(At(from, s_.a_type, i * s_.a_row)),
                     s_.a_row * kParts, s_.a_col * kParts, to, d_row, mr);
                continue;
              }
              if (i < few) {
                for (int64_t r = i; r < rows; r += kFewRows) {
                  Tile(kFewStridedRows, panel, reinterpret_cast<const R*>(At(from, s_.a_type, r * s_.a_row)),
                       s_.a_row * kParts, s_.a_col * kParts, d + (ic + r) * d_row + jc + j, d_row, kFewRows);
                }
                break;
              }
              const R* a_panel = left + (i - whole) * depth * kParts;
              int64_t count = std::min<int64_t>(mr, rows - i);
              if ((count + kFewRows - 1) / kFewRows * kFewRows >= mr) {
                Tile(kPackedRows, panel, a_panel, kParts, mr * kParts, to, d_row, count);
                continue;
              }
              for (int64_t r = 0; r < count; r += kFewRows) {
                Tile(kFewStridedRows, panel, a_panel + r * kParts, kParts, mr * kParts, to + r * d_row, d_row,
                     std::min<int64_t>(kFewRows, count - r));
              }
            }
            int64_t end = std::min(j + nr, columns);
            if (finish && (end % kFinished == 0 || end == columns)) {
              int64_t begin = j / kFinished * kFinished;
              (*epilogue_)(row + ic, rows, column + jc + begin, end - begin);
            }
          }
        }
      }
    }
    return epilogue_ && row >= 0;
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
    T* left = scratch.a.template Get<T>(tile->rows * kDepth);
    T* sums = scratch.tile.template Get<T>(tile->rows * tile->columns);
    for (int64_t pc = 0; pc < s_.k; pc += kDepth) {
      int64_t depth = std::min(kDepth, s_.k - pc);
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

  // The same for a B of bf16, whose last columns are copied with zeros behind them.
  void FewBf16Rows(const void* a, const void* b, T* d, int64_t d_row, int64_t m, int64_t n) const {
    const Bf16Tile& tile = ChosenKernels().bf16[m > 1];
    Scratch& scratch = ThreadScratch();
    float* left = scratch.a.template Get<float>(tile.rows * kDepth);
    float* sums = scratch.tile.template Get<float>(tile.rows * tile.columns);
    for (int64_t pc = 0; pc < s_.k; pc += kDepth) {
      int64_t depth = std::min(kDepth, s_.k - pc);
      PackThin(At(a, s_.a_type, pc * s_.a_col), m, depth, tile.rows, left);
      bool accumulate = pc > 0 || s_.add;
      for (int64_t j = 0; j < n; j += tile.columns) {
        int64_t columns = std::min<int64_t>(tile.columns, n - j), b_row = s_.b_row;
        const auto* right = static_cast<const uint16_t*>(b) + pc * s_.b_row + j;
        if (columns < tile.columns) {
          auto* panel = scratch.b.template Get<uint16_t>(tile.columns * depth);
          for (int64_t p = 0; p < depth; ++p) {
            std::fill_n(std::copy_n(right + p * s_.b_row, columns, panel + p * tile.columns), tile.columns - columns,
                        uint16_t{0});
          }
          right = panel, b_row = tile.columns;
        } else if (m == tile.rows) {
          tile.multiply(depth, left, right, b_row, d + j, d_row, accumulate);
          continue;
        }
        tile.multiply(depth, left, right, b_row, sums, tile.columns, false);
        AddTile(sums, tile.columns, m, columns, accumulate, d + j, d_row);
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
  const R* packed_;  // B in panels, or null
  const std::remove_reference_t<decltype(KernelsOf<T>(kBaselineGemm))>& kernels_;
  bool a_direct_, b_direct_, d_direct_;
};

// Splits [0, n) into `parts` pieces whose borders are multiples of `unit`.
int64_t Border(int64_t n, int64_t parts, int64_t unit, int64_t i) {
  int64_t units = (n + unit - 1) / unit;
  return std::min(n, units * i / parts * unit);
}

template <class F>
void Spread(ThreadPool* pool, int64_t n, int64_t grain, F&& f) {
  if (pool && n > grain) {
    pool->For(n, grain, f);
  } else if (n > 0) {
    f(0, n);
  }
}

constexpr int64_t kFewVectors = 8;
// Up to so many rows a kept right side was measured to pay.
constexpr int64_t kFewPacked = 64;

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
  Spread(pool, (n + kUnit - 1) / kUnit, std::max<int64_t>(1, (1 << 16) / (kUnit * parts)),
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
          for (int64_t v = 0; v < vectors; ++v) {
            kernels.row_times_columns(s.k, std::min(unit, from + n - j), x + v * x_vector, y + j * y_n, y_n,
                                      to + v * d_vector + j * d_n, d_n);
          }
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
  constexpr int64_t kMostParts = 32, kLeastDepth = 8 * Blocked<T>::kDepth, kMostSums = (64 << 10) / sizeof(T);
  bool fits = s.batch == 1 && !s.add && IsDirect<T>(s.d_type) && s.m * s.n <= kMostSums;
  return fits ? std::clamp<int64_t>(s.k / kLeastDepth, 1, kMostParts) : 1;
}

// False where the sums are formed in one part.
template <class T>
bool LongSums(const GemmShape& s, const void* a, const void* b, void* d, ThreadPool* pool, const Epilogue* epilogue) {
  const int64_t sums = s.m * s.n, parts = PartsOfSums<T>(s);
  if (parts == 1) return false;
  GemmShape part = s;
  part.d_row = s.n;
  T* all = ThreadScratch().d.template Get<T>(parts * sums);
  Spread(pool, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      GemmShape shape = part;
      const int64_t from = Border(s.k, parts, Blocked<T>::kDepth, i);
      shape.k = Border(s.k, parts, Blocked<T>::kDepth, i + 1) - from;
      Blocked<T>(shape, GemmExtras{})
          .Block(At(a, s.a_type, from * s.a_col), At(b, s.b_type, from * s.b_row), all + i * sums, 0, 0, s.m, 0, s.n);
    }
  });
  Spread(pool, s.m, std::max<int64_t>(1, (1 << 16) / (s.n * parts)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* to = static_cast<T*>(d) + i * s.d_row;
      const T* from = all + i * s.n;
      std::copy_n(from, s.n, to);
      for (int64_t p = 1; p < parts; ++p) {
        from += sums;
        for (int64_t j = 0; j < s.n; ++j) to[j] += from[j];
      }
    }
    if (epilogue) (*epilogue)(begin, end - begin, 0, s.n);
  });
  return true;
}

template <class T>
void Multiply(const GemmShape& s, const void* a, const void* b, void* d, ThreadPool* pool, const GemmExtras& extras) {
  const Epilogue* epilogue = extras.epilogue;
  if (VectorProduct<T>(s, a, b, d, pool, epilogue)) return;
  if (!extras.packed && LongSums<T>(s, a, b, d, pool, epilogue)) return;
  Blocked<T> blocked(s, extras);
  const auto& kernels = KernelsOf<T>(ChosenKernels());
  int64_t threads = pool ? pool->threads() : 1;
  double work = static_cast<double>(s.m) * s.n * std::max<int64_t>(s.k, 1);
  constexpr double kSmall = 1 << 17;  // multiply-adds below which another thread does not pay
  // Cut each matrix until there is enough for every thread, along the longer side first.
  const int64_t unit = std::max<int64_t>(kernels.columns, epilogue ? kEpilogueUnit : 0);
  int64_t down = 1, across = 1;
  int64_t wanted = threads == 1 || work * s.batch < 2 * kSmall ? 1 : threads * (work * s.batch > 64 * kSmall ? 2 : 1);
  while (s.batch * down * across < wanted && work / (down * across) > 2 * kSmall) {
    bool cut_rows = s.m / down >= s.n / across ? s.m / down >= 2 * kernels.rows : s.n / across < 2 * unit;
    cut_rows &= extras.packed == nullptr;  // else each thread would read all of B
    if (cut_rows && s.m / down < 2 * kernels.rows) break;
    ++(cut_rows ? down : across);
  }
  int64_t tiles = down * across;
  int64_t grain = std::max<int64_t>(1, static_cast<int64_t>(kSmall / (work / tiles + 1)));
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
  bool direct = s.a_type == Element::kF32 && s.b_type == Element::kF32 && s.d_type == Element::kF32;
  bool vectors = s.m == 1 || (s.b_row == 1 && s.m <= kFewVectors);  // they read B from end to end anyway
  return direct && s.batch == 1 && !s.add && !vectors && s.m <= kFewPacked && s.n >= 64 && PartsOfSums<float>(s) == 1 &&
         s.k * s.n * static_cast<int64_t>(sizeof(float)) >= Blocked<float>::kLargeBytes;
}

bool FitsPacked(const GemmShape& s) {
  return s.batch == 1 && s.b_type == Element::kF32 && s.n > 0 && s.k > 0 && s.n % ChosenKernels().f32.columns == 0;
}

int64_t PackedBytes(const GemmShape& s) {
  return PackedColumns(s.n, ChosenKernels().f32.columns) * s.k * static_cast<int64_t>(sizeof(float));
}

void PackRight(const GemmShape& s, const void* b, void* packed, ThreadPool* pool) {
  const auto& kernels = ChosenKernels().f32;
  const int64_t width = kernels.columns, all = PackedColumns(s.n, width), step = Blocked<float>::kDepth;
  Spread(pool, all / width, 1, [&](int64_t begin, int64_t end) {
    for (int64_t pc = 0; pc < s.k; pc += step) {
      int64_t depth = std::min(step, s.k - pc);
      for (int64_t j = begin * width; j < end * width; j += width) {
        kernels.pack_columns(static_cast<const float*>(b) + j * s.b_col + pc * s.b_row, s.b_col, s.b_row,
                             std::min(width, s.n - j), depth, static_cast<float*>(packed) + pc * all + j * depth);
      }
    }
  });
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

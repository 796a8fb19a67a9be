// What a set of innermost loops offers to the blocked matrix product; one table per instruction set.
#pragma once

#include <cstdint>

namespace ferrule {

// (k, a, a_row, a_k, b, b_k, c, c_row, accumulate)
template <class R>
using TileFunction = void (*)(int64_t, const R*, int64_t, int64_t, const R*, int64_t, R*, int64_t, bool);

// A tile has `rows` rows of a packed or a strided A, or kFewRows of a strided one; and `columns` or half as many
// columns.
enum RowsKind { kPackedRows, kStridedRows, kFewStridedRows };
constexpr int kFewRows = 4;

// A tile for a matrix with few rows: one pass over the right side, which is read where it lies in memory.
template <class T>
struct ThinTile {
  int rows, columns;
  TileFunction<T> multiply;
};
constexpr int kThinTiles = 4;

// For convolutions (conv_windows.cc): to[i][..] (+)= the sum over pieces of what lies from windows[i] + offsets[piece]
// on, `lengths[piece]` elements, each times a row of the panel, whose rows are as many as all lengths together.
template <class T>
struct WindowSums {
  const T* const* windows;
  int64_t pieces;
  const int64_t *offsets, *lengths;
  const T* panel;
  T* to;
  int64_t to_row;
  bool accumulate;
};

// For their gradients (conv_windows_gradient.cc): to[i][..] (+)= the sum over pieces of `length` elements i of the rows
// of a panel that begin at left + offsets[piece], each times a row of `right`, whose rows are as many as all pieces
// have.
template <class T>
struct PanelSums {
  const T* left;
  int64_t pieces;
  const int64_t* offsets;
  int64_t length;
  const T* right;
  T* to;
  int64_t to_row;
  bool accumulate;
};

template <class T>
struct MicroKernels {
  int rows, columns;
  TileFunction<T> tile[3][2];
  ThinTile<T> thin[kThinTiles];  // by rising rows; A is packed in panels of that many
  // Tiles of `rows` and of kFewRows of a packed A, whose a_row is where in B the next panel lies. They fetch one vector
  // of it for each row of this one, or all vectors.
  TileFunction<T> ahead[2][2];
  TileFunction<T> next_rows[2];  // tiles of a strided A that fetch the rows of the next tile, which follow in memory
  // (x, x_w, x_k, width, k, panel), for panels of `rows` and of `columns`
  void (*pack_rows)(const T*, int64_t, int64_t, int64_t, int64_t, T*);
  void (*pack_columns)(const T*, int64_t, int64_t, int64_t, int64_t, T*);
  // (tile, width, rows, columns, accumulate, d, d_row): what of a tile that does not fit belongs to the result
  void (*put_tile)(const T*, int64_t, int64_t, int64_t, bool, T*, int64_t);
  // (k, n, x, x_stride, b, b_row, y)
  void (*row_times_matrix)(int64_t, int64_t, const T*, int64_t, const T*, int64_t, T*);
  void (*add_rows)(int64_t, int64_t, const T*, int64_t, const T*, int64_t, T*);
  // Dot products of one, two or four vectors with columns whose elements are adjacent: (k, n, x, x_vector, b, b_col, y,
  // y_vector, y_stride)
  void (*dots[3])(int64_t, int64_t, const T*, int64_t, const T*, int64_t, T*, int64_t, int64_t);
  // For sides that are mostly zeros (gemm_sparse.h): (n, x, at), what is not zero, `at` having room for all; (rows,
  // starts, at, value, x, x_row, n, d, d_row), the sums of some rows of x
  int64_t (*find)(int64_t, const T*, int32_t*);
  void (*combine)(int64_t, const int64_t*, const int32_t*, const T*, const T*, int64_t, int64_t, T*, int64_t);
  // (n, x): neither infinities nor NaNs
  bool (*finite)(int64_t, const T*);
  // Tiles of `rows` or kFewRows rows and of `columns` or half as many columns of an A whose columns lie adjacent in
  // memory as B's do (gemm_tall.h): (k, a, a_k, b, b_k, c, c_row, accumulate).
  void (*tall[2][2])(int64_t, const T*, int64_t, const T*, int64_t, T*, int64_t, bool);
  // Tiles of `rows` and `columns` of convolutions; null where a library's are better.
  void (*windows)(const WindowSums<T>&) = nullptr;
  void (*panels)(const PanelSums<T>&) = nullptr;
};

// The packs of panels of `rows` and of `columns` whose elements have another type in memory: pack_rows and pack_columns
// of a MicroKernels but for that.
template <class T>
struct NarrowPacks {
  void (*rows)(const void*, int64_t, int64_t, int64_t, int64_t, T*);
  void (*columns)(const void*, int64_t, int64_t, int64_t, int64_t, T*);
};

// Of types whose values f32 has.
enum StoredType { kStoredBf16, kStoredS8, kStoredU8 };
struct FloatPacks {
  NarrowPacks<float> packs[3];
};

// Products of small integers: an element of a panel is a group of them, adjacent along k, and a step of a tile
// multiplies all and adds their products. Of two of up to 16 bits that is exact: a sum of two products fits 32, but for
// one value that wraps as the result does. Of four bytes one side's are signed there, the other's are not.
enum GroupType { kGroupS8, kGroupU8, kGroupS16 };
struct GroupKernels {
  int elements = 0;                     // of a group; none where there is no such instruction
  MicroKernels<uint32_t> tiles = {};    // `thin` and what follows is empty
  NarrowPacks<uint32_t> packs[3] = {};  // those of bytes pack all panels at once
  // Panels of bytes begin with numbers, one for each row or column, that sums begin with. (depth, panel): puts there
  // what the rows, or the columns, add up to as they are packed. Null for pairs, whose panels have no such beginning.
  void (*add_up[2])(int64_t, uint32_t*) = {};
};

// One, two or four vectors times a matrix whose elements have another type in memory. The vectors are x[v][step]; a
// step is an element or a pair, whose second one is zero behind an odd end.
template <class T>
struct VectorKernels {
  int elements;  // of a step
  // (k, n, x, x_vector, b, b_col or b_row, y, y_vector, y_stride)
  using Function = void (*)(int64_t, int64_t, const T*, int64_t, const void*, int64_t, T*, int64_t, int64_t);
  Function dots[2];      // with columns whose elements are adjacent; four at once were slower than two
  Function add_rows[3];  // with rows whose elements are; added to y, whose elements are adjacent as well
};

template <class R>
struct ComplexMicroKernels {
  int rows, columns;
  TileFunction<R> tile[3][2];
};

struct GemmKernels {
  const char* isa;
  MicroKernels<float> f32;
  MicroKernels<double> f64;
  MicroKernels<uint32_t> u32;
  MicroKernels<uint64_t> u64;
  ComplexMicroKernels<float> c64;
  ComplexMicroKernels<double> c128;
  FloatPacks stored;
  GroupKernels pairs;
  VectorKernels<float> bf16_vectors, s8_vectors, u8_vectors;
  VectorKernels<uint32_t> pair_vectors[3];
};

extern const GemmKernels kBaselineGemm;
#if defined(__x86_64__)
extern const GemmKernels kAvx2Gemm, kAvx512Gemm;
extern const GroupKernels kAvx2Quads, kAvx512Quads;
#endif

}  // namespace ferrule

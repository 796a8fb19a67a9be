#include "gemm_vectors.h"

#include <algorithm>
#include <complex>
#include <type_traits>

#include "epilogue.h"
#include "gemm_block.h"
#include "gemm_spread.h"

namespace ferrule {
namespace {

using namespace gemm;

// Up to so many vectors this was faster than panels: with a matrix whose columns lie adjacent along k, and else. Dot
// products end in sums across lanes: they have to be so long for each vector that panels would multiply as well.
constexpr int64_t kMostDots = 32, kMostRows = 16, kDotLength = 32;

// The same where panels of bytes are multiplied by instructions of their own: of a matrix that comes from memory, and
// of others.
constexpr int64_t kLargeMatrix = 1 << 20, kMostByteDots = 8, kMostByteRows = 4, kMostOfSmall = 2;

// The product as row vectors x times a matrix Y of k rows; column vectors are the transposed case.
struct Sides {
  bool row;
  const void *x, *y;
  Element x_type, y_type;
  int64_t vectors, count;
  int64_t x_batch, x_vector, x_k, y_batch, y_k, y_n, d_vector, d_n;
};

Sides SidesOf(const GemmShape& s, const void* a, const void* b) {
  if (s.m <= s.n) {
    return {true,    a,       b,         s.a_type, s.b_type, s.m,     s.n, s.a_batch,
            s.a_row, s.a_col, s.b_batch, s.b_row,  s.b_col,  s.d_row, 1};
  }
  return {false,   b,       a,         s.b_type, s.a_type, s.n, s.m,    s.b_batch,
          s.b_col, s.b_row, s.a_batch, s.a_col,  s.a_row,  1,   s.d_row};
}

template <class T>
const VectorKernels<T>* KernelsFor(const Sides& s) {
  const GemmKernels& all = ChosenKernels();
  if constexpr (std::is_same_v<T, float>) {
    if (SizeOf(s.x_type) > 4) return nullptr;
    if (s.y_type == Element::kS8) return &all.s8_vectors;
    if (s.y_type == Element::kU8) return &all.u8_vectors;
    return s.y_type == Element::kBF16 ? &all.bf16_vectors : nullptr;
  } else if constexpr (std::is_same_v<T, uint32_t>) {
    return GroupTypeOf(s.x_type) >= 0 && GroupTypeOf(s.y_type) >= 0 ? &all.pair_vectors[GroupTypeOf(s.y_type)]
                                                                    : nullptr;
  } else {
    return nullptr;
  }
}

template <class T>
class Vectors {
 public:
  using Function = typename VectorKernels<T>::Function;

  Vectors(const GemmShape& shape, const Sides& sides, const VectorKernels<T>& kernels, void* d,
          const Epilogue* epilogue)
      : shape_(shape), s_(sides), kernels_(kernels), d_(d), epilogue_(epilogue) {}

  void Run(ThreadPool* pool) {
    WidenX();
    s_.y_k == 1 ? Dots(pool) : AddRows(pool);
  }

 private:
  // The vectors in the form that the kernels read.
  void WidenX() {
    const int64_t k = shape_.k;
    x_row_ = (k + kernels_.elements - 1) / kernels_.elements;
    T* to = ThreadScratch().a.template Get<T>(shape_.batch * s_.vectors * x_row_);
    T* row = ThreadScratch().row.template Get<T>(k);
    x_ = to;
    for (int64_t i = 0; i < shape_.batch * s_.vectors; ++i, to += x_row_) {
      const void* from = At(s_.x, s_.x_type, i / s_.vectors * s_.x_batch + i % s_.vectors * s_.x_vector);
      LoadElements(s_.x_type, from, s_.x_k, k, kernels_.elements == 1 ? to : row);
      if constexpr (std::is_same_v<T, uint32_t>) {
        for (int64_t p = 0; p < k / 2; ++p) to[p] = (row[2 * p] & 0xffff) | row[2 * p + 1] << 16;
        if (k % 2) to[k / 2] = row[k - 1] & 0xffff;
      }
    }
  }

  // All vectors, as many at once as the kernels can take.
  template <int kKinds>
  void All(const Function (&functions)[kKinds], int64_t k, int64_t n, int64_t batch, int64_t from, const void* y,
           int64_t y_step, T* to, int64_t to_vector) const {
    for (int64_t v = 0; v < s_.vectors;) {
      const int64_t left = s_.vectors - v;
      const int which = std::min(kKinds - 1, left >= 4 ? 2 : left >= 2 ? 1 : 0);
      functions[which](k, n, x_ + (batch * s_.vectors + v) * x_row_ + from, x_row_, y, y_step, to + v * to_vector,
                       to_vector, 1);
      v += 1 << which;
    }
  }

  // Rounds the sums of these columns and runs what follows.
  void Finish(int64_t batch, int64_t from, int64_t n, const T* sums, int64_t sums_vector) const {
    const int64_t size = SizeOf(shape_.d_type);
    char* to = static_cast<char*>(d_) + (batch * shape_.d_batch + from * s_.d_n) * size;
    for (int64_t v = 0; v < s_.vectors; ++v) {
      StoreElements(shape_.d_type, to + v * s_.d_vector * size, s_.d_n, n, sums + v * sums_vector);
    }
    if (!epilogue_) return;
    if (s_.row) (*epilogue_)(batch* shape_.m, shape_.m, from, n);
    if (!s_.row) (*epilogue_)(batch* shape_.m + from, n, 0, shape_.n);
  }

  const char* Y(int64_t batch, int64_t k, int64_t column) const {
    return At(s_.y, s_.y_type, batch * s_.y_batch + k * s_.y_k + column * s_.y_n);
  }

  void Dots(ThreadPool* pool) const {
    const int64_t unit = kEpilogueUnit, units = (s_.count + unit - 1) / unit;
    const int64_t grain = std::max<int64_t>(1, kTaskWork / (unit * shape_.k * s_.vectors));
    Spread(pool, shape_.batch * units, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t batch = i / units, from = i % units * unit, n = std::min(unit, s_.count - from);
        T* sums = ThreadScratch().tile.template Get<T>(s_.vectors * unit);
        // A few columns stay in the cache while all vectors meet them.
        for (int64_t j = 0; j < n; j += kColumnsAtOnce) {
          All(kernels_.dots, shape_.k, std::min(kColumnsAtOnce, n - j), batch, 0, Y(batch, 0, from + j), s_.y_n,
              sums + j, unit);
        }
        Finish(batch, from, n, sums, unit);
      }
    });
  }

  // Each part of the rows, in pieces of columns, has sums of its own, which are added up at the end. The parts are the
  // same for every number of threads.
  void AddRows(ThreadPool* pool) const {
    const int64_t k = shape_.k, n = s_.count, vectors = s_.vectors, batch_count = shape_.batch;
    const int64_t columns = std::max(kEpilogueUnit, kSumBytes / static_cast<int64_t>(sizeof(T)) /
                                                        std::min<int64_t>(vectors, 4) / kEpilogueUnit * kEpilogueUnit);
    const int64_t pieces = (n + columns - 1) / columns;
    const int64_t wanted = std::min(kMostTasks, batch_count * k * n * SizeOf(s_.y_type) / kTaskBytes);
    const int64_t parts = std::clamp<int64_t>(wanted / (batch_count * pieces), 1, std::max<int64_t>(1, k / kLeastRows));
    T* all = parts == 1 ? nullptr : ThreadScratch().d.template Get<T>(batch_count * parts * vectors * n);
    const int64_t grain = std::max<int64_t>(1, kTaskWork * parts / (std::min(columns, n) * k * vectors));
    Spread(pool, batch_count * parts * pieces, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t j = i % pieces * columns, wide = std::min(columns, n - j);
        const int64_t part = i / pieces % parts, batch = i / pieces / parts;
        const int64_t row = Border(k, parts, 8, part), rows_end = Border(k, parts, 8, part + 1);
        T* sums = all ? all + (batch * parts + part) * vectors * n + j
                      : ThreadScratch().tile.template Get<T>(vectors * columns);
        const int64_t sums_vector = all ? n : columns;
        for (int64_t v = 0; v < vectors; ++v) std::fill_n(sums + v * sums_vector, wide, T(0));
        // Some rows stay in the cache while all vectors meet them.
        for (int64_t p = row; p < rows_end; p += kRowsAtOnce) {
          All(kernels_.add_rows, std::min(kRowsAtOnce, rows_end - p), wide, batch, p / kernels_.elements,
              Y(batch, p, j), s_.y_k, sums, sums_vector);
        }
        if (!all) Finish(batch, j, wide, sums, sums_vector);
      }
    });
    if (!all) return;
    const int64_t unit = 2 * kEpilogueUnit, units = (n + unit - 1) / unit;
    Spread(pool, batch_count * units, std::max<int64_t>(1, kWorthAdding / (unit * parts * vectors)),
           [&](int64_t begin, int64_t end) {
             for (int64_t i = begin; i < end; ++i) {
               const int64_t batch = i / units, j = i % units * unit, wide = std::min(unit, n - j);
               T* sums = all + batch * parts * vectors * n + j;
               for (int64_t p = 1; p < parts; ++p) {
                 for (int64_t v = 0; v < vectors; ++v) {
                   const T* from = sums + (p * vectors + v) * n;
                   for (int64_t c = 0; c < wide; ++c) sums[v * n + c] += from[c];
                 }
               }
               Finish(batch, j, wide, sums, n);
             }
           });
  }

  static constexpr int64_t kTaskWork = 1 << 17;  // multiply-adds below which another thread does not pay
  static constexpr int64_t kColumnsAtOnce = 8, kRowsAtOnce = 32;
  static constexpr int64_t kSumBytes = 16 << 10;  // of what is added to: in the nearest cache
  static constexpr int64_t kMostTasks = 32, kTaskBytes = 256 << 10, kLeastRows = 128;

  const GemmShape& shape_;
  const Sides& s_;
  const VectorKernels<T>& kernels_;
  void* d_;
  const Epilogue* epilogue_;
  const T* x_ = nullptr;
  int64_t x_row_ = 0;  // from one vector to the next
};

int64_t MostVectors(const GemmShape& shape, const Sides& sides) {
  const bool dots = sides.y_k == 1;
  if (!TakesQuads(shape)) return dots ? kMostDots : kMostRows;
  if (shape.k * sides.count < kLargeMatrix) return kMostOfSmall;
  return dots ? kMostByteDots : kMostByteRows;
}

}  // namespace

template <class T>
bool NarrowVectorProduct(const GemmShape& shape, const void* a, const void* b, void* d, ThreadPool* pool,
                         const Epilogue* epilogue) {
  const Sides sides = SidesOf(shape, a, b);
  if (shape.k == 0 || shape.add || (sides.y_k != 1 && sides.y_n != 1)) return false;
  if (sides.vectors > MostVectors(shape, sides)) return false;
  if (sides.y_k == 1 && shape.k < kDotLength * sides.vectors) return false;
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, uint32_t>) {
    const VectorKernels<T>* kernels = KernelsFor<T>(sides);
    if (!kernels) return false;
    Vectors<T>(shape, sides, *kernels, d, epilogue).Run(pool);
    return true;
  }
  return false;
}

template bool NarrowVectorProduct<float>(const GemmShape&, const void*, const void*, void*, ThreadPool*,
                                         const Epilogue*);
template bool NarrowVectorProduct<uint32_t>(const GemmShape&, const void*, const void*, void*, ThreadPool*,
                                            const Epilogue*);

}  // namespace ferrule

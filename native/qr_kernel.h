// The loops of QR factorizations, written once with vector types and compiled for several instruction sets as
// gemm_kernel.h is: nothing of the standard library may be instantiated here.
//
// A reflection H = 1 - tau v v^T is applied to all columns of a panel in one pass over its rows. The same pass adds up
// the products of the next column, as it becomes, with all others: they are the next norm and what the next reflection
// takes from each column, so that each row is read and written once for each reflection.
#include "lanes.h"
#include "qr_tables.h"

namespace ferrule {
namespace FERRULE_ISA {

// Squares between these bounds, and their sums, lose nothing at the ends of the exponents' range.
template <class T>
constexpr T kLeastSquare = sizeof(T) == 4 ? T(0x1p-100) : T(0x1p-900);
template <class T>
constexpr T kMostSquare = sizeof(T) == 4 ? T(0x1p100) : T(0x1p900);

template <class T>
void Copy(const T* from, int64_t from_row, int64_t rows, int64_t columns, T* to, int64_t to_row, T* largest) {
  constexpr int kCount = Lanes<T>::kCount;
  for (int64_t i = 0; i < rows; ++i, from += from_row, to += to_row) {
    int64_t c = 0;
    for (; c + kCount <= columns; c += kCount) {
      const auto x = Load(from + c), size = x < 0 ? -x : x, before = Load(largest + c);
      Store(to + c, x);
      Store(largest + c, size > before ? size : before);
    }
    for (; c < columns; ++c) {
      const T x = from[c], size = x < 0 ? -x : x;
      to[c] = x;
      if (size > largest[c]) largest[c] = size;
    }
  }
}

enum SweepKind {
  kSums,     // only adds up
  kReflect,  // `next` is another column of the panel, from whose elements x times next_u has still to be taken
  kOther,    // `next` is not in the panel
};

// Takes x times u from rows of COUNT vectors, in whose first one the lanes before `from` stay what they are; sums[c] is
// what next times column c comes to then.
template <class T, int COUNT, SweepKind KIND>
void SweepSome(T* a, int64_t stride, int64_t rows, const T* x, const T* next, int64_t x_row, T next_u, int64_t from,
               const T* u, T* sums) {
  using V = typename Lanes<T>::Vector;
  using N = typename Lanes<T>::Integer;
  constexpr int kCount = Lanes<T>::kCount, kRows = COUNT == 1 ? 4 : COUNT < 4 ? 2 : 1;
  constexpr int64_t kAdded = 64;  // that are added up before they meet those of other rows: fewer digits are lost
  const auto changed = Counted<T>() >= static_cast<N>(from);
  V factor[COUNT], total[COUNT];
#pragma GCC unroll 4
  for (int v = 0; v < COUNT; ++v) {
    factor[v] = KIND == kSums ? V{} : Load(u + v * kCount);
    total[v] = V{};
  }
  V sum[kRows][COUNT];
  auto row = [&](int64_t i, int s) __attribute__((always_inline)) {
    T* to = a + i * stride;
    const T times = KIND == kSums ? T(0) : x[i * x_row];
    T other = next[i * x_row];
    if (KIND == kReflect) other -= times * next_u;
#pragma GCC unroll 4
    for (int v = 0; v < COUNT; ++v) {
      V y = Load(to + v * kCount);
      if (KIND != kSums) {
        const V less = y - factor[v] * times;
        y = v == 0 ? (changed ? less : y) : less;
        Store(to + v * kCount, y);
      }
      sum[s][v] += y * other;
    }
  };
  for (int64_t begin = 0; begin < rows; begin += kAdded) {
    const int64_t end = begin + kAdded < rows ? begin + kAdded : rows;
#pragma GCC unroll 4
    for (int s = 0; s < kRows; ++s) {
#pragma GCC unroll 4
      for (int v = 0; v < COUNT; ++v) sum[s][v] = V{};
    }
    int64_t i = begin;
    for (; i + kRows <= end; i += kRows) {
#pragma GCC unroll 4
      for (int s = 0; s < kRows; ++s) row(i + s, s);
    }
    for (; i < end; ++i) row(i, 0);
#pragma GCC unroll 4
    for (int s = 0; s < kRows; ++s) {
#pragma GCC unroll 4
      for (int v = 0; v < COUNT; ++v) total[v] += sum[s][v];
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < COUNT; ++v) Store(sums + v * kCount, total[v]);
}

// The same for the columns from `from` on of a panel.
template <SweepKind KIND, class T>
void Sweep(T* a, int64_t vectors, int64_t rows, const T* x, const T* next, int64_t x_row, T next_u, int64_t from,
           const T* u, T* sums) {
  constexpr int kCount = Lanes<T>::kCount;
  const int64_t first = from / kCount, skipped = first * kCount, stride = vectors * kCount;
  a += skipped, from -= skipped, sums += skipped;
  if (KIND != kSums) u += skipped;
  switch (vectors - first) {
    case 1:
      return SweepSome<T, 1, KIND>(a, stride, rows, x, next, x_row, next_u, from, u, sums);
    case 2:
      return SweepSome<T, 2, KIND>(a, stride, rows, x, next, x_row, next_u, from, u, sums);
    case 3:
      return SweepSome<T, 3, KIND>(a, stride, rows, x, next, x_row, next_u, from, u, sums);
    case 4:
      return SweepSome<T, 4, KIND>(a, stride, rows, x, next, x_row, next_u, from, u, sums);
  }
}

// Column x[rows], whose squares are too small or too large to be added up, is divided by a power of two with this
// exponent, so that the largest element is about one. False where all but the first of it is zero.
template <class T>
bool Rescale(T* x, int64_t x_row, int64_t rows, int* exponent) {
  T largest = 0;
  bool any = false;
  for (int64_t i = 0; i < rows; ++i) {
    const T y = x[i * x_row], size = y < 0 ? -y : y;
    any |= i > 0 && y != 0;
    if (size > largest) largest = size;
  }
  *exponent = 0;
  if (!any) return false;
  if (largest > 0 && largest - largest == 0) __builtin_frexp(static_cast<double>(largest), exponent);
  for (int64_t i = 0; i < rows; ++i) {
    x[i * x_row] = static_cast<T>(__builtin_ldexp(static_cast<double>(x[i * x_row]), -*exponent));
  }
  return true;
}

template <class T>
void Factor(T* a, int64_t vectors, int64_t rows, int64_t steps, T* tau) {
  using V = typename Lanes<T>::Vector;
  using N = typename Lanes<T>::Integer;
  constexpr int kCount = Lanes<T>::kCount;
  const int64_t stride = vectors * kCount;
  alignas(64) T u[kQrVectors * kCount], sums[kQrVectors * kCount], scales[kQrVectors * kCount];
  for (int64_t v = 0; v < vectors; ++v) Store(scales + v * kCount, V{} + T(1));
  const auto index = Counted<T>();
  if (steps > 0) Sweep<kSums, T>(a + stride, vectors, rows - 1, nullptr, a + stride, stride, 0, 0, nullptr, sums);
  for (int64_t j = 0; j < steps; ++j) {
    T* row = a + j * stride;
    T* below = row + stride;
    T square = row[j] * row[j] + sums[j];
    int exponent = 0;
    bool reflects = true;
    if (!(sums[j] >= kLeastSquare<T> && square <= kMostSquare<T>)) {
      reflects = Rescale(row + j, stride, rows - j, &exponent);
      if (reflects) {
        Sweep<kSums, T>(below, vectors, rows - j - 1, nullptr, below + j, stride, 0, j, nullptr, sums);
      }
    }
    const int64_t left = rows - j - 2;  // below the next diagonal
    if (!reflects) {
      tau[j] = 0;
      if (j + 1 < steps) {
        Sweep<kSums, T>(below + stride, vectors, left, nullptr, below + stride + j + 1, stride, 0, j + 1, nullptr,
                        sums);
      }
      continue;
    }
    const double alpha = row[j];
    double beta = __builtin_sqrt(alpha * alpha + static_cast<double>(sums[j]));
    if (!__builtin_signbit(alpha)) beta = -beta;
    const T t = static_cast<T>((beta - alpha) / beta), scale = static_cast<T>(1 / (alpha - beta)), both = t * scale;
    tau[j] = t;
    scales[j] = scale;
    for (int64_t v = j / kCount; v < vectors; ++v) {
      const auto changed = index + static_cast<N>(v * kCount) > static_cast<N>(j);
      const V x = Load(row + v * kCount), w = x + Load(sums + v * kCount) * scale;
      Store(row + v * kCount, changed ? x - w * t : x);
      Store(u + v * kCount, w * both);
    }
    row[j] = static_cast<T>(exponent ? __builtin_ldexp(beta, exponent) : beta);
    if (j + 1 == rows || j + 1 == stride) continue;
    const T times = below[j];
    for (int64_t v = (j + 1) / kCount; v < vectors; ++v) {
      const auto changed = index + static_cast<N>(v * kCount) > static_cast<N>(j);
      const V x = Load(below + v * kCount);
      Store(below + v * kCount, changed ? x - Load(u + v * kCount) * times : x);
    }
    Sweep<kReflect, T>(below + stride, vectors, left, below + stride + j, below + stride + j + 1, stride, u[j + 1],
                       j + 1, u, sums);
  }
  for (int64_t i = 1; i < rows; ++i) {
    for (int64_t c = 0; c < steps && c < i; c += kCount) {
      T* at = a + i * stride + c;
      const V x = Load(at);
      const auto vectors_part = index + static_cast<N>(c) < static_cast<N>(i < steps ? i : steps);
      Store(at, vectors_part ? x * Load(scales + c) : x);
    }
  }
}

template <class T>
void Generate(const T* a, int64_t a_row, int64_t rows, int64_t steps, const T* tau, T* q, int64_t vectors) {
  using V = typename Lanes<T>::Vector;
  using N = typename Lanes<T>::Integer;
  constexpr int kCount = Lanes<T>::kCount;
  const int64_t stride = vectors * kCount;
  alignas(64) T u[kQrVectors * kCount], sums[kQrVectors * kCount];
  for (int64_t i = 0; i < rows * stride; i += kCount) Store(q + i, V{});
  for (int64_t c = steps; c < stride && c < rows; ++c) q[c * stride + c] = 1;
  if (steps == 0) return;
  const auto index = Counted<T>();
  const T* column = a + steps * a_row + steps - 1;
  Sweep<kSums, T>(q + steps * stride, vectors, rows - steps, nullptr, column, a_row, 0, 0, nullptr, sums);
  for (int64_t j = steps - 1; j >= 0; --j) {
    T* row = q + j * stride;
    const int64_t first = j / kCount;
    // Of row j there is a one on the diagonal, so far.
    sums[j] = 1;
    for (int64_t v = first; v < vectors; ++v) {
      const auto there = index + static_cast<N>(v * kCount) >= static_cast<N>(j);
      const V x = there ? Load(sums + v * kCount) * tau[j] : V{};
      Store(u + v * kCount, x);
      Store(row + v * kCount, there ? -x : x);
    }
    row[j] += 1;
    const T* x = a + (j + 1) * a_row + j;
    Sweep<kOther, T>(row + stride, vectors, rows - j - 1, x, j > 0 ? x - 1 : x, a_row, 0, j, u, sums);
    if (j == 0) break;
    // What comes next starts one column before, which may be in another vector.
    const T times = x[-1 - a_row];
    for (int64_t v = first; v < vectors; ++v) {
      Store(sums + v * kCount, Load(sums + v * kCount) + Load(row + v * kCount) * times);
    }
    if (j % kCount == 0) Store(sums + (first - 1) * kCount, V{});
  }
}

template <class T>
constexpr QrFunctions<T> QrOf() {
  return {Lanes<T>::kCount, Copy<T>, Factor<T>, Generate<T>};
}

constexpr QrKernels Qr() { return {QrOf<float>(), QrOf<double>()}; }

}  // namespace FERRULE_ISA
}  // namespace ferrule

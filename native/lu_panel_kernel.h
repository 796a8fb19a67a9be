// LU factors of a panel, a few columns of many rows, which lie column by column. Part of small_matrix_kernel.h, from
// which the vectors come.
//
// Leaves of kPanelLeaf columns are factored one column after the other: each loses what those before it contribute when
// its turn comes, in the same pass over the rows that divides the column before it by its pivot and looks for its own.
// The columns behind a leaf then lose all of it at once.
#pragma once

namespace ferrule {
namespace FERRULE_ISA {

constexpr int kPanelLeaf = 8;

// A vector of rows, of which those where `stays` is true stay as they are, of column I of a leaf.
template <class T, int I, bool kSomeStay>
inline typename Lanes<T>::Index PanelVector(T* leaf, int64_t stride, const typename Lanes<T>::Vector* above,
                                            typename Lanes<T>::Vector divisor, typename Lanes<T>::Index stays) {
  using V = typename Lanes<T>::Vector;
  V x = Load(leaf + I * stride);
  if constexpr (I > 0) {
    V sum{};
#pragma GCC unroll 8
    for (int l = 0; l + 1 < I; ++l) sum += above[l] * Load(leaf + l * stride);
    T* before = leaf + (I - 1) * stride;
    V scaled = Load(before);
    scaled = kSomeStay ? (stays ? scaled : scaled / divisor) : scaled / divisor;
    Store(before, scaled);
    sum += above[I - 1] * scaled;
    x = kSomeStay ? (stays ? x : x - sum) : x - sum;
    Store(leaf + I * stride, x);
  }
  const auto key = PivotKey<T>(x);
  return kSomeStay ? key | stays : key;
}

// Column I of a leaf from the diagonal in row k on, less what the columns before it contribute with their elements of
// `u`; the one before it is divided by its pivot. Returns the row of the pivot.
template <class T, int I>
int64_t PanelColumn(T* leaf, int64_t stride, int64_t k, int64_t padded, const T* u, T divisor) {
  using V = typename Lanes<T>::Vector;
  using Index = typename Lanes<T>::Index;
  using N = typename Lanes<T>::Integer;
  constexpr int kCount = Lanes<T>::kCount;
  V above[I + 1], divisors = V{} + divisor;
#pragma GCC unroll 8
  for (int l = 0; l < I; ++l) above[l] = V{} + u[l];
  const int64_t first = k / kCount * kCount;
  const Index stays = Counted<T>() < static_cast<N>(k - first);
  Index best = PanelVector<T, I, true>(leaf + first, stride, above, divisors, stays);
  for (int64_t i = first + kCount; i < padded; i += kCount) {
    const Index key = PanelVector<T, I, false>(leaf + i, stride, above, divisors, stays);
    best = key > best ? key : best;
  }
  const T* column = leaf + I * stride;
  if (column[k] != column[k]) return k;
  const N largest = Largest<T>(best);
  Index equal = (PivotKey<T>(Load(column + first)) | stays) == largest;
  int64_t i = first;
  for (; Bits<T>(equal) == 0; equal = PivotKey<T>(Load(column + i)) == largest) i += kCount;
  return i + __builtin_ctzll(Bits<T>(equal));
}

template <class T>
inline int64_t PanelColumn(int i, T* leaf, int64_t stride, int64_t k, int64_t padded, const T* u, T divisor) {
  switch (i) {
    case 0:
      return PanelColumn<T, 0>(leaf, stride, k, padded, u, divisor);
    case 1:
      return PanelColumn<T, 1>(leaf, stride, k, padded, u, divisor);
    case 2:
      return PanelColumn<T, 2>(leaf, stride, k, padded, u, divisor);
    case 3:
      return PanelColumn<T, 3>(leaf, stride, k, padded, u, divisor);
    case 4:
      return PanelColumn<T, 4>(leaf, stride, k, padded, u, divisor);
    case 5:
      return PanelColumn<T, 5>(leaf, stride, k, padded, u, divisor);
    case 6:
      return PanelColumn<T, 6>(leaf, stride, k, padded, u, divisor);
    default:
      return PanelColumn<T, 7>(leaf, stride, k, padded, u, divisor);
  }
}

// `width` columns from number `first` on, whose diagonal begins in that row. Returns the first zero pivot's number,
// counted from 1, or 0.
template <class T>
int32_t PanelLeaf(T* leaf, int64_t stride, int64_t first, int64_t width, int64_t padded, int32_t* pivots) {
  using V = typename Lanes<T>::Vector;
  using N = typename Lanes<T>::Integer;
  constexpr int kCount = Lanes<T>::kCount;
  T u[kPanelLeaf], divisor = 1;
  int32_t info = 0;
  for (int64_t i = 0; i < width; ++i) {
    const int64_t k = first + i;
    T* column = leaf + i * stride;
    for (int64_t r = 0; r < i; ++r) {
      T sum = 0;
      for (int64_t l = 0; l < r; ++l) sum += leaf[l * stride + first + r] * u[l];
      u[r] = column[first + r] -= sum;
    }
    const int64_t p = PanelColumn(static_cast<int>(i), leaf, stride, k, padded, u, divisor);
    pivots[k] = static_cast<int32_t>(p + 1);
    if (p != k) Exchange(leaf, stride, k, p, 0, width);
    divisor = column[k];
    if (divisor == 0) {
      divisor = 1;
      if (info == 0) info = static_cast<int32_t>(k + 1);
    }
  }
  T* last = leaf + (width - 1) * stride;
  const V divisors = V{} + divisor;
  int64_t i = (first + width) / kCount * kCount;
  const auto stays = Counted<T>() < static_cast<N>(first + width - i);
  for (bool whole = false; i < padded; i += kCount, whole = true) {
    const V x = Load(last + i);
    Store(last + i, whole ? x / divisors : stays ? x : x / divisors);
  }
  return info;
}

// What the exchanges of a leaf come to: which rows come to be the leaf's, and what comes to be in other rows. All of
// that is read before anything is written.
struct Exchanged {
  Exchanged(int64_t first, int64_t width, const int32_t* pivots) : first(first), width(width) {
    for (int64_t r = 0; r < width; ++r) from[r] = first + r;
    for (int64_t r = 0; r < width; ++r) {
      const int64_t p = pivots[first + r] - 1, here = from[r];
      if (p < first + width) {
        from[r] = from[p - first];
        from[p - first] = here;
        continue;
      }
      int64_t i = 0;
      while (i < count && other[i] != p) ++i;
      from[r] = i < count ? other_from[i] : p;
      other[i] = p;
      other_from[i] = here;
      if (i == count) ++count;
    }
  }

  template <class T>
  void Apply(T* column) const {
    T there[kPanelLeaf], elsewhere[kPanelLeaf];
    for (int64_t r = 0; r < width; ++r) there[r] = column[from[r]];
    for (int64_t i = 0; i < count; ++i) elsewhere[i] = column[other_from[i]];
    for (int64_t r = 0; r < width; ++r) column[first + r] = there[r];
    for (int64_t i = 0; i < count; ++i) column[other[i]] = elsewhere[i];
  }

  int64_t first, width, count = 0;
  int64_t from[kPanelLeaf], other[kPanelLeaf], other_from[kPanelLeaf];
};

// COUNT columns from row `begin` on, the first `stays` of these rows excepted, less the leaf's columns times `u`.
template <class T, int COUNT>
void PanelUpdate(const T* leaf, T* to, int64_t stride, const T* u, int64_t begin, int64_t end, int64_t stays) {
  using V = typename Lanes<T>::Vector;
  using N = typename Lanes<T>::Integer;
  constexpr int kCount = Lanes<T>::kCount;
  V factor[COUNT][kPanelLeaf];
#pragma GCC unroll 4
  for (int c = 0; c < COUNT; ++c) {
#pragma GCC unroll 8
    for (int l = 0; l < kPanelLeaf; ++l) factor[c][l] = V{} + u[l * kPanelColumns + c];
  }
  const auto kept = Counted<T>() < static_cast<N>(stays);
  for (int64_t i = begin; i < end; i += kCount) {
    V sum[COUNT] = {};
#pragma GCC unroll 8
    for (int l = 0; l < kPanelLeaf; ++l) {
      const V left = Load(leaf + l * stride + i);
#pragma GCC unroll 4
      for (int c = 0; c < COUNT; ++c) sum[c] += factor[c][l] * left;
    }
#pragma GCC unroll 4
    for (int c = 0; c < COUNT; ++c) {
      const V x = Load(to + c * stride + i), less = x - sum[c];
      Store(to + c * stride + i, stays > 0 && i == begin ? (kept ? x : less) : less);
    }
  }
}

template <class T>
int32_t Panel(T* a, int64_t stride, int64_t rows, int64_t columns, int32_t* pivots) {
  constexpr int64_t kCount = Lanes<T>::kCount,
                    kRows = 32 * kCount;                        // rows whose part of a leaf is in the nearest cache
  constexpr int kColumns = FERRULE_VECTOR_BYTES == 64 ? 2 : 1;  // that there are registers for
  const int64_t padded = (rows + kCount - 1) / kCount * kCount;
  for (int64_t j = 0; rows < padded && j < columns; ++j) {
    for (int64_t i = rows; i < padded; ++i) a[j * stride + i] = 0;
  }
  int32_t info = 0;
  alignas(64) T u[kPanelLeaf][kPanelColumns];  // the rows of U beside a leaf
  for (int64_t first = 0; first < columns; first += kPanelLeaf) {
    const int64_t width = columns - first < kPanelLeaf ? columns - first : kPanelLeaf, next = first + width;
    T* leaf = a + first * stride;
    const int32_t zero = PanelLeaf(leaf, stride, first, width, padded, pivots);
    if (info == 0) info = zero;
    const Exchanged rows_moved(first, width, pivots);
    for (int64_t c = 0; c < first; ++c) rows_moved.Apply(a + c * stride);
    if (next == columns) break;
    for (int64_t c = next; c < columns; ++c) {
      rows_moved.Apply(a + c * stride);
      for (int64_t r = 0; r < kPanelLeaf; ++r) u[r][c] = a[c * stride + first + r];
    }
    for (int64_t c = next / kCount * kCount; c < columns; c += kCount) {
      for (int64_t r = 1; r < kPanelLeaf; ++r) {
        typename Lanes<T>::Vector sum{};
        for (int64_t l = 0; l < r; ++l) sum += leaf[l * stride + first + r] * Load(&u[l][c]);
        Store(&u[r][c], Load(&u[r][c]) - sum);
      }
    }
    for (int64_t c = next; c < columns; ++c) {
      for (int64_t r = 1; r < kPanelLeaf; ++r) a[c * stride + first + r] = u[r][c];
    }
    for (int64_t from = next / kCount * kCount; from < padded; from += kRows) {
      const int64_t end = padded - from < kRows ? padded : from + kRows, stays = from < next ? next - from : 0;
      int64_t c = next;
      for (; c + kColumns <= columns; c += kColumns) {
        PanelUpdate<T, kColumns>(leaf, a + c * stride, stride, &u[0][c], from, end, stays);
      }
      for (; c < columns; ++c) {
        PanelUpdate<T, 1>(leaf, a + c * stride, stride, &u[0][c], from, end, stays);
      }
    }
  }
  return info;
}

}  // namespace FERRULE_ISA
}  // namespace ferrule

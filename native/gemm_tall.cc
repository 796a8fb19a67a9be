#include "gemm_tall.h"

#include <algorithm>
#include <utility>

#include "epilogue.h"
#include "gemm_block.h"
#include "gemm_parts.h"
#include "gemm_spread.h"

namespace ferrule {

using namespace gemm;

namespace {

// What was measured to be faster than panels: up to so many columns and so many bytes of sums, of so many terms each;
// few sums sooner.
constexpr int64_t kMostColumns = 50, kMostBytes = 10'000, kLeastTerms = 1024, kFewSums = 250, kLeastOfFew = 256;

// For each k `count` elements, `apart` from one to the next and `step` from one k to the next; tiles read `padded` of
// adjacent ones.
template <class T>
struct TallSide {
  const T* at;
  int64_t batch, apart, step, count, padded = 0;

  bool adjacent() const { return apart == 1 && step >= count; }
  // So many of the last rows are too near to the end of memory for tiles.
  int64_t Tail() const { return adjacent() ? (padded - count + step - 1) / step : 0; }
  // So many rows of adjacent elements with zeros behind them.
  void Copy(const T* from, int64_t rows, T* to) const {
    std::fill_n(to, rows * padded, T(0));
    for (int64_t p = 0; p < rows; ++p) std::copy_n(from + p * step, count, to + p * padded);
  }
};

// Each element of the left side, which is packed where these are not adjacent, is multiplied with vectors of the right
// one. Either is A.
template <class T>
class Tall {
 public:
  Tall(const GemmShape& s, const T* a, const T* b) : kernels_(KernelsOf<T>(ChosenKernels())), depth_(s.k) {
    const TallSide<T> first = {a, s.a_batch, s.a_row, s.a_col, s.m}, second = {b, s.b_batch, s.b_col, s.b_row, s.n};
    const int64_t plain = Cost(first, second), swapped = Cost(second, first);
    swapped_ = swapped < plain, possible_ = std::min(plain, swapped) < kNever;
    left_ = swapped_ ? second : first, right_ = swapped_ ? first : second;
    left_.padded = Rows(left_), right_.padded = Columns(right_.count);
  }

  bool possible() const { return possible_; }
  // The numbers of sums from one row of the result, and from one column, to the next, and of all sums.
  int64_t row() const { return swapped_ ? 1 : right_.padded; }
  int64_t column() const { return swapped_ ? right_.padded : 1; }
  int64_t numbers() const { return left_.padded * right_.padded; }

  // The sums over the k from `begin` to before `end`.
  void Sum(int64_t batch, int64_t begin, int64_t end, T* sums) const {
    const T *left = left_.at + batch * left_.batch, *right = right_.at + batch * right_.batch;
    const int64_t tail = std::min(std::max(left_.Tail(), right_.Tail()), depth_), whole = std::min(end, depth_ - tail);
    // So many rows stay in the nearest cache for all tiles.
    const int64_t step = std::clamp<int64_t>(kNear / (left_.padded + right_.padded), 16, kMostSteps);
    bool accumulate = false;
    for (; begin < whole; begin = std::min(whole, begin + step), accumulate = true) {
      Tiles(std::min(step, whole - begin), left + begin * left_.step, left_.step, right + begin * right_.step,
            right_.step, sums, accumulate);
    }
    if (begin >= end) return;
    T* copies = ThreadScratch().a.template Get<T>((end - begin) * (left_.padded + right_.padded));
    right_.Copy(right + begin * right_.step, end - begin, copies);
    left += begin * left_.step;
    int64_t left_step = left_.step;
    if (left_.adjacent()) {
      T* others = copies + (end - begin) * right_.padded;
      left_.Copy(left, end - begin, others);
      left = others, left_step = left_.padded;
    }
    Tiles(end - begin, left, left_step, copies, right_.padded, sums, accumulate);
  }

 private:
  static constexpr int64_t kNear = (16 << 10) / sizeof(T), kMostSteps = 256, kMostPacked = 12, kNever = INT64_MAX;

  static int64_t Up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
  // What is left of rows and columns goes in smaller tiles where these are enough.
  bool SmallRows(int64_t left) const { return Up(left, kFewRows) < kernels_.rows; }
  bool SmallColumns(int64_t left) const { return left <= kernels_.columns / 2; }
  int64_t Rows(const TallSide<T>& side) const {
    const int64_t left = side.count % kernels_.rows;
    const bool small = side.adjacent() && SmallRows(left);
    return side.count - left + (small ? Up(left, kFewRows) : left ? kernels_.rows : 0);
  }
  int64_t Columns(int64_t count) const { return Up(count, kernels_.columns / 2); }
  // In products; an element that is packed takes as long as a few. More of them were measured to be better in panels.
  int64_t Cost(const TallSide<T>& left, const TallSide<T>& right) const {
    if (!right.adjacent() || (!left.adjacent() && left.count > kMostPacked)) return kNever;
    return Rows(left) * (Columns(right.count) + (left.adjacent() ? 0 : 4));
  }

  void Tiles(int64_t k, const T* left, int64_t left_step, const T* right, int64_t right_step, T* sums,
             bool accumulate) const {
    const bool packs = !left_.adjacent();
    T* panel = packs ? ThreadScratch().b.template Get<T>(kernels_.rows * kMostSteps) : nullptr;
    for (int64_t i = 0; i < left_.count;) {
      const bool few = !packs && SmallRows(left_.count - i);
      if (packs) {
        kernels_.pack_rows(left + i * left_.apart, left_.apart, left_step,
                           std::min<int64_t>(kernels_.rows, left_.count - i), k, panel);
      }
      for (int64_t j = 0; j < right_.count;) {
        const bool half = SmallColumns(right_.count - j);
        T* to = sums + i * right_.padded + j;
        if (packs) {
          kernels_.tile[kPackedRows][half](k, panel, 1, kernels_.rows, right + j, right_step, to, right_.padded,
                                           accumulate);
        } else {
          kernels_.tall[few][half](k, left + i, left_step, right + j, right_step, to, right_.padded, accumulate);
        }
        j += half ? kernels_.columns / 2 : kernels_.columns;
      }
      i += few ? kFewRows : kernels_.rows;
    }
  }

  const MicroKernels<T>& kernels_;
  int64_t depth_;
  bool swapped_, possible_;
  TallSide<T> left_, right_;
};

template <class T>
bool IsTall(const GemmShape& s) {
  const int64_t sums = s.m * s.n;
  return IsDirect<T>(s.a_type) && IsDirect<T>(s.b_type) && IsDirect<T>(s.d_type) && !s.add && s.m > 1 && s.n > 1 &&
         s.n <= kMostColumns && sums * static_cast<int64_t>(sizeof(T)) <= kMostBytes &&
         s.k >= (sums <= kFewSums ? kLeastOfFew : kLeastTerms);
}

}  // namespace

template <class T>
bool TallProduct(const GemmShape& s, const void* a, const void* b, void* d, ThreadPool* pool,
                 const Epilogue* epilogue) {
  if (!IsTall<T>(s)) return false;
  const Tall<T> tall(s, static_cast<const T*>(a), static_cast<const T*>(b));
  if (!tall.possible()) return false;
  // The parts are the same for every number of threads.
  constexpr int64_t kMostParts = 32, kPartWork = 1 << 17, kPartBytes = 64 << 10;
  const int64_t numbers = tall.numbers(), bytes = s.k * (s.m + s.n) * static_cast<int64_t>(sizeof(T));
  const int64_t worth = std::max(s.k * numbers / kPartWork, bytes / kPartBytes);
  const int64_t most = std::max<int64_t>(1, std::min(kMostParts / std::max<int64_t>(s.batch, 1), s.k / kLeastOfFew));
  const int64_t parts = std::clamp<int64_t>(worth, 1, most);
  T* all = ThreadScratch().d.template Get<T>(s.batch * parts * numbers);
  Spread(pool, s.batch * parts, std::max<int64_t>(1, kPartWork * parts / (s.k * numbers)),
         [&](int64_t begin, int64_t end) {
           for (int64_t i = begin; i < end; ++i) {
             const int64_t part = i % parts;
             tall.Sum(i / parts, Border(s.k, parts, 1, part), Border(s.k, parts, 1, part + 1), all + i * numbers);
           }
         });
  AddParts(s, parts, all, numbers, tall.row(), tall.column(), static_cast<T*>(d), pool, epilogue);
  return true;
}

template bool TallProduct<float>(const GemmShape&, const void*, const void*, void*, ThreadPool*, const Epilogue*);
template bool TallProduct<double>(const GemmShape&, const void*, const void*, void*, ThreadPool*, const Epilogue*);
template bool TallProduct<uint32_t>(const GemmShape&, const void*, const void*, void*, ThreadPool*, const Epilogue*);
template bool TallProduct<uint64_t>(const GemmShape&, const void*, const void*, void*, ThreadPool*, const Epilogue*);

}  // namespace ferrule

#include "gemm_tall.h"

#include <algorithm>
#include <utility>

#include "epilogue.h"
#include "gemm_block.h"
#include "gemm_spread.h"

namespace ferrule {

using namespace gemm;

namespace {

// What was measured to be faster than panels: up to so many columns and so many bytes of sums, of so many terms each;
// few sums sooner.
constexpr int64_t kMostColumns = 50, kMostBytes = 10'000, kLeastTerms = 1024, kFewSums = 250, kLeastOfFew = 256;

// For each k `count` adjacent elements, `step` from one k to the next; tiles read `padded` of them.
template <class T>
struct TallSide {
  const T* at;
  int64_t batch, step, count, padded;

  // So many of the last rows are too near to the end of memory for that.
  int64_t Tail() const { return (padded - count + step - 1) / step; }
  // So many rows with zeros behind their elements.
  void Copy(const T* from, int64_t rows, T* to) const {
    std::fill_n(to, rows * padded, T(0));
    for (int64_t p = 0; p < rows; ++p) std::copy_n(from + p * step, count, to + p * padded);
  }
};

// Each element of the left side is multiplied with vectors of the right one; either is A.
template <class T>
class Tall {
 public:
  Tall(const GemmShape& s, const T* a, const T* b) : kernels_(KernelsOf<T>(ChosenKernels())), depth_(s.k) {
    left_ = {a, s.a_batch, s.a_col, s.m, Rows(s.m)}, right_ = {b, s.b_batch, s.b_row, s.n, Columns(s.n)};
    if (Rows(s.n) * Columns(s.m) < left_.padded * right_.padded) {
      swapped_ = true;
      std::swap(left_, right_);
      left_.padded = Rows(s.n), right_.padded = Columns(s.m);
    }
  }

  // The numbers of sums from one row of the result, and from one column, to the next, and of all sums.
  int64_t row() const { return swapped_ ? 1 : right_.padded; }
  int64_t column() const { return swapped_ ? right_.padded : 1; }
  int64_t numbers() const { return left_.padded * right_.padded; }

  // The sums over the k from `begin` to before `end`.
  void Sum(int64_t batch, int64_t begin, int64_t end, T* sums) const {
    const T *left = left_.at + batch * left_.batch, *right = right_.at + batch * right_.batch;
    const int64_t tail = std::min(std::max(left_.Tail(), right_.Tail()), depth_), whole = std::min(end, depth_ - tail);
    // So many rows stay in the nearest cache for all tiles.
    const int64_t step = std::clamp<int64_t>(kNear / (left_.padded + right_.padded), 16, 256);
    bool accumulate = false;
    for (; begin < whole; begin = std::min(whole, begin + step), accumulate = true) {
      Tiles(std::min(step, whole - begin), left + begin * left_.step, left_.step, right + begin * right_.step,
            right_.step, sums, accumulate);
    }
    if (begin >= end) return;
    T* copies = ThreadScratch().a.template Get<T>((end - begin) * (left_.padded + right_.padded));
    T* others = copies + (end - begin) * left_.padded;
    left_.Copy(left + begin * left_.step, end - begin, copies);
    right_.Copy(right + begin * right_.step, end - begin, others);
    Tiles(end - begin, copies, left_.padded, others, right_.padded, sums, accumulate);
  }

 private:
  static constexpr int64_t kNear = (16 << 10) / sizeof(T);

  static int64_t Up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
  // What is left of rows and columns goes in smaller tiles where these are enough.
  bool SmallRows(int64_t left) const { return Up(left, kFewRows) < kernels_.rows; }
  bool SmallColumns(int64_t left) const { return left <= kernels_.columns / 2; }
  int64_t Rows(int64_t count) const {
    const int64_t left = count % kernels_.rows;
    return count - left + (SmallRows(left) ? Up(left, kFewRows) : kernels_.rows);
  }
  int64_t Columns(int64_t count) const { return Up(count, kernels_.columns / 2); }

  void Tiles(int64_t k, const T* left, int64_t left_step, const T* right, int64_t right_step, T* sums,
             bool accumulate) const {
    for (int64_t i = 0; i < left_.count;) {
      const bool few = SmallRows(left_.count - i);
      for (int64_t j = 0; j < right_.count;) {
        const bool half = SmallColumns(right_.count - j);
        kernels_.tall[few][half](k, left + i, left_step, right + j, right_step, sums + i * right_.padded + j,
                                 right_.padded, accumulate);
        j += half ? kernels_.columns / 2 : kernels_.columns;
      }
      i += few ? kFewRows : kernels_.rows;
    }
  }

  const MicroKernels<T>& kernels_;
  int64_t depth_;
  bool swapped_ = false;
  TallSide<T> left_, right_;
};

template <class T>
bool IsTall(const GemmShape& s) {
  const int64_t sums = s.m * s.n;
  return IsDirect<T>(s.a_type) && IsDirect<T>(s.b_type) && IsDirect<T>(s.d_type) && !s.add && s.a_row == 1 &&
         s.b_col == 1 && s.a_col >= s.m && s.b_row >= s.n && s.m > 1 && s.n > 1 && s.n <= kMostColumns &&
         sums * static_cast<int64_t>(sizeof(T)) <= kMostBytes && s.k >= (sums <= kFewSums ? kLeastOfFew : kLeastTerms);
}

}  // namespace

template <class T>
bool TallProduct(const GemmShape& s, const void* a, const void* b, void* d, ThreadPool* pool,
                 const Epilogue* epilogue) {
  if (!IsTall<T>(s)) return false;
  const Tall<T> tall(s, static_cast<const T*>(a), static_cast<const T*>(b));
  // The parts are the same for every number of threads.
  constexpr int64_t kMostParts = 32, kPartWork = 1 << 17, kPartBytes = 64 << 10;
  const int64_t numbers = tall.numbers(), bytes = s.k * (s.m + s.n) * static_cast<int64_t>(sizeof(T));
  const int64_t worth = std::max(s.k * numbers / kPartWork, bytes / kPartBytes);
  const int64_t parts = std::clamp<int64_t>(worth, 1, std::min(kMostParts, s.k / kLeastOfFew));
  T* all = ThreadScratch().d.template Get<T>(s.batch * parts * numbers);
  Spread(pool, s.batch * parts, std::max<int64_t>(1, kPartWork * parts / (s.k * numbers)),
         [&](int64_t begin, int64_t end) {
           for (int64_t i = begin; i < end; ++i) {
             const int64_t part = i % parts;
             tall.Sum(i / parts, Border(s.k, parts, 1, part), Border(s.k, parts, 1, part + 1), all + i * numbers);
           }
         });
  const int64_t grain = std::max<int64_t>(1, kWorthAdding / (s.n * parts));
  Spread(pool, s.batch * s.m, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t batch = i / s.m, row = i % s.m;
      T* to = static_cast<T*>(d) + batch * s.d_batch + row * s.d_row;
      const T* from = all + batch * parts * numbers + row * tall.row();
      for (int64_t p = 0; p < parts; ++p, from += numbers) {
        for (int64_t j = 0; j < s.n; ++j) to[j] = from[j * tall.column()] + (p ? to[j] : T(0));
      }
    }
    if (epilogue) (*epilogue)(begin, end - begin, 0, s.n);
  });
  return true;
}

template bool TallProduct<float>(const GemmShape&, const void*, const void*, void*, ThreadPool*, const Epilogue*);
template bool TallProduct<double>(const GemmShape&, const void*, const void*, void*, ThreadPool*, const Epilogue*);
template bool TallProduct<uint32_t>(const GemmShape&, const void*, const void*, void*, ThreadPool*, const Epilogue*);
template bool TallProduct<uint64_t>(const GemmShape&, const void*, const void*, void*, ThreadPool*, const Epilogue*);

}  // namespace ferrule

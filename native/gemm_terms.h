// What sparse sides of products are made of: where their elements are that are not zero, and whether the other side is
// finite, so that zeros times it are zeros.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "divide.h"
#include "gemm_blocked.h"
#include "gemm_spread.h"
#include "thread_pool.h"

namespace ferrule::sparse {

// A side is sparse where one of so many elements is not zero, or fewer: a term takes up to so many times as long as in
// a dense product's tiles.
constexpr int64_t kRare = 8;
constexpr int64_t kLeast = 32;            // of each size
constexpr int64_t kWorthATask = 1 << 15;  // terms times columns

// A matrix whose element (r, k) is data[r * row + k * step].
template <class T>
struct Side {
  const T* data;
  int64_t rows, k, row, step;
  T at(int64_t r, int64_t p) const { return data[r * row + p * step]; }
};

// Whether some of its elements are. Most matrices that are not sparse are known by the first few; of the others short
// runs are read, as memory has them: another processor may have written each line.
template <class T>
bool LooksSparse(const Side<T>& s, int64_t rare) {
  constexpr int64_t kFirst = 8, kRuns = 64, kRun = 16;
  int64_t found = 0;
  for (int64_t i = 0; i < kFirst; ++i) {  // none of them on the diagonal, where sparse ones are not
    found += s.at((s.rows - 1) * i / (kFirst - 1), (s.k - 1) * ((5 * i + 3) % kFirst) / (kFirst - 1)) != 0;
  }
  if (found > kFirst / 4) return false;
  const bool by_rows = s.step == 1;
  const int64_t along = by_rows ? s.k : s.rows, across = by_rows ? s.rows : s.k, places = along - kRun + 1;
  found = 0;
  for (int64_t i = 0; i < kRuns; ++i) {
    const int64_t line = (across - 1) * i / (kRuns - 1), from = i * 40503 % places;
    for (int64_t j = from; j < from + kRun; ++j) found += (by_rows ? s.at(line, j) : s.at(j, line)) != 0;
    if (found > kRuns * kRun / rare) return false;
  }
  return true;
}

// What is not zero in some rows: row r's terms are `value` times what has the number `at`, from starts[r] to the next.
template <class T>
struct Terms {
  std::vector<int64_t> starts;
  std::vector<int32_t> at;
  std::vector<T> value;

  // The first element of a row's terms, which are in order; beyond all others where it has none.
  int64_t Begin(int64_t row) const {
    const auto r = static_cast<size_t>(row);
    return starts[r] < starts[r + 1] ? at[static_cast<size_t>(starts[r])] : INT64_MAX;
  }

  // Behind the last one.
  int64_t End(int64_t row) const {
    const auto r = static_cast<size_t>(row);
    return starts[r] < starts[r + 1] ? at[static_cast<size_t>(starts[r + 1] - 1)] + 1 : 0;
  }

  // How many elements have to be at hand where rows follow each other, each one's and what is between it and the last
  // one of those before; `last` is behind that.
  int64_t Apart(int64_t* last) const {
    int64_t apart = 1;
    for (int64_t r = 0; r + 1 < static_cast<int64_t>(starts.size()); ++r) {
      if (End(r) == 0) continue;
      *last = std::max(*last, End(r));
      apart = std::max(apart, *last - Begin(r));
    }
    return apart;
  }

  // A whole side's; false where they are too many after all.
  bool ListRare(const Side<T>& s) {
    List(s, 0, s.rows);
    return static_cast<int64_t>(at.size()) <= s.rows * s.k / kRare;
  }

  void List(const Side<T>& s, int64_t begin, int64_t end) {
    const auto rows = static_cast<size_t>(end - begin);
    starts.assign(rows + 1, 0);
    if (s.row == 1 && s.step != 1) return ListColumns(s, begin, rows);
    at.clear(), value.clear();
    found_.resize(static_cast<size_t>(s.k));
    for (size_t r = 0; r < rows; ++r) {
      const int64_t row = begin + static_cast<int64_t>(r);
      const int64_t count = Found(s.data + row * s.row, s.k, s.step);
      for (int64_t i = 0; i < count; ++i) {
        const int32_t p = found_[static_cast<size_t>(i)];
        at.push_back(p), value.push_back(s.at(row, p));
      }
      starts[r + 1] = static_cast<int64_t>(at.size());
    }
  }

 private:
  // As memory has it, column by column; then each term to its row.
  void ListColumns(const Side<T>& s, int64_t begin, size_t rows) {
    found_.resize(rows);
    columns_.clear();
    for (int64_t p = 0; p < s.k; ++p) {
      const int64_t count = Found(s.data + begin + p * s.step, static_cast<int64_t>(rows), 1);
      for (int64_t i = 0; i < count; ++i) {
        const int32_t r = found_[static_cast<size_t>(i)];
        columns_.push_back({r, static_cast<int32_t>(p)});
        ++starts[static_cast<size_t>(r + 1)];
      }
    }
    for (size_t r = 0; r < rows; ++r) starts[r + 1] += starts[r];
    at.resize(columns_.size()), value.resize(columns_.size());
    next_.assign(starts.begin(), starts.end());
    for (const auto& [r, p] : columns_) {
      const auto to = static_cast<size_t>(next_[static_cast<size_t>(r)]++);
      at[to] = p, value[to] = s.at(begin + r, p);
    }
  }

  int64_t Found(const T* x, int64_t n, int64_t step) {
    if (step == 1) return FloatKernels<T>().find(n, x, found_.data());
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (x[i * step] != 0) found_[static_cast<size_t>(count++)] = static_cast<int32_t>(i);
    }
    return count;
  }

  struct Element {
    int32_t row, column;
  };
  std::vector<int32_t> found_;
  std::vector<Element> columns_;
  std::vector<int64_t> next_;
};

// Of a matrix whose inner rows have `columns` elements beside each other.
template <class T>
bool AllFinite(const T* x, int64_t rows, int64_t columns, int64_t row, ThreadPool* pool) {
  if (row == columns) columns *= rows, rows = 1;
  constexpr int64_t kPiece = 1 << 14;
  const int64_t pieces = DivideUp(columns, kPiece);
  std::atomic<bool> finite = true;
  gemm::Spread(pool, rows * pieces, std::max<int64_t>(1, 4 * kPiece / columns), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end && finite.load(std::memory_order_relaxed); ++i) {
      const int64_t from = i % pieces * kPiece;
      if (!FloatKernels<T>().finite(std::min(kPiece, columns - from), x + i / pieces * row + from)) {
        finite.store(false, std::memory_order_relaxed);
      }
    }
  });
  return finite.load(std::memory_order_relaxed);
}

}  // namespace ferrule::sparse

// What calls that sort are given.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "calls.h"
#include "element.h"
#include "sort_keys.h"

namespace ferrule {

struct SortShape {
  int64_t outer, length, inner;  // element (o, i, j) is at (o * length + i) * inner + j
  std::vector<int64_t> sizes;    // bytes of an element of each operand

  std::vector<int64_t> kept;  // the operands whose results are wanted; none is said when all are

  int64_t rows() const { return outer * inner; }
  int64_t Base(int64_t row) const { return row / inner * length * inner + row % inner; }
};

// A result for each operand; null where it is not wanted.
class ResultOfEach {
 public:
  ResultOfEach(const SortShape& s, void* const* results) : results_(results) {
    if (s.kept.empty()) return;
    all_.resize(s.sizes.size(), nullptr);
    for (size_t i = 0; i < s.kept.size(); ++i) all_[s.kept[i]] = results[i];
    results_ = all_.data();
  }
  void* const* get() const { return results_; }

 private:
  std::vector<void*> all_;
  void* const* results_;
};

// Rows that are so short that many are sorted beside one another, by a network of exchanges (sort_network.cc); null for
// others. The operand `key` is what is compared.
std::unique_ptr<Prepared> NetworkSort(const SortShape& shape, Element type, int64_t key, FloatOrder order,
                                      bool descending);

// The same for the `k` largest elements of each row and their positions, as the call "topk" gives them.
std::unique_ptr<Prepared> NetworkTopK(Element type, int64_t rows, int64_t length, int64_t k);

}  // namespace ferrule

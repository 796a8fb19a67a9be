// Short rows, each lane of a vector another one: a network of exchanges of smaller and larger keys, the same for all.
#pragma GCC optimize("O3")  // makes vectors of the loops over keys

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "aligned_scratch.h"
#include "cpu_features.h"
#include "program.h"
#include "quick_sort.h"
#include "sort_loops.h"
#include "sort_shape.h"
#include "thread_pool.h"

namespace ferrule {
namespace {

constexpr int64_t kColumns = kNetworkColumns;

// Batcher's merge exchange for any number of items (Knuth, The Art of Computer Programming, 5.2.2, algorithm M).
std::vector<Exchange> ExchangesOf(int64_t length) {
  std::vector<Exchange> exchanges;
  int64_t top = 1;
  while (2 * top < length) top *= 2;
  for (int64_t p = top; p > 0; p /= 2) {
    int64_t rest = 0, distance = p;
    for (int64_t q = top;; q /= 2) {
      for (int64_t i = 0; i + distance < length; ++i) {
        if ((i & p) == rest) exchanges.push_back({static_cast<uint16_t>(i), static_cast<uint16_t>(i + distance)});
      }
      if (q == p) break;
      distance = q - p, rest = p;
    }
  }
  return exchanges;
}

// Without the exchanges on which the first `wanted` items do not depend.
std::vector<Exchange> ExchangesFor(int64_t length, int64_t wanted) {
  std::vector<Exchange> needed;
  std::vector<bool> live(length, false);
  std::fill_n(live.begin(), wanted, true);
  const std::vector<Exchange> all = ExchangesOf(length);
  for (size_t e = all.size(); e-- > 0;) {
    if (!live[all[e].low] && !live[all[e].high]) continue;
    live[all[e].low] = live[all[e].high] = true;
    needed.push_back(all[e]);
  }
  std::reverse(needed.begin(), needed.end());
  return needed;
}

// Sorts all items of a block of rows, or the first `wanted` of them.
template <class U>
class Network {
 public:
  Network(const SortShape& shape, Element type, FloatOrder order, bool descending, int64_t wanted)
      : s_(shape),
        type_(type),
        order_(order),
        flip_(descending ? ~U(0) : U(0)),
        loops_(ChosenSortLoops<U>()),
        exchanges_(ExchangesFor(shape.length, wanted)),
        is_float_(type == Element::kF32 || type == Element::kF64) {
    const bool small_float = type == Element::kF16 || type == Element::kBF16;
    tells_ = KeyTellsValue(type) && ((!is_float_ && !small_float) || order == FloatOrder::kTotal);
  }

  template <class Block>
  void ForBlocks(ThreadPool& pool, Block block) const {
    constexpr int64_t kGrain = 2048;  // items for which a thread is worth it
    const int64_t blocks = (s_.rows() + kColumns - 1) / kColumns, items = s_.length * kColumns;
    pool.For(blocks, std::max<int64_t>(1, kGrain / items), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) block(i * kColumns, std::min(kColumns, s_.rows() - i * kColumns));
    });
  }

  // Calls `run(column, base, columns)` for neighbouring rows whose items i lie beside one another.
  template <class Run>
  void ForRuns(int64_t first, int64_t count, Run run) const {
    for (int64_t c = 0; c < count;) {
      const int64_t row = first + c, columns = std::min(count - c, s_.inner - row % s_.inner);
      run(c, s_.Base(row), columns);
      c += columns;
    }
  }

  // Calls `item(at, element, columns)` for all items of a block: where in the block items that are neighbours in memory
  // lie, which element the first of them is, and how many they are; a constant where they are single ones.
  template <class Item>
  void ForItems(int64_t first, int64_t count, Item item) const {
    if (s_.inner > 1) {
      return ForRuns(first, count, [&](int64_t c, int64_t base, int64_t columns) {
        for (int64_t i = 0; i < s_.length; ++i) item(i * kColumns + c, base + i * s_.inner, columns);
      });
    }
    for (int64_t c = 0; c < count; ++c) {
      const int64_t base = (first + c) * s_.length;
      for (int64_t i = 0; i < s_.length; ++i) item(i * kColumns + c, base + i, std::integral_constant<int64_t, 1>());
    }
  }

  void SortKeysOnly(U* keys) const { loops_.keys(keys, exchanges_.data(), Exchanges()); }

  // Where each item was in its row, in the lower half of what is returned; valid until the next call. With `keys_too`
  // the keys are sorted, too. Equal keys keep their order: positions break ties, next to keys of 32 bits as the lower
  // half of one of 64.
  const uint64_t* SortPositions(U* keys, bool keys_too) const {
    static thread_local AlignedScratch scratch;
    const int64_t items = s_.length * kColumns;
    uint64_t* with = scratch.Get<uint64_t>(items);
    for (int64_t i = 0; i < s_.length; ++i) std::fill_n(with + i * kColumns, kColumns, static_cast<uint64_t>(i));
    if constexpr (sizeof(U) == 4) {
      for (int64_t i = 0; i < items; ++i) with[i] |= uint64_t{keys[i]} << 32;
      ChosenSortLoops<uint64_t>().keys(with, exchanges_.data(), Exchanges());
      for (int64_t i = 0; keys_too && i < items; ++i) keys[i] = static_cast<U>(with[i] >> 32);
    } else {
      loops_.with(keys, with, exchanges_.data(), Exchanges());
    }
    return with;
  }

  // The keys of a block's rows, valid until the next call. `told`: whether they tell all of the elements.
  U* Keys(const void* operand, int64_t first, int64_t count, bool* told) const {
    static thread_local AlignedScratch bits_scratch, keys_scratch;
    const int64_t items = s_.length * kColumns;
    U* keys = keys_scratch.Get<U>(items);
    *told = tells_;
    BySize(SizeOf(type_), [&]<class Stored>(Stored*) {
      if constexpr (std::is_integral_v<Stored>) {
        Stored* bits = bits_scratch.Get<Stored>(items);
        if (count < kColumns) std::fill_n(bits, items, Stored(0));
        const Stored* from = static_cast<const Stored*>(operand);
        ForItems(first, count,
                 [=](int64_t at, int64_t element, auto columns) { std::copy_n(from + element, columns, bits + at); });
        if constexpr (std::is_same_v<U, Stored>) {
          if (is_float_) {
            const bool total = order_ == FloatOrder::kTotal;
            constexpr U kInfinity = static_cast<U>(sizeof(U) == 4 ? 0x7f800000ull : 0x7ff0000000000000ull);
            *told = !loops_.of_floats(bits, items, kInfinity, total, flip_, keys);
            return;
          }
        }
        SortKeys(type_, bits, 1, items, order_, flip_ != 0, keys);
      }
    });
    return keys;
  }

  // The elements of which keys tell all.
  void WriteKeys(void* result, int64_t first, int64_t count, const U* keys) const {
    static thread_local AlignedScratch scratch;
    const int64_t items = s_.length * kColumns;
    BySize(SizeOf(type_), [&]<class Stored>(Stored*) {
      if constexpr (std::is_integral_v<Stored>) {
        Stored* bits = scratch.Get<Stored>(items);
        bool made = false;
        if constexpr (std::is_same_v<U, Stored>) {
          if (is_float_) loops_.to_floats(keys, items, flip_, bits);
          made = is_float_;
        }
        if (!made) ValuesOfKeys<U>(type_, items, flip_ != 0, 1, bits, [=](int64_t i) { return keys[i]; });
        Stored* to = static_cast<Stored*>(result);
        ForItems(first, count,
                 [=](int64_t at, int64_t element, auto columns) { std::copy_n(bits + at, columns, to + element); });
      }
    });
  }

 private:
  int64_t Exchanges() const { return static_cast<int64_t>(exchanges_.size()); }

  const SortShape s_;
  const Element type_;
  const FloatOrder order_;
  const U flip_;
  const SortLoops<U>& loops_;
  const std::vector<Exchange> exchanges_;
  const bool is_float_;
  bool tells_;  // whether a key tells which element it was made of
};

template <class U>
class SortedRows : public Prepared {
 public:
  SortedRows(const SortShape& shape, Element type, int64_t key, FloatOrder order, bool descending)
      : s_(shape), key_(key), network_(shape, type, order, descending, shape.length) {}

  Status Run(void* const* operands, void* const* given, ExecContext& context) const override {
    const ResultOfEach each(s_, given);
    void* const* results = each.get();
    network_.ForBlocks(*context.pool, [&](int64_t first, int64_t count) {
      bool told;
      U* keys = network_.Keys(operands[key_], first, count, &told);
      if (s_.sizes.size() == 1 && told) {
        network_.SortKeysOnly(keys);
        return network_.WriteKeys(results[key_], first, count, keys);
      }
      const bool write = told && results[key_] != nullptr;
      const uint64_t* positions = network_.SortPositions(keys, write);
      for (size_t k = 0; k < s_.sizes.size(); ++k) {
        const bool by_key = write && static_cast<int64_t>(k) == key_;
        if (by_key) network_.WriteKeys(results[k], first, count, keys);
        if (!by_key && results[k] != nullptr) Move(s_.sizes[k], operands[k], results[k], first, count, positions);
      }
    });
    return Status();
  }

 private:
  // An operand's elements, which go where their keys went.
  void Move(int64_t size, const void* operand, void* result, int64_t first, int64_t count,
            const uint64_t* positions) const {
    BySize(size, [&]<class Stored>(Stored*) {
      network_.ForRuns(first, count, [&](int64_t c, int64_t base, int64_t columns) {
        const Stored* from = static_cast<const Stored*>(operand) + base;
        Stored* to = static_cast<Stored*>(result) + base;
        for (int64_t i = 0; i < s_.length; ++i) {
          const uint64_t* position = positions + i * kColumns + c;
          for (int64_t j = 0; j < columns; ++j) {
            to[i * s_.inner + j] = from[static_cast<uint32_t>(position[j]) * s_.inner + j];
          }
        }
      });
    });
  }

  const SortShape s_;
  const int64_t key_;
  const Network<U> network_;
};

// The largest elements of rows that lie one after the other, and their positions.
template <class U>
class LargestOfRows : public Prepared {
 public:
  LargestOfRows(const SortShape& shape, Element type, int64_t k)
      : s_(shape), k_(k), network_(shape, type, FloatOrder::kTotal, true, k) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    network_.ForBlocks(*context.pool, [&](int64_t first, int64_t count) {
      bool told;
      U* keys = network_.Keys(operands[0], first, count, &told);
      const uint64_t* positions = network_.SortPositions(keys, false);
      BySize(s_.sizes[0], [&]<class Stored>(Stored*) {
        for (int64_t c = 0; c < count; ++c) {
          const Stored* from = static_cast<const Stored*>(operands[0]) + (first + c) * s_.length;
          Stored* to = static_cast<Stored*>(results[0]) + (first + c) * k_;
          int32_t* places = static_cast<int32_t*>(results[1]) + (first + c) * k_;
          for (int64_t i = 0; i < k_; ++i) {
            places[i] = static_cast<int32_t>(positions[i * kColumns + c]);
            to[i] = from[places[i]];
          }
        }
      });
    });
    return Status();
  }

 private:
  const SortShape s_;
  const int64_t k_;
  const Network<U> network_;
};

// Rows from which on vectors that sort a row by itself are faster, with positions and with keys alone; these must lie
// one after the other.
constexpr int64_t kItemsInVectorsFrom = 24, kKeysInVectorsFrom = 56;

bool FasterInVectors(const SortShape& s, Element type, bool alone) {
  return SortsInVectors() && s.inner == 1 && (alone || SortKeyBytes(type) == 4) &&
         s.length >= (alone ? kKeysInVectorsFrom : kItemsInVectorsFrom);
}

// Rows up to which the exchanges, whose number grows faster than a row, are worth it; with positions, and with keys
// alone. Fewer rows than a few would leave most lanes empty.
bool Suits(const SortShape& s, Element type, bool alone) {
  const bool vectors = ChosenIsa() == Isa::kAvx512 || ChosenIsa() == Isa::kAvx2;
  const int64_t most = vectors ? (alone ? 256 : 128) : alone ? 64 : SortKeyBytes(type) == 8 ? 0 : 32;
  return s.length <= most && s.rows() >= (vectors ? 8 : 32);
}

}  // namespace

std::unique_ptr<Prepared> NetworkSort(const SortShape& s, Element type, int64_t key, FloatOrder order,
                                      bool descending) {
  const bool alone = s.sizes.size() == 1;
  if (!Suits(s, type, alone) || FasterInVectors(s, type, alone)) return nullptr;
  if (SortKeyBytes(type) == 8) return std::make_unique<SortedRows<uint64_t>>(s, type, key, order, descending);
  return std::make_unique<SortedRows<uint32_t>>(s, type, key, order, descending);
}

std::unique_ptr<Prepared> NetworkTopK(Element type, int64_t rows, int64_t length, int64_t k) {
  const SortShape s{rows, length, 1, {SizeOf(type)}, {}};
  if (rows < kColumns || !Suits(s, type, false)) return nullptr;
  if (SortKeyBytes(type) == 8) return std::make_unique<LargestOfRows<uint64_t>>(s, type, k);
  return std::make_unique<LargestOfRows<uint32_t>>(s, type, k);
}

}  // namespace ferrule

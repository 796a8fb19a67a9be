// Stable radix sorts of what has an unsigned integer as its key: of a row by one thread, or by all of the pool.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "aligned_scratch.h"
#include "thread_pool.h"

namespace ferrule {

// What is sorted: a key alone (U itself), or a key with 32 bits that go with it.
template <class U>
struct Item {
  Item() = default;
  Item(U k, uint32_t w) : key_(k), with_(w) {}
  U key() const { return key_; }
  uint32_t with() const { return with_; }

 private:
  U key_;
  uint32_t with_;
};

// One number, so that moving it is one load and one store: the compiler makes two of each for two members. Of items
// whose keys are equal the number is less of whose `with` is less.
template <>
struct Item<uint32_t> {
  Item() = default;
  Item(uint32_t k, uint32_t w) : both(uint64_t{k} << 32 | w) {}
  uint32_t key() const { return static_cast<uint32_t>(both >> 32); }
  uint32_t with() const { return static_cast<uint32_t>(both); }

  uint64_t both;
};

template <class T>
inline auto KeyOf(const T& item) {
  if constexpr (std::is_integral_v<T>) {
    return item;
  } else {
    return item.key();
  }
}

template <class U>
inline U MakeItem(U key, uint32_t, U*) {
  return key;
}
template <class U>
inline Item<U> MakeItem(U key, uint32_t with, Item<U>*) {
  return {key, with};
}

constexpr int64_t kRadixFrom = 64;        // shorter rows are sorted by comparisons
constexpr int64_t kLongRadixFrom = 8192;  // rows from which on 2048 buckets for each digit pay, not 256

// By one thread; the result is in the buffer that is returned. Digits that are the same everywhere are passed over, so
// narrow types cost one or two passes.
template <int kBits, class T>
T* RadixSort(T* from, T* spare, int64_t n) {
  using U = decltype(KeyOf(*from));
  constexpr int kDigits = (8 * sizeof(U) + kBits - 1) / kBits, kBuckets = 1 << kBits;
  static thread_local AlignedScratch scratch;
  uint32_t* counts = scratch.Get<uint32_t>(int64_t{kDigits} * kBuckets);
  std::memset(counts, 0, sizeof(uint32_t) * kDigits * kBuckets);
  for (int64_t i = 0; i < n; ++i) {
    const U key = KeyOf(from[i]);
    for (int d = 0; d < kDigits; ++d) ++counts[d * kBuckets + ((key >> (d * kBits)) & (kBuckets - 1))];
  }
  for (int d = 0; d < kDigits; ++d) {
    uint32_t* count = counts + d * kBuckets;
    const int shift = d * kBits;
    if (count[(KeyOf(from[0]) >> shift) & (kBuckets - 1)] == static_cast<uint64_t>(n)) continue;
    uint32_t sum = 0;
    for (int b = 0; b < kBuckets; ++b) {
      const uint32_t here = count[b];
      count[b] = sum;
      sum += here;
    }
    for (int64_t i = 0; i < n; ++i) spare[count[(KeyOf(from[i]) >> shift) & (kBuckets - 1)]++] = from[i];
    std::swap(from, spare);
  }
  return from;
}

// A sorted row must be right in all bits, but random keys differ in their first ones already, nearly all: then
// passes over these do, and a look at neighbours. How many digits of the first kBits each that takes:
template <int kBits, class U>
constexpr int kFirstDigits = ((sizeof(U) == 8 ? 32 : 22) + kBits - 1) / kBits;

// Some of the keys, sorted: more of more, since the more there are the fewer may be alike. (Not by comparisons, whose
// branches nobody foresees: 512 of them take 20 us.)
template <class U>
struct KeySample {
  static constexpr int64_t kLeast = 512, kMost = 2048;

  template <class Keys>
  KeySample(int64_t n, Keys keys) : count(std::clamp(n / 128, kLeast, kMost)) {
    for (int64_t i = 0; i < count; ++i) keys(n * i / count, 1, first + i);
    sorted = RadixSort<8>(first, second, count);
  }

  // Whether the first bits, all but the last `rest`, tell nearly all keys apart: then passes over these do. With more
  // alike, as 32-bit floats are, looking at neighbours costs more than the passes. Of random keys a few may be.
  bool FirstBitsTell(int rest) const {
    int64_t alike = 0;
    for (int64_t i = 1; i < count; ++i) alike += sorted[i] >> rest == sorted[i - 1] >> rest;
    return alike <= count / 700;
  }

  const int64_t count;
  const U* sorted;

 private:
  U first[kMost], second[kMost];
};

// Moves item i, which is less than the one before it, to its place in [begin, i], where the items of [begin, end) are
// sorted but for the last `rest` bits of their keys; `spare` is as large. Returns up to where they are in order then.
template <class T>
int64_t MoveBack(T* items, T* spare, int64_t i, int64_t begin, int64_t end, int rest) {
  constexpr int64_t kFar = 32;  // an item that is to move further than that is in a run to be sorted by itself
  const T item = items[i];
  int64_t j = i;
  do {
    items[j] = items[j - 1];
  } while (--j > begin && i - j < kFar && KeyOf(item) < KeyOf(items[j - 1]));
  items[j] = item;
  if (i - j < kFar) return i + 1;
  const auto run = KeyOf(item) >> rest;
  int64_t first = j, last = i + 1;
  while (first > begin && KeyOf(items[first - 1]) >> rest == run) --first;
  while (last < end && KeyOf(items[last]) >> rest == run) ++last;
  T* sorted = RadixSort<8>(items + first, spare + first, last - first);
  if (sorted != items + first) std::copy(sorted, sorted + (last - first), items + first);
  return last;
}

// Puts [begin, end) in order, which is sorted but for the last `rest` bits of its keys; `spare` is as large.
template <class T>
void SortWithin(T* items, T* spare, int64_t begin, int64_t end, int rest) {
  for (int64_t i = begin + 1; i < end;) {
    if (KeyOf(items[i]) < KeyOf(items[i - 1])) {
      i = MoveBack(items, spare, i, begin, end, rest);
    } else {
      ++i;
    }
  }
}

// By all threads. Each has a part of the row, counts its digits, and then moves its items to the places that follow
// from everybody's counts. The first pass takes keys from `keys(begin, count, to)` and what goes with them from
// `with(i)`, block by block, so that they are never written as they were. `a` and `b` are for n items each.
template <int kBits, class U, class T, class Keys, class With>
T* SpreadRadixSort(ThreadPool& pool, T* a, T* b, int64_t n, Keys keys, With with) {
  constexpr int kDigits = (8 * sizeof(U) + kBits - 1) / kBits, kBuckets = 1 << kBits;
  constexpr int64_t kBlock = 1024;
  static thread_local AlignedScratch scratch;
  const int64_t parts = pool.threads();
  uint32_t* counts = scratch.Get<uint32_t>(parts * kBuckets);
  const T* from = nullptr;  // the operand itself
  T *to = a, *spare = b;
  constexpr int kFirst = kFirstDigits<kBits, U>, kRest = 8 * sizeof(U) - kBits * kFirst;
  const bool quick = kFirst < kDigits && KeySample<U>(n, keys).FirstBitsTell(kRest);
  for (int d = quick ? kDigits - kFirst : 0; d < kDigits; ++d) {
    const int shift = quick ? kRest + (d - (kDigits - kFirst)) * kBits : d * kBits;
    const bool last = d == kDigits - 1;
    const auto each = [&](int64_t part, auto item) {
      const int64_t begin = n * part / parts, end = n * (part + 1) / parts;
      if (from != nullptr) {
        for (int64_t i = begin; i < end; ++i) item(from[i]);
        return;
      }
      U block[kBlock];
      for (int64_t i = begin; i < end; i += kBlock) {
        const int64_t count = std::min(kBlock, end - i);
        keys(i, count, block);
        for (int64_t j = 0; j < count; ++j) item(MakeItem(block[j], with(i + j), static_cast<T*>(nullptr)));
      }
    };
    pool.For(parts, 1, [&](int64_t first, int64_t end) {
      for (int64_t part = first; part < end; ++part) {
        uint32_t* count = counts + part * kBuckets;
        std::memset(count, 0, sizeof(uint32_t) * kBuckets);
        each(part, [&](const T& item) { ++count[(KeyOf(item) >> shift) & (kBuckets - 1)]; });
      }
    });
    uint32_t sum = 0;
    bool same = false;
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      const uint32_t before = sum;
      for (int64_t part = 0; part < parts; ++part) {
        const uint32_t here = counts[part * kBuckets + bucket];
        counts[part * kBuckets + bucket] = sum;
        sum += here;
      }
      same |= sum - before == static_cast<uint64_t>(n);
    }
    if (same && !(last && from == nullptr)) continue;
    pool.For(parts, 1, [&](int64_t first, int64_t end) {
      for (int64_t part = first; part < end; ++part) {
        uint32_t* count = counts + part * kBuckets;
        each(part, [&](const T& item) { to[count[(KeyOf(item) >> shift) & (kBuckets - 1)]++] = item; });
      }
    });
    from = to;
    std::swap(to, spare);
  }
  if (quick) {
    // A part begins where a run of keys with equal first digits does.
    const auto border = [&](int64_t part) {
      int64_t at = n * part / parts;
      while (at > 0 && at < n && KeyOf(spare[at]) >> kRest == KeyOf(spare[at - 1]) >> kRest) ++at;
      return at;
    };
    std::vector<int64_t> borders(static_cast<size_t>(parts + 1));
    for (int64_t part = 0; part <= parts; ++part) borders[static_cast<size_t>(part)] = border(part);
    pool.For(parts, 1, [&](int64_t first, int64_t end) {
      SortWithin(spare, to, borders[static_cast<size_t>(first)], borders[static_cast<size_t>(end)], kRest);
    });
  }
  return spare;
}

}  // namespace ferrule

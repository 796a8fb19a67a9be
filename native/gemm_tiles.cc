// The product on tile registers. The right side is packed first, by all threads. Then each thread takes a block of
// rows, packs as much of it along k as its second-level cache holds, and goes over the columns. A panel of these meets
// all rows for a short way along k at a time, for which it stays in the first-level cache, and the sums in the second.
#include "gemm_tiles.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "aligned_scratch.h"
#include "cpu_features.h"
#include "gemm_block.h"
#include "gemm_spread.h"
#include "gemm_tiles_split.h"
#include "onednn.h"
#include "packed.h"
#include "program.h"
#include "thread_pool.h"
#include "tile_registers.h"

#if defined(__x86_64__) && defined(__linux__)
#define FERRULE_TILES 1
#endif

namespace ferrule {
namespace {

#if defined(FERRULE_TILES)

using gemm::At;
using gemm::Border;
using gemm::Spread;

constexpr int64_t kRows = 384;             // of a block
constexpr int64_t kLeftBytes = 512 << 10;  // of a packed block of rows: of a cache of 2 MB that two threads may share
constexpr int64_t kManyPanels = 8;         // of rows, which take long enough to fetch the next panel of columns
constexpr int64_t kTogether = 8;           // panels that are packed together
constexpr int64_t kFreshSteps = 16;        // of them that a thread packs for itself
constexpr int64_t kFreshRows = 512;        // up to which it does
constexpr int64_t kShortWay = 8;           // steps: 16 KB of a panel, a third of the first-level cache
constexpr int64_t kShortSplitWay = 3;      // the same of floats: 18 KB
constexpr int64_t kRightBytes = 64 << 20;  // packed at once
constexpr int64_t kLeastColumns = 512, kMostColumns = 4096;  // at once: up to 8 MB of sums for each thread

int64_t Ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

enum Use { kLeft, kRight, kSums, kUses };

// This thread's memory. What is large has large pages, for which it must have the size of one.
char* ThreadScratch(Use use, int64_t bytes) {
  static thread_local AlignedScratch scratch[kUses];
  constexpr int64_t kLarge = 128 << 10, kPage = 2 << 20;
  return scratch[use].Get<char>(bytes > kLarge ? std::max(bytes, kPage) : bytes);
}

// The bits of the smallest magnitude that is not zero, and of the largest.
struct FloatRange {
  uint32_t least = UINT32_MAX, most = 0;
};

// Of a matrix, of whose strides one is 1.
FloatRange FindRange(const void* x, int64_t rows, int64_t row, int64_t columns, int64_t column, ThreadPool* pool) {
  if (column != 1) return FindRange(x, columns, column, rows, row, pool);
  constexpr int64_t kWorthAThread = 16 << 10;
  std::atomic<uint32_t> least = UINT32_MAX, most = 0;
  Spread(pool, rows, Ceil(kWorthAThread, columns), [&](int64_t begin, int64_t end) {
    FloatRange mine;
    for (int64_t i = begin; i < end; ++i) {
      kAmxSplit.range(static_cast<const float*>(x) + i * row, columns, &mine.least, &mine.most);
    }
    for (uint32_t seen = least; mine.least < seen && !least.compare_exchange_weak(seen, mine.least);) continue;
    for (uint32_t seen = most; mine.most > seen && !most.compare_exchange_weak(seen, mine.most);) continue;
  });
  return {least, most};
}

// Whether no part of a number, no product of parts that counts, and no sum of k products leaves the range of normal
// floats: the registers take what is below for zero, and an infinity has no parts.
bool PartsHold(const FloatRange& a, const FloatRange& b, int64_t k) {
  auto exponent = [](uint32_t bits) { return static_cast<int>(bits >> 23) - 127; };
  constexpr int kLeast = -100, kMost = 120;  // a float's digits below the first one reach 2^-24
  if (a.most == 0 || b.most == 0) return exponent(std::max(a.most, b.most)) <= kMost;
  const int least = std::min({exponent(a.least), exponent(b.least), exponent(a.least) + exponent(b.least)});
  const int most = std::max({exponent(a.most), exponent(b.most), exponent(a.most) + exponent(b.most)});
  return least >= kLeast && most + std::bit_width(static_cast<uint64_t>(k)) <= kMost;
}

class Tiles : public Prepared {
 public:
  Tiles(const GemmShape& shape, TileType type, const OperandSource& right, const EpilogueCall& epilogue)
      : s_(shape), type_(type), bytes_(SizeOf(shape.a_type)), source_(right), epilogue_(epilogue) {
    split_ = type == kTileF32;
    step_ = split_ ? kTileParts * kTileStep : kTileStep;
    elements_ = split_ ? kTileBytes / 2 : kTileBytes / bytes_;
    short_way_ = split_ ? kShortSplitWay : kShortWay;
    steps_ = Ceil(s_.k, elements_);
    const int64_t fit = kRightBytes / (steps_ * step_ / kTilePanel) / kEpilogueUnit * kEpilogueUnit;
    columns_ = s_.m > kFreshRows ? std::clamp(fit, kLeastColumns, kMostColumns) : kMostColumns;
    if (right.kind == OperandSource::kComputed || !PackedForms::Enabled()) return;
    key_ = "tiles";
    for (int64_t part : {s_.k, s_.n, s_.b_row, s_.b_col, bytes_}) key_ += " " + std::to_string(part);
  }

  // What computes floats that are not within the range of their parts.
  void Otherwise(std::unique_ptr<Prepared> otherwise) { otherwise_ = std::move(otherwise); }

  // False when neither the rows nor the columns of a side are adjacent.
  bool Make() {
    // Rows that lie close together do not push each other out of the first-level cache.
    constexpr int64_t kClose = 1024;
    in_place_ = !split_ && s_.a_col == 1 && s_.a_row * bytes_ <= kClose && s_.a_row * bytes_ % kTileBytes == 0 &&
                s_.k * bytes_ % kTileBytes == 0;
    return MakeTilePacking(kTileLeft, bytes_, s_.a_row, s_.a_col, &left_) &&
           MakeTilePacking(kTileRight, bytes_, s_.b_col, s_.b_row, &right_);
  }

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    const EpilogueRun run(epilogue_, operands, results);
    Output out = {static_cast<char*>(results[epilogue_.home()]), run.get()};
    const auto* a = static_cast<const char*>(operands[0]);
    Ref<Storage> kept = key_.empty() ? nullptr : Kept(operands[1], context);
    if (split_) {
      const FloatRange right = kept ? RangeOf(*kept) : RangeOfRight(operands[1], context.pool);
      if (!PartsHold(FindRange(a, s_.m, s_.a_row, s_.k, s_.a_col, context.pool), right, s_.k)) {
        return otherwise_->Run(operands, results, context);
      }
    }
    for (int64_t from = 0; from < s_.n; from += columns_) {
      const int64_t columns = std::min(columns_, s_.n - from);
      Panels right = {nullptr, static_cast<const char*>(operands[1]) + from / kTilePanel * right_.panel};
      if (kept) {
        right.packed = static_cast<const char*>(kept->data()) + from / kTilePanel * steps_ * step_;
      } else if (s_.m > kFreshRows) {
        char* to = ThreadScratch(kRight, Ceil(columns, kTilePanel) * steps_ * step_);
        PackRight(operands[1], from, columns, to, context.pool);
        right.packed = to;
      }
      Product(a, right, from, columns, out, context.pool);
    }
    return Status();
  }

 private:
  // Columns of the right side, packed or where they lie. Of one block of rows, each thread packs for itself what it
  // multiplies next, which then does not leave the cache.
  struct Panels {
    const char *packed, *plain;
  };
  struct Output {
    char* d;
    const Epilogue* epilogue;
  };

  // Steps [first, end) of a few panels, step by step, so that what is read together lies together.
  void PackPanels(const char* plain, int64_t columns, int64_t first, int64_t end, char* to, int64_t to_panel) const {
    for (int64_t s = first; s < end; ++s) {
      for (int64_t j = 0; j * kTilePanel < columns; ++j) {
        right_.pack(plain + j * right_.panel + s * right_.along, right_.stride,
                    std::min(kTilePanel, columns - j * kTilePanel), std::min(elements_, s_.k - s * elements_),
                    to + j * to_panel + (s - first) * step_);
      }
    }
  }

  void PackRight(const void* b, int64_t from, int64_t columns, char* to, ThreadPool* pool) const {
    constexpr int64_t kWorthPacking = 64 << 10;  // bytes, for a thread of their own
    const char* plain = static_cast<const char*>(b) + from / kTilePanel * right_.panel;
    const int64_t panel = steps_ * step_, grain = std::max<int64_t>(1, kWorthPacking / panel);
    Spread(pool, Ceil(columns, kTilePanel), grain, [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; j += kTogether) {
        PackPanels(plain + j * right_.panel,
                   std::min(std::min(kTogether, end - j) * kTilePanel, columns - j * kTilePanel), 0, steps_,
                   to + j * panel, panel);
      }
    });
  }

  // The right side in panels, where it is the same as in an earlier run (packed.h).
  Ref<Storage> Kept(const void* b, ExecContext& context) const {
    PackedForms* forms = context.forms ? context.forms(context.forms_self, source_) : nullptr;
    if (!forms) return nullptr;
    const int64_t bytes = Ceil(s_.n, kTilePanel) * steps_ * step_;
    return forms->Get(key_, bytes + (split_ ? kTileBytes : 0), [&](void* to) {
      PackRight(b, 0, s_.n, static_cast<char*>(to), context.pool);
      if (!split_) return;
      const FloatRange range = RangeOfRight(b, context.pool);
      std::memcpy(static_cast<char*>(to) + bytes, &range, sizeof(range));
    });
  }

  FloatRange RangeOf(const Storage& kept) const {
    FloatRange range;
    std::memcpy(&range, static_cast<const char*>(kept.data()) + Ceil(s_.n, kTilePanel) * steps_ * step_, sizeof(range));
    return range;
  }
  FloatRange RangeOfRight(const void* b, ThreadPool* pool) const {
    return FindRange(b, s_.k, s_.b_row, s_.n, s_.b_col, pool);
  }

  struct Grid {
    int64_t down = 1, across = 1;
  };

  // How some columns are cut into pieces. Each packs its rows, and its columns where they are not packed: an element in
  // the time of some hundred multiply-adds.
  Grid GridOf(int64_t columns, bool packed, int64_t threads) const {
    constexpr int64_t kPacking = 100, kMostEach = 4;
    const int64_t high = Ceil(s_.m, kTilePanel), wide = Ceil(columns, kEpilogueUnit);
    const int64_t rows_packing = in_place_ ? 0 : kPacking, columns_packing = packed ? 0 : kPacking;
    Grid best;
    int64_t least = INT64_MAX;
    for (int64_t across = 1; across <= std::min(threads, wide); ++across) {
      for (int64_t each = 1; each <= kMostEach; ++each) {
        const int64_t down = std::clamp(each * threads / across, packed ? Ceil(s_.m, kRows) : 1, high);
        const int64_t rows = Ceil(high, down) * kTilePanel, piece = Ceil(wide, across) * kEpilogueUnit;
        const int64_t cost =
            Ceil(down * across, threads) * (rows * piece + rows * rows_packing + piece * columns_packing);
        if (cost < least) least = cost, best = {down, across};
      }
    }
    return best;
  }

  void Product(const char* a, const Panels& right, int64_t from, int64_t columns, const Output& out,
               ThreadPool* pool) const {
    constexpr double kWorthAThread = 1 << 21;  // multiply-adds
    const double work = static_cast<double>(s_.m) * static_cast<double>(columns) * static_cast<double>(s_.k);
    const auto most = static_cast<int64_t>(work / kWorthAThread) + 1;
    const int64_t threads = std::min<int64_t>(pool ? pool->threads() : 1, most);
    const Grid grid = GridOf(columns, right.packed != nullptr, threads);
    const int64_t pieces = grid.down * grid.across;
    Spread(pool, pieces, Ceil(pieces, threads), [&](int64_t begin, int64_t end) {
      kAmxTiles.begin();
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = Border(s_.m, grid.down, kTilePanel, i / grid.across);
        const int64_t rows = Border(s_.m, grid.down, kTilePanel, i / grid.across + 1) - row;
        const int64_t column = Border(columns, grid.across, kEpilogueUnit, i % grid.across);
        const int64_t wide = Border(columns, grid.across, kEpilogueUnit, i % grid.across + 1) - column;
        const int64_t first = column / kTilePanel;
        const Panels part = {right.packed ? right.packed + first * steps_ * step_ : nullptr,
                             right.plain + first * right_.panel};
        Block(a, part, row, rows, from + column, wide, out);
      }
      kAmxTiles.end();
    });
  }

  void Block(const char* a, const Panels& right, int64_t row, int64_t rows, int64_t column, int64_t columns,
             const Output& out) const {
    const int64_t down = Ceil(rows, kTilePanel), across = Ceil(columns, kTilePanel);
    if (down == 0 || across == 0) return;
    // Parts along k of about one length.
    const int64_t parts = Ceil(steps_, std::min(right.packed ? steps_ : kFreshSteps,
                                                std::max<int64_t>(short_way_, kLeftBytes / (down * step_))));
    const int64_t part = Ceil(Ceil(steps_, parts), short_way_) * short_way_;
    char* left = ThreadScratch(kLeft, down * std::min(part, steps_) * step_);
    auto* all = reinterpret_cast<uint32_t*>(ThreadScratch(kSums, down * (part < steps_ ? across : 1) * kTileSums * 4));
    char* fresh = right.packed ? nullptr : ThreadScratch(kRight, kTogether * part * step_);
    const int64_t d_bytes = SizeOf(s_.d_type);
    const auto put = kAmxTiles.put[d_bytes == 4];
    for (int64_t first = 0; first < steps_; first += part) {
      const int64_t steps = std::min(part, steps_ - first);
      // Whole panels may be read where they lie.
      const int64_t plain = in_place_ ? rows / kTilePanel : 0;
      const char* from = a + row / kTilePanel * left_.panel + first * left_.along;
      for (int64_t i = plain; i < down; ++i) {
        left_.pack(from + i * left_.panel, left_.stride, std::min(kTilePanel, rows - i * kTilePanel),
                   std::min(steps * elements_, s_.k - first * elements_), left + i * steps * step_);
      }
      const bool last = first + steps == steps_;
      // Of one panel of rows nothing is used again.
      const int64_t most = down == 1 && !split_ ? steps : short_way_;
      for (int64_t j = 0; j < across; ++j) {
        if (!right.packed && j % kTogether == 0) {
          PackPanels(right.plain + j * right_.panel, std::min(kTogether * kTilePanel, columns - j * kTilePanel), first,
                     first + steps, fresh, steps * step_);
        }
        const char* panel =
            right.packed ? right.packed + (j * steps_ + first) * step_ : fresh + j % kTogether * steps * step_;
        uint32_t* sums = all + (part < steps_ ? j * down * kTileSums : 0);
        const int64_t wide = std::min(kTilePanel, columns - j * kTilePanel);
        char* to = out.d + (row * s_.d_row + column + j * kTilePanel) * d_bytes;
        for (int64_t s = 0; s < steps; s += most) {
          const int64_t way = std::min(most, steps - s);
          const int64_t lines = Ceil(way * step_ / 64, down);
          for (int64_t i = 0; i < down; ++i) {
            const int64_t high = std::min(kTilePanel, rows - i * kTilePanel);
            char* tile = to + i * kTilePanel * s_.d_row * d_bytes;
            // The next panel comes while this one is multiplied, for long enough.
            if (right.packed && j + 1 < across) kAmxTiles.fetch(panel + (steps_ + s) * step_ + i * lines * 64, lines);
            const bool there = i < plain;
            if (split_) {
              kAmxSplit.multiply(left + (i * steps + s) * step_, panel + s * step_, way, first + s > 0,
                                 reinterpret_cast<float*>(sums + i * kTileSums));
            } else {
              kAmxTiles.multiply[type_](
                  there ? from + i * left_.panel + s * kTileBytes : left + (i * steps + s) * step_,
                  there ? left_.stride : kTileBytes, there ? kTileBytes : step_, panel + s * step_, way, first + s > 0,
                  sums + i * kTileSums);
            }
            if (last && s + way == steps) put(sums + i * kTileSums, high, wide, tile, s_.d_row * d_bytes);
          }
        }
        // What follows, for two panels of columns at a time.
        const int64_t done = column + j * kTilePanel + wide, unit = (done - 1) / kEpilogueUnit * kEpilogueUnit;
        if (last && out.epilogue && (done == column + columns || done % kEpilogueUnit == 0)) {
          (*out.epilogue)(row, rows, unit, done - unit);
        }
      }
    }
  }

  GemmShape s_;
  TileType type_;
  int64_t bytes_;
  OperandSource source_;
  EpilogueCall epilogue_;
  std::unique_ptr<Prepared> otherwise_;
  std::string key_;                      // of the packed form of the right side; empty when it is not kept
  bool split_;                           // floats, in parts
  int64_t step_, elements_, short_way_;  // bytes and elements of a step of a panel; steps for the first-level cache
  int64_t steps_, columns_;
  bool in_place_ = false;
  TilePacking left_, right_;
};

bool TypeOf(const GemmShape& s, TileType* type) {
  if (s.a_type == Element::kF32 && s.b_type == Element::kF32) {
    *type = kTileF32;
    return s.d_type == Element::kF32;
  }
  if (s.a_type == Element::kBF16 && s.b_type == Element::kBF16) {
    *type = kTileBf16;
    return s.d_type == Element::kBF16 || s.d_type == Element::kF32;
  }
  auto byte = [](Element e) { return e == Element::kS8 || e == Element::kU8; };
  if (!byte(s.a_type) || !byte(s.b_type) || s.d_type != Element::kS32) return false;
  const bool u8_left = s.a_type == Element::kU8, u8_right = s.b_type == Element::kU8;
  *type = u8_left ? (u8_right ? kTileU8U8 : kTileU8S8) : (u8_right ? kTileS8U8 : kTileS8S8);
  return true;
}

// Measured against oneDNN 3.2 and the other loops (docs/measurements.md).
bool IsFaster(const GemmShape& s, const OperandSource& right) {
  constexpr int64_t kManyThreads = 9;
  const bool many_threads = ThreadPool::Global().threads() >= kManyThreads;
  if (s.a_type == Element::kF32) {
    // Sapphire Rapids is as fast in vectors, or faster, once two threads share a core.
    static const bool generation = MissingCpuFeatures("avx10.1").empty();
    // An element that is packed, in parts, costs as much as so many that are multiplied.
    constexpr int64_t kPacking = 96, kLeastDepth = 32;
    return generation && !many_threads && s.k >= kLeastDepth && s.m * s.n >= kPacking * (s.m + s.n);
  }
  constexpr int64_t kFewRows = 8, kFewColumns = 32, kNarrow = 192, kShort = 8, kLittle = 32 * 32 * 32;
  if (s.m < kFewRows || s.n < kFewColumns || s.k < kShort || s.m * s.n < kLittle / s.k) return false;
  // A kept right side that few rows read once comes a fifth faster in oneDNN.
  if (s.m <= kTilePanel && right.kind != OperandSource::kComputed && PackedForms::Enabled() && OneDnn::Get())
    return false;
  // Many threads that share a packed right side are slower than oneDNN's, by a tenth to a third.
  if (s.m > kFreshRows && many_threads && OneDnn::Get()) return false;
  return s.n >= kNarrow || s.m <= 8 * s.n;  // else too little is made of the packed rows
}

#endif

}  // namespace

std::unique_ptr<Prepared> TileGemm([[maybe_unused]] const GemmShape& s, [[maybe_unused]] const OperandSource& right,
                                   [[maybe_unused]] const EpilogueCall& epilogue,
                                   [[maybe_unused]] const std::function<std::unique_ptr<Prepared>()>& otherwise) {
#if defined(FERRULE_TILES)
  TileType type;
  if (s.batch != 1 || s.add || !TypeOf(s, &type) || std::min({s.m, s.n, s.k}) < 1 || !MayUseTiles()) return nullptr;
  const char* text = std::getenv("FERRULE_GEMM");
  const std::string wish = text ? text : "auto";
  if (wish != "tiles" && (wish != "auto" || !IsFaster(s, right))) return nullptr;
  auto tiles = std::make_unique<Tiles>(s, type, right, epilogue);
  if (!tiles->Make()) return nullptr;
  if (type == kTileF32) tiles->Otherwise(otherwise());
  return tiles;
#endif
  return nullptr;
}

}  // namespace ferrule

// Convolutions with features innermost, as products of windows with the kernel as a matrix, without copying windows:
// each row of a tile has an address in the image, from where the elements of a window lie in pieces, one for each of
// its rows (a row's pixels and their features follow each other). Some rows of an image are copied at a time, with the
// padding around them, so that every window has the same pieces.
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "aligned_scratch.h"
#include "conv.h"
#include "gemm_blocked.h"
#include "packed.h"
#include "program.h"
#include "thread_pool.h"

namespace ferrule {
namespace {

// One output position in a dimension that there is none of.
constexpr ConvWindow kNoDimension = {1, 1, 1, 1, 0, 0, 1, 1, false, 0, 0, 0};

template <class T>
class Windows : public Prepared {
 public:
  Windows(const ConvShape& shape, const EpilogueCall& epilogue)
      : s_(shape),
        epilogue_(epilogue),
        x_(s_.windows.back()),
        y_(s_.windows.size() > 1 ? s_.windows[s_.windows.size() - 2] : kNoDimension),
        features_(s_.kernel_features),
        outputs_(s_.group_outputs()) {
    for (size_t d = 0; d + 2 < s_.windows.size(); ++d) {
      outer_.push_back(s_.windows[d]);
      outer_taps_ *= s_.windows[d].kernel;
      outer_positions_ *= s_.windows[d].output;
    }
    images_ = s_.output_batch * outer_positions_;
    columns_ = DivideUp(x_.output, DivideUp(x_.output, kMostPositions));
    width_ = Reach(x_, columns_) * features_;
    depth_ = outer_taps_ * y_.kernel * x_.kernel * features_;
    panels_ = DivideUp(outputs_, FloatKernels<T>().columns);
    if (s_.kernel_source.kind == OperandSource::kComputed || !PackedForms::Enabled()) return;
    key_ = "windows " + std::string(ChosenKernels().isa);
    for (int64_t part : {features_, outputs_, s_.groups(), s_.kernel_input_stride, s_.kernel_output_stride,
                         static_cast<int64_t>(sizeof(T))}) {
      key_ += " " + std::to_string(part);
    }
    for (const ConvWindow& w : s_.windows) {
      for (int64_t part : {w.kernel, w.kernel_stride, int64_t{w.reversed}}) key_ += " " + std::to_string(part);
    }
  }

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    const int64_t bytes = Bytes(s_.groups() * panels_ * depth_ * FloatKernels<T>().columns);
    PackedForms* forms = key_.empty() || !context.forms ? nullptr : context.forms(context.forms_self, s_.kernel_source);
    auto pack = [&](void* to) { Pack(static_cast<const T*>(operands[1]), static_cast<T*>(to), context.pool); };
    const Ref<Storage> kept = forms ? forms->Get(key_, bytes, pack) : nullptr;
    void* panels = kept ? kept->data() : context.allocate(context.allocate_self, bytes);
    if (!panels) return OutOfMemory("no memory for a convolution's kernel, " + std::to_string(bytes) + " bytes");
    if (!kept) pack(panels);
    const EpilogueRun run(epilogue_, operands, results);
    Multiply(static_cast<const T*>(operands[0]), static_cast<const T*>(panels),
             static_cast<T*>(results[epilogue_.home()]), run.get(), context.pool);
    return Status();
  }

 private:
  static constexpr int64_t kDeep = 768;              // of a panel at once, which comes from near caches for each tile
  static constexpr int64_t kBlockBytes = 700 << 10;  // of the rows that a task copies; a chunk needs part of them
  static constexpr int64_t kMostPositions = 512;     // of a task
  static constexpr int64_t kShallow = 256;           // sums of so few terms

  static int64_t Bytes(int64_t count) { return count * static_cast<int64_t>(sizeof(T)); }

  // So many elements of a padded dimension are read for so many positions.
  static int64_t Reach(const ConvWindow& w, int64_t positions) {
    return (positions - 1) * w.stride + (w.kernel - 1) * w.kernel_dilation + 1;
  }

  // What a task computes: all rows of some images, some rows of one, or `columns_` positions of a long one.
  struct Unit {
    int64_t images, rows;  // of the result
  };
  // A part of the sums: pieces of windows, whose lengths together are `depth`.
  struct Chunk {
    std::vector<int64_t> offsets, lengths;
    int64_t begin, depth;
  };

  // The unit that leaves least to do in vain: rows of tiles behind the last position, rows of the image that two units
  // read, threads that wait for the last one.
  Unit ChooseUnit(int64_t threads) const {
    Unit best = {1, 1};
    // Short sums take hardly longer than what finishes them, which goes over memory best where rows are whole.
    const int64_t whole = kEpilogueBytes / Bytes(outputs_);
    const int64_t most = epilogue_ && depth_ <= kShallow ? std::min(kMostPositions, whole) : kMostPositions;
    if (columns_ < x_.output) return best;
    double least = 0;
    auto consider = [&](Unit unit) {
      const int64_t read = Reach(y_, unit.rows) * unit.images, positions = unit.images * unit.rows * x_.output;
      const bool first = least == 0;
      if (!first && (Bytes(outer_taps_ * read * width_) > kBlockBytes || positions > most)) return false;
      const int64_t tiles = DivideUp(positions, FloatKernels<T>().rows) * FloatKernels<T>().rows;
      const int64_t units = DivideUp(images_, unit.images) * DivideUp(y_.output, unit.rows) * s_.groups();
      const double copied = static_cast<double>(outer_taps_ * read * width_) * kCopied;
      const double work = static_cast<double>(tiles * depth_ * panels_ * FloatKernels<T>().columns) + copied +
                          static_cast<double>(depth_ * panels_ * FloatKernels<T>().columns) * kFetched;
      const double time = work * static_cast<double>(DivideUp(units, threads));
      if (first || time < least) best = unit, least = time;
      return true;
    };
    int64_t rows = 1, images = 2;
    while (rows <= y_.output && consider({1, rows})) ++rows;
    while (images <= images_ && rows > y_.output && consider({images, y_.output})) ++images;
    return best;
  }
  // In multiply-adds: to copy an element, and to fetch one of a panel.
  static constexpr double kCopied = 8, kFetched = 4;

  // `pitch`: rows of an image that are copied.
  std::vector<Chunk> Chunks(int64_t pitch) const {
    const int64_t count = DivideUp(depth_, kDeep);
    std::vector<Chunk> chunks(static_cast<size_t>(count));
    const bool together = x_.kernel_dilation == 1;  // a row of a window is one piece, else each of its pixels
    const int64_t taps = together ? 1 : x_.kernel, length = together ? x_.kernel * features_ : features_;
    for (int64_t c = 0, at = 0; c < count; ++c) {
      Chunk& chunk = chunks[static_cast<size_t>(c)];
      chunk.begin = at;
      const int64_t end = c + 1 == count ? depth_ : RoundUp(depth_ * (c + 1) / count, 4);
      while (at < end) {
        const int64_t piece = at / length, within = at % length, part = std::min(length - within, end - at);
        const int64_t x = piece % taps, y = piece / taps % y_.kernel, outer = piece / taps / y_.kernel;
        chunk.offsets.push_back((outer * pitch + y * y_.kernel_dilation) * width_ + x * x_.kernel_dilation * features_ +
                                within);
        chunk.lengths.push_back(part);
        at += part;
      }
      chunk.depth = at - chunk.begin;
    }
    return chunks;
  }

  // panels[group][panel][depth][column]; a window's elements in the order of the image's memory.
  void Pack(const T* kernel, T* panels, ThreadPool* pool) const {
    const auto& kernels = FloatKernels<T>();
    const int64_t taps = depth_ / features_, columns = kernels.columns, each = features_ * columns;
    pool->For(s_.groups() * panels_ * taps, std::max<int64_t>(1, 16384 / each), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t panel = i / taps % panels_, group = i / taps / panels_, first = panel * columns;
        int64_t from = (group * outputs_ + first) * s_.kernel_output_stride, rest = i % taps;
        for (size_t d = s_.windows.size(); d-- > 0; rest /= s_.windows[d].kernel) {
          const ConvWindow& w = s_.windows[d];
          const int64_t t = rest % w.kernel;
          from += (w.reversed ? w.kernel - 1 - t : t) * w.kernel_stride;
        }
        kernels.pack_columns(kernel + from, s_.kernel_output_stride, s_.kernel_input_stride,
                             std::min(columns, outputs_ - first), features_, panels + i * each);
      }
    });
  }

  void Multiply(const T* input, const T* panels, T* output, const Epilogue* epilogue, ThreadPool* pool) const {
    const Unit unit = ChooseUnit(pool->threads());
    const int64_t pitch = Reach(y_, unit.rows), image = outer_taps_ * pitch * width_;
    const int64_t blocks = DivideUp(y_.output, unit.rows), across = DivideUp(x_.output, columns_);
    const int64_t units = DivideUp(images_, unit.images) * blocks * across;
    const std::vector<Chunk> chunks = Chunks(pitch);
    // Where there are few, several tasks share the columns of one.
    const int64_t unit_panels = epilogue ? PanelsOfEpilogue() : 1, column_units = DivideUp(panels_, unit_panels);
    const int64_t parts = std::min(column_units, DivideUp(2 * pool->threads(), units * s_.groups()));
    pool->For(units * s_.groups() * parts, 1, [&](int64_t begin, int64_t end) {
      static thread_local AlignedScratch rows_scratch, windows_scratch;
      int64_t copied = -1;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t part = i % parts, number = i / parts, group = number % s_.groups();
        const int64_t place = number / s_.groups(), first_column = place % across * columns_;
        const int64_t first_row = place / across % blocks * unit.rows,
                      first_image = place / across / blocks * unit.images;
        const int64_t images = std::min(unit.images, images_ - first_image);
        const int64_t rows = std::min(unit.rows, y_.output - first_row);
        const int64_t columns = std::min(columns_, x_.output - first_column), positions = images * rows * columns;
        const int64_t most = RoundUp(positions, kMostRows);
        T* copy = rows_scratch.Get<T>(unit.images * image);
        const T** windows = windows_scratch.Get<const T*>(most);
        if (copied != number) {
          const T** next = windows;
          for (int64_t n = 0; n < images; ++n) {
            const Corner corner = {first_image + n, group, first_row, first_column};
            Copy(input, corner, Reach(y_, rows), pitch, copy + n * image);
            for (int64_t r = 0; r < rows; ++r) {
              const T* row = copy + n * image + r * y_.stride * width_;
              for (int64_t x = 0; x < columns; ++x) *next++ = row + x * x_.stride * features_;
            }
          }
          std::fill(next, windows + most, windows[positions - 1]);
          copied = number;
        }
        const int64_t first = (first_image * y_.output + first_row) * x_.output + first_column;
        T* to = output + first * s_.output_features + group * outputs_;
        const int64_t width = FloatKernels<T>().columns, end_unit = column_units * (part + 1) / parts;
        const int64_t end_panel = std::min(panels_, end_unit * unit_panels);
        // Units of columns that are finished together, as many as stay in a near cache.
        const int64_t together = std::max<int64_t>(1, kEpilogueBytes / Bytes(positions * unit_panels * width));
        int64_t done = column_units * part / parts * unit_panels;
        for (int64_t p = done; p < end_panel; ++p) {
          Columns(chunks, windows, positions, panels + (group * panels_ + p) * depth_ * width,
                  std::min<int64_t>(width, outputs_ - p * width), to + p * width);
          if (!epilogue || (p + 1 - done < together * unit_panels && p + 1 < end_panel)) continue;
          const int64_t end = std::min(outputs_, (p + 1) * width);
          (*epilogue)(first, positions, group* outputs_ + done * width, end - done * width);
          done = p + 1;
        }
      }
    });
  }

  // So many panels are whole units of the epilogue's columns.
  static int64_t PanelsOfEpilogue() {
    return std::lcm(kEpilogueUnit, FloatKernels<T>().columns) / FloatKernels<T>().columns;
  }

  // The results of a panel at some positions.
  void Columns(const std::vector<Chunk>& chunks, const T* const* windows, int64_t positions, const T* panel,
               int64_t columns, T* to) const {
    const auto& kernels = FloatKernels<T>();
    const int64_t tile_rows = kernels.rows;
    alignas(64) std::array<T, kMostRows * kMostColumns> spare;
    for (const Chunk& chunk : chunks) {
      WindowSums<T> sums = {};
      sums.pieces = static_cast<int64_t>(chunk.offsets.size());
      sums.offsets = chunk.offsets.data(), sums.lengths = chunk.lengths.data();
      sums.panel = panel + chunk.begin * kernels.columns;
      const bool accumulate = chunk.begin > 0;
      for (int64_t p = 0; p < positions; p += tile_rows) {
        const int64_t rows = std::min(tile_rows, positions - p);
        const bool whole = rows == tile_rows && columns == kernels.columns;
        T* home = to + p * s_.output_features;
        sums.windows = windows + p;
        sums.to = whole ? home : spare.data(), sums.to_row = whole ? s_.output_features : kernels.columns;
        sums.accumulate = whole && accumulate;
        kernels.windows(sums);
        if (!whole) {
          kernels.put_tile(spare.data(), kernels.columns, rows, columns, accumulate, home, s_.output_features);
        }
      }
    }
  }

  // Where results begin.
  struct Corner {
    int64_t image, group, row, column;
  };

  // The rows of an image that some rows of its result read, of one group's features, for each tap of the outer
  // dimensions; zeros around them.
  void Copy(const T* input, const Corner& corner, int64_t rows, int64_t pitch, T* to) const {
    const int64_t pad = x_.pad_low - corner.column * x_.stride, pixels = width_ / features_;
    const int64_t begin = std::clamp<int64_t>(pad, 0, pixels);
    const int64_t end = std::clamp<int64_t>(x_.input + pad, begin, pixels);
    for (int64_t outer = 0; outer < outer_taps_; ++outer, to += pitch * width_) {
      int64_t from = corner.group * s_.input_group_stride() + corner.image / outer_positions_ * s_.input_batch_stride;
      bool inside = true;
      int64_t tap = outer, position = corner.image % outer_positions_;
      for (size_t d = outer_.size(); d-- > 0;) {
        const ConvWindow& w = outer_[d];
        const int64_t z = position % w.output * w.stride + tap % w.kernel * w.kernel_dilation - w.pad_low;
        inside = inside && z >= 0 && z < w.input;
        from += z * w.input_stride;
        position /= w.output, tap /= w.kernel;
      }
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t y = corner.row * y_.stride + r - y_.pad_low;
        T* row = to + r * width_;
        if (!inside || y < 0 || y >= y_.input || begin == end) {
          std::fill_n(row, width_, T(0));
          continue;
        }
        std::fill(row, row + begin * features_, T(0));
        CopyPixels(input + from + y * y_.input_stride + (begin - pad) * x_.input_stride, end - begin,
                   row + begin * features_);
        std::fill(row + end * features_, row + width_, T(0));
      }
    }
  }

  void CopyPixels(const T* from, int64_t pixels, T* to) const {
    if (x_.input_stride == features_) {
      std::memcpy(to, from, static_cast<size_t>(Bytes(pixels * features_)));
      return;
    }
    constexpr size_t kBytes = 16;
    constexpr int64_t kPart = kBytes / sizeof(T);
    for (int64_t p = 0; p < pixels; ++p, from += x_.input_stride, to += features_) {
      int64_t f = 0;
      for (; f + kPart <= features_; f += kPart) std::memcpy(to + f, from + f, kBytes);
      for (; f < features_; ++f) to[f] = from[f];
    }
  }

  static constexpr int64_t kMostRows = 12, kMostColumns = 64;  // of a tile

  const ConvShape s_;
  const EpilogueCall epilogue_;
  const ConvWindow x_, y_;  // the innermost dimensions
  const int64_t features_, outputs_;
  std::vector<ConvWindow> outer_;
  std::string key_;  // of the packed kernel; empty when none is kept
  int64_t outer_taps_ = 1, outer_positions_ = 1;
  int64_t images_, columns_, width_, depth_,
      panels_;  // the width: elements of a padded row, or of a part of a long one
};

}  // namespace

bool WindowsSuit(const ConvShape& s) {
  // Of short pieces much of the time goes into beginning them, of few positions into the kernel's memory; columns that
  // a panel has in vain take as long as others.
  constexpr int64_t kPiece = 32, kPositions = 128;
  if (s.windows.empty()) return false;
  const ConvWindow& x = s.windows.back();
  int64_t positions = s.output_batch;
  for (const ConvWindow& w : s.windows) positions *= w.output;
  const int64_t columns = s.input_type == Element::kF64 ? ChosenKernels().f64.columns : ChosenKernels().f32.columns;
  const int64_t outputs = s.group_outputs();
  return (x.kernel_dilation == 1 ? x.kernel : 1) * s.kernel_features >= kPiece && positions >= kPositions &&
         4 * outputs >= 3 * RoundUp(outputs, columns);
}

std::unique_ptr<Prepared> WindowsConv(const ConvShape& s, const EpilogueCall& epilogue, bool* finishes) {
  if (s.windows.empty() || s.batch_groups != 1 || s.input_type != s.kernel_type || s.input_type != s.output_type) {
    return nullptr;
  }
  if (!IsDense(s)) return nullptr;
  if (s.kernel_features > 1 && s.input_feature_stride != 1) return nullptr;
  for (const ConvWindow& w : s.windows) {
    if (w.input_dilation != 1) return nullptr;
  }
  // Groups begin anywhere among an epilogue's columns.
  const bool finish = epilogue && (s.groups() == 1 || s.group_outputs() % kEpilogueUnit == 0);
  const EpilogueCall own = finish ? epilogue : EpilogueCall();
  std::unique_ptr<Prepared> found;
  if (s.input_type == Element::kF32 && ChosenKernels().f32.windows) found = std::make_unique<Windows<float>>(s, own);
  if (s.input_type == Element::kF64 && ChosenKernels().f64.windows) found = std::make_unique<Windows<double>>(s, own);
  if (found && finish) *finishes = true;
  return found;
}

}  // namespace ferrule

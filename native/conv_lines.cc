// Convolutions with few features: one, or so few that a vector of them would be mostly empty. The vector goes along a
// spatial dimension instead. Each feature of the input, and each of the kernel's positions in the other spatial
// dimensions, is a line; the sums of a stretch of the result are those of shifted lines times single weights. Complex
// elements are two features each.
#include "conv_lines.h"

#include <algorithm>
#include <complex>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "aligned_scratch.h"
#include "conv.h"
#include "conv_taps.h"
#include "cpu_features.h"
#include "program.h"
#include "thread_pool.h"

#pragma GCC optimize("O3")

namespace ferrule {

const LineKernels& ChosenLines() {
#if defined(__x86_64__)
  if (ChosenIsa() == Isa::kAvx512) return kAvx512Lines;
  if (ChosenIsa() == Isa::kAvx2) return kAvx2Lines;
#endif
  return kBaselineLines;
}

namespace {

// The dimension that lines go along: the one with the longest lines in the result, up to what fills a few vectors; of
// equals the one whose neighbours are nearest.
size_t LineOf(const ConvShape& s) {
  size_t best = 0;
  for (size_t d = 1; d < s.windows.size(); ++d) {
    const ConvWindow &w = s.windows[d], &b = s.windows[best];
    int64_t length = std::min<int64_t>(w.output, 64), other = std::min<int64_t>(b.output, 64);
    if (length > other || (length == other && w.output_stride < b.output_stride)) best = d;
  }
  return best;
}

template <class T, bool kComplex>
class Lines : public Prepared {
 public:
  explicit Lines(const ConvShape& shape) : s_(shape), w_(s_.windows[LineOf(s_)]) {
    for (size_t d = 0; d < s_.windows.size(); ++d) {
      if (d == LineOf(shape)) continue;
      outer_.push_back(s_.windows[d]);
      outer_taps_ *= s_.windows[d].kernel;
      outer_positions_ *= s_.windows[d].output;
    }
    for (int64_t outer = 0; outer < outer_taps_; ++outer) {
      int64_t rest = outer;
      outer_distances_.resize(outer_distances_.size() + outer_.size());
      for (size_t d = outer_.size(), at = outer_distances_.size(); d-- > 0;) {
        outer_distances_[--at] = rest % outer_[d].kernel * outer_[d].kernel_dilation - outer_[d].pad_low;
        rest /= outer_[d].kernel;
      }
    }
    inputs_ = s_.kernel_features * kParts, outputs_ = s_.group_outputs() * kParts;
    at_once_ = outputs_ == 1 ? 1 : outputs_ == 2 ? 2 : 4;
    sets_ = DivideUp(outputs_, at_once_);
    lines_ = inputs_ * outer_taps_;
    // A stretch of the result: its sums and the lines that they need stay in the nearest caches.
    stretch_ = std::min<int64_t>(w_.output, kStretch / DivideUp(outputs_, 4));
    stretches_ = DivideUp(w_.output, stretch_);
    taps_ = std::min<int64_t>(w_.kernel, kTaps);
    // With a stride, the elements of a line that one tap reads lie side by side: those of each remainder are a line of
    // their own.
    phases_ = std::min<int64_t>(w_.stride, (taps_ - 1) * w_.kernel_dilation + 1);
    phase_length_ = Lanes(stretch_ + (taps_ - 1) * w_.kernel_dilation / w_.stride + 1 + kLineLanes);
    for (int64_t t = 0; t < taps_; ++t) {
      int64_t distance = t * w_.kernel_dilation;
      at_.push_back(distance % w_.stride * phase_length_ + distance / w_.stride);
    }
    lines_at_once_ = std::clamp<int64_t>(kLinesBytes / Bytes(phases_ * phase_length_), 1, lines_);
    chunks_ = DivideUp(lines_, lines_at_once_) * DivideUp(w_.kernel, taps_);
    units_ = s_.output_batch * s_.groups() * outer_positions_ * stretches_;
  }

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    int64_t weights_bytes = Bytes(s_.groups() * sets_ * lines_ * w_.kernel * at_once_);
    T* weights = static_cast<T*>(context.allocate(context.allocate_self, weights_bytes));
    if (!weights) return NoMemory(weights_bytes);
    ArrangeWeights(operands[1], weights, *context.pool);
    // Where there are few stretches, threads share the lines and taps of one, too.
    double work = static_cast<double>(stretch_) * sets_ * at_once_ * lines_ * w_.kernel;  // of a unit
    int64_t parts = 1;
    int64_t wanted = 2 * context.pool->threads();
    if (units_ < wanted && work > kWorthSharing) parts = std::min(chunks_, DivideUp(wanted, units_));
    int64_t sums_row = Lanes(stretch_ + kLineLanes), unit_sums = sets_ * at_once_ * sums_row;
    T* partial = nullptr;
    if (parts > 1) {
      partial = static_cast<T*>(context.allocate(context.allocate_self, Bytes(units_ * parts * unit_sums)));
      if (!partial) return NoMemory(Bytes(units_ * parts * unit_sums));
    }
    int64_t grain = std::max<int64_t>(1, static_cast<int64_t>(kWorthSharing / std::max(1.0, work / parts)));
    context.pool->For(units_ * parts, grain, [&](int64_t begin, int64_t end) {
      static thread_local AlignedScratch sums_scratch;
      for (int64_t i = begin; i < end; ++i) {
        int64_t unit = i / parts, part = i % parts;
        T* sums = partial ? partial + i * unit_sums : sums_scratch.Get<T>(unit_sums);
        std::memset(sums, 0, static_cast<size_t>(Bytes(unit_sums)));
        Sum(unit, chunks_ * part / parts, chunks_ * (part + 1) / parts, operands[0], weights, sums, sums_row);
        if (!partial) Store(unit, sums, sums_row, results[0]);
      }
    });
    for (int64_t unit = 0; partial && unit < units_; ++unit) {
      T* sums = partial + unit * parts * unit_sums;
      for (int64_t part = 1; part < parts; ++part) {
        for (int64_t i = 0; i < unit_sums; ++i) sums[i] += sums[part * unit_sums + i];
      }
      Store(unit, sums, sums_row, results[0]);
    }
    return Status();
  }

 private:
  static constexpr int kParts = kComplex ? 2 : 1;
  using Stored = std::conditional_t<kComplex, std::complex<T>, T>;
  static constexpr int64_t kStretch = 4096 / sizeof(T), kTaps = 2048 / sizeof(T), kLinesBytes = 64 << 10;
  static constexpr double kWorthSharing = 1 << 18;  // multiply-adds

  struct Unit {
    int64_t batch, group, first, count;    // of the stretch
    int64_t from;                          // where its part of the input begins
    int64_t position[ConvTaps::kMaxRank];  // in the outer dimensions
  };

  static int64_t Bytes(int64_t count) { return count * static_cast<int64_t>(sizeof(T)); }
  static int64_t Lanes(int64_t count) { return RoundUp(count, kLineLanes); }  // whole vectors
  static Status NoMemory(int64_t bytes) {
    return OutOfMemory("no memory for a convolution's sums, " + std::to_string(bytes) + " bytes");
  }

  Unit UnitOf(int64_t number) const {
    Unit unit;
    unit.first = number % stretches_ * stretch_;
    unit.count = std::min(stretch_, w_.output - unit.first);
    number /= stretches_;
    for (size_t d = outer_.size(); d-- > 0;) {
      unit.position[d] = number % outer_[d].output;
      number /= outer_[d].output;
    }
    unit.group = number % s_.groups();
    unit.batch = number / s_.groups();
    unit.from = unit.group * s_.input_group_stride() + unit.batch * s_.input_batch_stride;
    return unit;
  }

  // weights[group][set of features][line][tap][feature]; lines are input features, then the taps of the outer
  // dimensions, the last one fastest.
  void ArrangeWeights(const void* kernel, T* to, ThreadPool& pool) const {
    int64_t size = SizeOf(s_.kernel_type), each = w_.kernel * at_once_;
    pool.For(s_.groups() * sets_ * lines_, std::max<int64_t>(1, 16384 / each), [&](int64_t begin, int64_t end) {
      static thread_local AlignedScratch scratch;
      Stored* row = scratch.Get<Stored>(w_.kernel);
      for (int64_t i = begin; i < end; ++i) {
        int64_t line = i % lines_, set = i / lines_ % sets_, group = i / lines_ / sets_;
        int64_t input = line / outer_taps_, tap = line % outer_taps_, from = input / kParts * s_.kernel_input_stride;
        for (size_t d = outer_.size(); d-- > 0;) {
          int64_t t = tap % outer_[d].kernel;
          from += (outer_[d].reversed ? outer_[d].kernel - 1 - t : t) * outer_[d].kernel_stride;
          tap /= outer_[d].kernel;
        }
        T* weights = to + i * each;
        for (int64_t f = 0; f < at_once_; ++f) {
          int64_t output = set * at_once_ + f;
          if (output >= outputs_) {
            for (int64_t t = 0; t < w_.kernel; ++t) weights[t * at_once_ + f] = T(0);
            continue;
          }
          int64_t feature = group * s_.group_outputs() + output / kParts;
          LoadElements(s_.kernel_type,
                       static_cast<const char*>(kernel) + (from + feature * s_.kernel_output_stride) * size,
                       w_.kernel_stride, w_.kernel, row);
          for (int64_t t = 0; t < w_.kernel; ++t) {
            weights[t * at_once_ + f] =
                Weight(row[w_.reversed ? w_.kernel - 1 - t : t], input % kParts, output % kParts);
          }
        }
      }
    });
  }

  // What a part of an input's element adds to a part of the result's, for each unit of it.
  static T Weight(Stored x, int64_t input_part, int64_t output_part) {
    if constexpr (kComplex) {
      if (input_part == output_part) return x.real();
      return output_part == 1 ? x.imag() : -x.imag();
    } else {
      return x;
    }
  }

  void Sum(int64_t number, int64_t chunk_begin, int64_t chunk_end, const void* input, const T* weights, T* sums,
           int64_t sums_row) const {
    static thread_local AlignedScratch scratch, pointers;
    Unit unit = UnitOf(number);
    int64_t line_length = phases_ * phase_length_, chunks_of_lines = DivideUp(lines_, lines_at_once_);
    // One line of zeros, the lines of a chunk, and room for what becomes parts and phases.
    T* zeros = scratch.Get<T>(line_length * (lines_at_once_ + 1) + Lanes(kParts * phase_length_ * w_.stride));
    T *room = zeros + line_length, *spare = room + lines_at_once_ * line_length;
    std::memset(zeros, 0, static_cast<size_t>(Bytes(line_length)));
    const T** lines = pointers.Get<const T*>(lines_at_once_);
    const LineFunctions<T>& functions = LineFunctionsOf<T>();
    LineFunction<T> function = at_once_ == 1 ? functions.one : at_once_ == 2 ? functions.two : functions.four;
    for (int64_t chunk = chunk_begin; chunk < chunk_end; ++chunk) {
      int64_t line = chunk % chunks_of_lines * lines_at_once_, tap = chunk / chunks_of_lines * taps_;
      int64_t count = std::min(lines_at_once_, lines_ - line), taps = std::min(taps_, w_.kernel - tap);
      for (int64_t i = 0; i < count; ++i) {
        lines[i] =
            Line(unit, line + i, tap, taps, static_cast<const char*>(input), zeros, room + i * line_length, spare);
      }
      for (int64_t set = 0; set < sets_; ++set) {
        int64_t first = ((unit.group * sets_ + set) * lines_ + line) * w_.kernel + tap;
        function({lines, count, at_.data(), taps, weights + first * at_once_, w_.kernel * at_once_,
                  sums + set * at_once_ * sums_row, sums_row, unit.count});
      }
    }
  }

  // What the taps of a unit read of a line: in the input itself if it can be read there, else in `room`.
  const T* Line(const Unit& unit, int64_t line, int64_t tap, int64_t taps, const char* input, const T* zeros, T* room,
                T* spare) const {
    int64_t size = SizeOf(s_.input_type), input_feature = line / outer_taps_, part = input_feature % kParts;
    int64_t from = unit.from + input_feature / kParts * s_.input_feature_stride;
    const int64_t* distances = outer_distances_.data() + line % outer_taps_ * static_cast<int64_t>(outer_.size());
    for (size_t d = 0; d < outer_.size(); ++d) {
      const ConvWindow& w = outer_[d];
      int64_t x = unit.position[d] * w.stride + distances[d];
      if (w.input_dilation > 1) {
        if (x % w.input_dilation != 0) return zeros;
        x /= w.input_dilation;
      }
      if (x < 0 || x >= w.input) return zeros;
      from += x * w.input_stride;
    }
    // Positions [begin, begin + length) of the line, as dilated and padded.
    int64_t begin = unit.first * w_.stride + tap * w_.kernel_dilation - w_.pad_low;
    int64_t length = (unit.count - 1) * w_.stride + (taps - 1) * w_.kernel_dilation + 1;
    if constexpr (!kComplex) {
      if (w_.stride == 1 && w_.input_dilation == 1 && (w_.input_stride == 1 || w_.input == 1) &&
          IsDirect<T>(s_.input_type) && begin >= 0 && begin + length <= w_.input &&
          from + begin + length + kLineLanes <= s_.input_elements) {
        return reinterpret_cast<const T*>(input) + from + begin;
      }
    }
    int64_t first = begin <= 0 ? 0 : DivideUp(begin, w_.input_dilation);
    int64_t last =
        begin + length <= 0 ? 0 : std::min(DivideUp(begin + length, w_.input_dilation), w_.input);  // past it
    if (first >= last) return zeros;
    if constexpr (!kComplex) {
      // Every phase is read on its own, with the padding that it has.
      if (w_.stride > 1 && w_.input_dilation == 1) {
        for (int64_t p = 0; p < phases_; ++p) {
          T* to = room + p * phase_length_;
          int64_t skipped = begin + p < 0 ? DivideUp(-(begin + p), w_.stride) : 0, x = begin + p + skipped * w_.stride;
          int64_t wanted = DivideUp(length - p, w_.stride), there = DivideUp(w_.input - x, w_.stride);
          skipped = std::min(skipped, wanted), there = std::clamp<int64_t>(there, 0, wanted - skipped);
          std::fill_n(to, skipped, T(0));
          LoadElements(s_.input_type, input + (from + x * w_.input_stride) * size, w_.input_stride * w_.stride, there,
                       to + skipped);
          std::fill(to + skipped + there, to + wanted, T(0));
        }
        return room;
      }
    }
    T* dense = w_.stride == 1 && w_.input_dilation == 1 && !kComplex ? room - begin + first : spare;
    const char* source = input + (from + first * w_.input_stride) * size;
    if (IsDirect<T>(s_.input_type) && w_.input_stride == 1) {
      std::memcpy(dense, source, static_cast<size_t>(Bytes(last - first)));
    } else {
      LoadElements(s_.input_type, source, w_.input_stride, last - first, reinterpret_cast<Stored*>(dense));
    }
    if (dense != spare) {
      std::fill_n(room, dense - room, T(0));
      std::fill(dense + (last - first), room + length, T(0));
      return room;
    }
    std::fill_n(room, phases_ * phase_length_, T(0));
    for (int64_t i = first; i < last; ++i) {
      int64_t distance = i * w_.input_dilation - begin;
      if (distance % w_.stride >= phases_) continue;
      room[distance % w_.stride * phase_length_ + distance / w_.stride] = dense[(i - first) * kParts + part];
    }
    return room;
  }

  void Store(int64_t number, const T* sums, int64_t sums_row, void* output) const {
    Unit unit = UnitOf(number);
    int64_t size = SizeOf(s_.output_type);
    int64_t to = unit.batch * s_.output_batch_stride + unit.first * w_.output_stride;
    for (size_t d = 0; d < outer_.size(); ++d) to += unit.position[d] * outer_[d].output_stride;
    static thread_local AlignedScratch scratch;
    for (int64_t f = 0; f < s_.group_outputs(); ++f) {
      char* target =
          static_cast<char*>(output) + (to + (unit.group * s_.group_outputs() + f) * s_.output_feature_stride) * size;
      const T* row = sums + f * kParts * sums_row;
      if constexpr (kComplex) {
        Stored* whole = scratch.Get<Stored>(unit.count);
        for (int64_t i = 0; i < unit.count; ++i) whole[i] = {row[i], row[sums_row + i]};
        StoreElements(s_.output_type, target, w_.output_stride, unit.count, whole);
      } else if (IsDirect<T>(s_.output_type) && w_.output_stride == 1) {
        std::memcpy(target, row, static_cast<size_t>(Bytes(unit.count)));
      } else {
        StoreElements(s_.output_type, target, w_.output_stride, unit.count, row);
      }
    }
  }

  const ConvShape s_;
  const ConvWindow w_;             // lines go along it
  std::vector<ConvWindow> outer_;  // the other spatial dimensions
  std::vector<int64_t>
      outer_distances_;      // for each of their taps and dimensions: from a result's position to the input's
  std::vector<int64_t> at_;  // for each tap of a chunk: where in a line its elements begin
  int64_t outer_taps_ = 1, outer_positions_ = 1;
  int64_t inputs_, outputs_, at_once_, sets_;  // features of a group, in parts; results' features in a function's call
  int64_t lines_, lines_at_once_, stretch_, stretches_, taps_, phases_, phase_length_, chunks_, units_;
};

}  // namespace

bool LinesSuit(const ConvShape& s, bool library) {
  if (s.windows.empty()) return false;
  const ConvWindow& w = s.windows[LineOf(s)];
  int64_t inputs = s.kernel_features, outputs = s.group_outputs();
  double taps = 1;
  for (const ConvWindow& each : s.windows) taps *= static_cast<double>(each.kernel);
  bool dense = w.output_stride == 1 && w.input_stride == 1;  // nothing is gathered nor scattered
  bool plain = w.stride == 1 && w.input_dilation == 1;
  if (outputs > 8 || w.stride > 16 || w.input_dilation > 16) return false;
  // Results shorter than a vector, as the gradient of a kernel is.
  if (w.output < 16 && (inputs > 1 || outputs > 1)) return false;
  // What a stretch costs beside its sums has to be worth it.
  if (s.groups() > 1 && static_cast<double>(std::min<int64_t>(w.output, 1024)) * inputs * taps < 16384) return false;
  if (!library) return plain || w.kernel >= 16;
  if (!plain && w.kernel < 16) return false;
  return dense || (outputs == 1 && w.kernel >= 16);
}

std::unique_ptr<Prepared> LinesConv(const ConvShape& shape) {
  switch (shape.accumulator) {
    case Accumulator::kF32:
      return std::make_unique<Lines<float, false>>(shape);
    case Accumulator::kF64:
      return std::make_unique<Lines<double, false>>(shape);
    case Accumulator::kU32:
      return std::make_unique<Lines<uint32_t, false>>(shape);
    case Accumulator::kU64:
      return std::make_unique<Lines<uint64_t, false>>(shape);
    case Accumulator::kC64:
      return std::make_unique<Lines<float, true>>(shape);
    case Accumulator::kC128:
      return std::make_unique<Lines<double, true>>(shape);
  }
  return nullptr;
}

}  // namespace ferrule

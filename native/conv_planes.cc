// Depthwise convolutions of images with channels first: each channel is a plane of its own. A band of it is copied with
// its padding, and vectors go along its rows. With strides, the rows and columns of each remainder are a band of their
// own, with those taps that read them.
#include <algorithm>
#include <cstring>
#include <vector>

#include "aligned_scratch.h"
#include "conv.h"
#include "conv_lines.h"
#include "program.h"
#include "thread_pool.h"

#pragma GCC optimize("O3")

namespace ferrule {
namespace {

// Rows are short: a call for each copy would take longer than the copy.
template <class T>
inline void CopyRow(const T* from, int64_t count, T* to) {
  typedef T Vector __attribute__((vector_size(16), may_alias, aligned(alignof(T))));
  constexpr int64_t kLanes = 16 / sizeof(T);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    *reinterpret_cast<Vector*>(to + i) = *reinterpret_cast<const Vector*>(from + i);
  }
  for (; i < count; ++i) {
    to[i] = from[i];
    __asm__ volatile("" ::: "memory");  // not as a call
  }
}

// even[i] = from[2 * i], odd[i] = from[2 * i + 1]
template <class T>
inline void CopyHalves(const T* from, int64_t pairs, T* even, T* odd) {
  int64_t i = 0;
  if constexpr (sizeof(T) == 4) {
    typedef T Vector __attribute__((vector_size(16), may_alias, aligned(alignof(T))));
    for (; i + 4 <= pairs; i += 4) {
      const Vector a = *reinterpret_cast<const Vector*>(from + 2 * i);
      const Vector b = *reinterpret_cast<const Vector*>(from + 2 * i + 4);
      *reinterpret_cast<Vector*>(even + i) = __builtin_shufflevector(a, b, 0, 2, 4, 6);
      *reinterpret_cast<Vector*>(odd + i) = __builtin_shufflevector(a, b, 1, 3, 5, 7);
    }
  }
  for (; i < pairs; ++i) {
    even[i] = from[2 * i];
    odd[i] = from[2 * i + 1];
  }
}

template <class T>
class Planes : public Prepared {
 public:
  explicit Planes(const ConvShape& shape) : s_(shape), h_(s_.windows[0]), w_(s_.windows[1]) {
    // What vectors read past the end of a row is the next one's.
    pitch_ = w_.output + Taps(w_, 0) - 1;
    sums_pitch_ = w_.output + kLineLanes;
    phases_ = std::min(w_.stride, w_.kernel);
    const int64_t row = pitch_ * phases_ * std::min(h_.stride, h_.kernel) * static_cast<int64_t>(sizeof(T));
    const int64_t fit = kBandBytes / row - Taps(h_, 0) + 1;
    bands_ = DivideUp(h_.output, std::max(fit / kPlaneRows * kPlaneRows, kLeastRows));
    band_ = std::min(RoundUp(DivideUp(h_.output, bands_), kPlaneRows), h_.output);
    bands_ = DivideUp(h_.output, band_);
    rows_ = RoundUp(band_, kPlaneRows) + Taps(h_, 0) - 1;
    phase_length_ = rows_ * pitch_ + kLineLanes;
    for (int64_t p = 0; p < phases_; ++p) columns_.push_back(ColumnsOf(p));
  }

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    const int64_t work = band_ * pitch_ * h_.kernel * w_.kernel * s_.group_outputs();
    context.pool->For(s_.output_batch * s_.feature_groups * bands_, std::max<int64_t>(1, kWorthSharing / work),
                      [&](int64_t begin, int64_t end) {
                        T* band = Cleared();
                        for (int64_t i = begin; i < end; ++i) {
                          Band(band, i / bands_ / s_.feature_groups, i / bands_ % s_.feature_groups, i % bands_ * band_,
                               static_cast<const char*>(operands[0]), static_cast<const char*>(operands[1]),
                               static_cast<char*>(results[0]));
                        }
                      });
    return Status();
  }

 private:
  static constexpr int64_t kBandBytes = 16 << 10, kLeastRows = 8, kWorthSharing = 1 << 17;

  // How many taps read elements of this remainder.
  static int64_t Taps(const ConvWindow& w, int64_t phase) { return DivideUp(w.kernel - phase, w.stride); }

  // Room for a band, with zeros where padding is beside the image.
  T* Cleared() const {
    static thread_local AlignedScratch scratch;
    const int64_t count = std::min(h_.stride, h_.kernel) * phases_ * phase_length_;
    T* band = scratch.Get<T>(count);
    std::memset(band, 0, static_cast<size_t>(count) * sizeof(T));
    return band;
  }

  void Band(T* band, int64_t batch, int64_t group, int64_t first, const char* input, const char* kernel,
            char* output) const {
    static thread_local AlignedScratch sums_scratch, weights_scratch;
    const int64_t rows = std::min(band_, h_.output - first), down = std::min(h_.stride, h_.kernel);
    T* sums = sums_scratch.Get<T>(RoundUp(rows, kPlaneRows) * sums_pitch_);
    T* weights = weights_scratch.Get<T>(h_.kernel * w_.kernel + w_.kernel);
    const int64_t from = batch * s_.input_batch_stride + group * s_.input_feature_stride;
    for (int64_t p = 0; p < down; ++p) {
      T* phase = band + p * phases_ * phase_length_;
      for (int64_t y = 0; y < rows + Taps(h_, p) - 1; ++y) {
        Row(input, from, (first + y) * h_.stride + p - h_.pad_low, phase + y * pitch_);
      }
    }
    for (int64_t f = 0; f < s_.group_outputs(); ++f) {
      const int64_t feature = group * s_.group_outputs() + f;
      for (int64_t p = 0; p < down; ++p) {
        for (int64_t q = 0; q < phases_; ++q) {
          Weights(kernel, feature, p, q, weights, weights + h_.kernel * w_.kernel);
          PlaneFunctionOf<T>()({band + (p * phases_ + q) * phase_length_, pitch_, weights, Taps(h_, p), Taps(w_, q),
                                sums, sums_pitch_, rows, w_.output, p + q > 0});
        }
      }
      const int64_t to = batch * s_.output_batch_stride + feature * s_.output_feature_stride;
      for (int64_t y = 0; y < rows; ++y) {
        char* row = output + (to + (first + y) * h_.output_stride) * SizeOf(s_.output_type);
        if (IsDirect<T>(s_.output_type)) {
          CopyRow(sums + y * sums_pitch_, w_.output, reinterpret_cast<T*>(row));
        } else {
          StoreElements(s_.output_type, row, 1, w_.output, sums + y * sums_pitch_);
        }
      }
    }
  }

  // The columns of one remainder: so many of padding, and then so many of the image from `x` on.
  struct Columns {
    int64_t before, x, count;
  };

  Columns ColumnsOf(int64_t phase) const {
    const int64_t begin = phase - w_.pad_low;  // of the first one, which may be padding
    Columns columns;
    columns.before = begin < 0 ? std::min(pitch_, DivideUp(-begin, w_.stride)) : 0;
    columns.x = begin + columns.before * w_.stride;
    columns.count =
        columns.x < w_.input ? std::min(pitch_ - columns.before, DivideUp(w_.input - columns.x, w_.stride)) : 0;
    return columns;
  }

  // A row of the image for each remainder of its columns. What is padding beside it stays as it is.
  void Row(const char* input, int64_t from, int64_t y, T* to) const {
    if (y < 0 || y >= h_.input) {
      for (int64_t p = 0; p < phases_; ++p)
        std::memset(to + p * phase_length_, 0, static_cast<size_t>(pitch_) * sizeof(T));
      return;
    }
    from += y * h_.input_stride;
    const bool direct = IsDirect<T>(s_.input_type);
    if (direct && phases_ == 2 && w_.stride == 2) {
      // Pairs of neighbours, and what is left of each side.
      const T* source = reinterpret_cast<const T*>(input) + from;
      const Columns &a = columns_[0], &b = columns_[1], &first = a.x < b.x ? a : b, &second = a.x < b.x ? b : a;
      T *first_to = to + (a.x < b.x ? 0 : phase_length_), *second_to = to + (a.x < b.x ? phase_length_ : 0);
      const int64_t pairs = second.x == first.x + 1 ? std::min(first.count, second.count) : 0;
      CopyHalves(source + first.x, pairs, first_to + first.before, second_to + second.before);
      for (int64_t i = pairs; i < first.count; ++i) first_to[first.before + i] = source[first.x + 2 * i];
      for (int64_t i = pairs; i < second.count; ++i) second_to[second.before + i] = source[second.x + 2 * i];
      return;
    }
    for (int64_t p = 0; p < phases_; ++p, to += phase_length_) {
      const Columns& columns = columns_[static_cast<size_t>(p)];
      if (columns.count <= 0) continue;
      if (direct && w_.stride == 1) {
        CopyRow(reinterpret_cast<const T*>(input) + from + columns.x, columns.count, to + columns.before);
      } else {
        LoadElements(s_.input_type, input + (from + columns.x) * SizeOf(s_.input_type), w_.stride, columns.count,
                     to + columns.before);
      }
    }
  }

  // The taps of one remainder of rows and of columns; `row` has room for all of a row.
  void Weights(const char* kernel, int64_t feature, int64_t down, int64_t across, T* to, T* row) const {
    for (int64_t i = down; i < h_.kernel; i += h_.stride) {
      const int64_t y = h_.reversed ? h_.kernel - 1 - i : i;
      const int64_t from = feature * s_.kernel_output_stride + y * h_.kernel_stride;
      LoadElements(s_.kernel_type, kernel + from * SizeOf(s_.kernel_type), w_.kernel_stride, w_.kernel, row);
      if (w_.reversed) std::reverse(row, row + w_.kernel);
      for (int64_t j = across; j < w_.kernel; j += w_.stride) *to++ = row[j];
    }
  }

  const ConvShape s_;
  const ConvWindow h_, w_;
  int64_t pitch_, sums_pitch_;    // from a row to the next one
  int64_t band_, bands_;          // rows of the result in one, and how many there are
  int64_t phases_;                // remainders of columns
  std::vector<Columns> columns_;  // of each
  int64_t rows_, phase_length_;   // of the part of a band with one remainder
};

}  // namespace

std::unique_ptr<Prepared> PlanesConv(const ConvShape& s) {
  if (s.feature_groups == 1 || s.kernel_features != 1 || s.windows.size() != 2) return nullptr;
  constexpr int64_t kMostStride = 4, kShortest = 16;
  for (const ConvWindow& w : s.windows) {
    if (w.input_dilation != 1 || w.kernel_dilation != 1 || w.stride > kMostStride) return nullptr;
  }
  const ConvWindow& w = s.windows[1];
  if (w.input_stride != 1 || w.output_stride != 1 || w.output < kShortest) return nullptr;
  if (s.accumulator == Accumulator::kF32) return std::make_unique<Planes<float>>(s);
  if (s.accumulator == Accumulator::kF64) return std::make_unique<Planes<double>>(s);
  return nullptr;
}

}  // namespace ferrule

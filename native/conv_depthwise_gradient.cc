// Gradients of depthwise kernels, as JAX writes them: convolutions whose every output feature sees one image of the
// batch, the "kernel" of which is as large as the input and the result as small as a kernel. With channels innermost,
// vectors go over channels: for a row of positions the sums of several taps stay in registers, each its own chain.
#include <algorithm>
#include <string>
#include <vector>

#include "aligned_scratch.h"
#include "conv.h"
#include "program.h"
#include "thread_pool.h"

#pragma GCC optimize("O3")
#include "conv_channels.h"

namespace ferrule {
namespace {

// Sums of more taps leave the nearest cache; such a result is an image rather than a kernel.
constexpr int64_t kMostTaps = 512;

template <class T, class Stored = T>
class DepthwiseGradient : public Prepared {
 public:
  explicit DepthwiseGradient(const ConvShape& shape)
      : s_(shape), w_(s_.windows.back()), functions_(ChannelFunctionsFor<T, Stored>(s_.output_features)) {
    lanes_ = functions_.bytes / static_cast<int64_t>(sizeof(T));
    blocks_ = DivideUp(s_.output_features, lanes_);
    rows_ = s_.kernel_features;
    for (size_t d = 0; d + 1 < s_.windows.size(); ++d) {
      rows_ *= s_.windows[d].kernel, outer_taps_ *= s_.windows[d].output;
    }
    // How the rows are shared out is the shape's matter alone: sums are the same with any number of threads.
    together_ = std::min(blocks_, kTogether);
    sets_ = DivideUp(blocks_, together_);
    parts_ = std::clamp<int64_t>(DivideUp(kTasks, sets_), 1, rows_);
    each_ = outer_taps_ * w_.output * lanes_;
    stretch_ = std::min<int64_t>(w_.kernel, kStretch);
  }

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    const int64_t bytes = parts_ * blocks_ * each_ * static_cast<int64_t>(sizeof(T));
    T* sums = static_cast<T*>(context.allocate(context.allocate_self, bytes));
    if (!sums) return OutOfMemory("no memory for a convolution's sums, " + std::to_string(bytes) + " bytes");
    const Stored *x = static_cast<const Stored*>(operands[0]), *y = static_cast<const Stored*>(operands[1]);
    const int64_t work = rows_ / parts_ * together_ * each_ * w_.kernel;  // multiply-adds of a task
    context.pool->For(parts_ * sets_, std::max<int64_t>(1, kWorthSharing / std::max<int64_t>(work, 1)),
                      [&](int64_t begin, int64_t end) {
                        for (int64_t i = begin; i < end; ++i) {
                          Sum(i / sets_, i % sets_ * together_, x, y, sums + i / sets_ * blocks_ * each_);
                        }
                      });
    for (int64_t block = 0; block < blocks_; ++block) {
      T* total = sums + block * each_;
      for (int64_t part = 1; part < parts_; ++part) {
        const T* more = sums + (part * blocks_ + block) * each_;
        for (int64_t i = 0; i < each_; ++i) total[i] += more[i];
      }
      Store(block, total, static_cast<char*>(results[0]));
    }
    return Status();
  }

 private:
  // So many blocks of channels go along a row together: memory is read in runs.
  static constexpr int64_t kTasks = 32, kTogether = 8, kStretch = 128, kWorthSharing = 1 << 17;

  // The last block ends with the last channel, and begins within the one before it.
  int64_t FirstOf(int64_t block) const { return std::min(block * lanes_, s_.output_features - lanes_); }

  // Rows of one part, for the blocks of a set; `sums` are those of all blocks.
  void Sum(int64_t part, int64_t block, const Stored* x, const Stored* y, T* sums) const {
    const int64_t past = std::min(block + together_, blocks_);
    std::fill_n(sums + block * each_, (past - block) * each_, T(0));
    // What is read again and again lies side by side, and its borders are zeros.
    static thread_local AlignedScratch scratch;
    T* y_near = scratch.Get<T>((stretch_ + Length(stretch_)) * lanes_);
    T* x_near = y_near + stretch_ * lanes_;
    for (int64_t row = rows_ * part / parts_; row < rows_ * (part + 1) / parts_; ++row) {
      for (int64_t first = 0; first < w_.kernel; first += stretch_) {
        const int64_t count = std::min(stretch_, w_.kernel - first);
        for (int64_t b = block; b < past; ++b) {
          AddStretch(row, first, count, x + FirstOf(b), y + FirstOf(b), x_near, y_near, sums + b * each_);
        }
      }
    }
  }

  // Positions of the image that all taps of so many positions of the gradient meet.
  int64_t Length(int64_t count) const { return (count - 1) * w_.kernel_dilation + (w_.output - 1) * w_.stride + 1; }

  void AddStretch(int64_t row, int64_t first, int64_t count, const Stored* x, const Stored* y, T* x_near, T* y_near,
                  T* sums) const {
    const int64_t outer = static_cast<int64_t>(s_.windows.size()) - 1;
    int64_t position[3] = {}, image = row;
    y += first * w_.kernel_stride;
    for (int64_t d = outer; d-- > 0;) {
      position[d] = image % s_.windows[d].kernel;
      image /= s_.windows[d].kernel;
      y += position[d] * s_.windows[d].kernel_stride;
    }
    functions_.load(y + image * s_.kernel_input_stride, w_.kernel_stride, count, y_near);
    const int64_t start = first * w_.kernel_dilation - w_.pad_low, length = Length(count);
    const int64_t begin = std::clamp<int64_t>(-start, 0, length);
    const int64_t end = std::clamp<int64_t>(w_.input - start, begin, length);
    std::fill_n(x_near, begin * lanes_, T(0));
    std::fill(x_near + end * lanes_, x_near + length * lanes_, T(0));
    x += image * s_.input_feature_stride + (start + begin) * w_.input_stride;
    for (int64_t tap = 0; tap < outer_taps_; ++tap) {
      int64_t offset = 0, left = tap;
      bool inside = true;
      for (int64_t d = outer; d-- > 0;) {
        const ConvWindow& w = s_.windows[d];
        const int64_t at = left % w.output * w.stride + position[d] * w.kernel_dilation - w.pad_low;
        left /= w.output;
        inside = inside && at >= 0 && at < w.input;
        offset += at * w.input_stride;
      }
      if (!inside) continue;
      functions_.load(x + offset, w_.input_stride, end - begin, x_near + begin * lanes_);
      functions_.taps({x_near, y_near, w_.kernel_dilation, w_.stride, count, sums + tap * w_.output * lanes_},
                      w_.output);
    }
  }

  void Store(int64_t block, const T* sums, char* to) const {
    const int64_t first = FirstOf(block);
    for (int64_t tap = 0; tap < outer_taps_ * w_.output; ++tap) {
      int64_t at = 0, rest = tap;
      for (size_t d = s_.windows.size(); d-- > 0;) {
        at += rest % s_.windows[d].output * s_.windows[d].output_stride;
        rest /= s_.windows[d].output;
      }
      StoreElements(s_.output_type, to + (at + first * s_.output_feature_stride) * SizeOf(s_.output_type),
                    s_.output_feature_stride, lanes_, sums + tap * lanes_);
    }
  }

  const ConvShape s_;
  const ConvWindow w_;  // rows go along it
  const ChannelFunctions<T, Stored> functions_;
  int64_t lanes_, blocks_, together_, sets_;  // channels of a vector, vectors, those that go together, sets of them
  int64_t rows_, parts_, stretch_;            // stretch_: positions that go along a row together
  int64_t outer_taps_ = 1, each_;             // each_: sums of a block
};

}  // namespace

bool DepthwiseGradientSuits(const ConvShape& s) {
  // oneDNN has a loop of its own for kernels of three by three, and leaves the others to general ones.
  const bool small = s.windows.size() == 2 && s.windows[0].output * s.windows[1].output <= 9;
  return s.input_type == Element::kF64 || !small;
}

std::unique_ptr<Prepared> DepthwiseGradientConv(const ConvShape& s) {
  const Element type = s.input_type;
  const bool bf16 = type == Element::kBF16 && s.accumulator == Accumulator::kF32;
  if ((type != Element::kF32 && type != Element::kF64 && !bf16) || s.kernel_type != type) return nullptr;
  if (s.output_type != type && !(bf16 && s.output_type == Element::kF32)) return nullptr;
  if (s.batch_groups == 1 || s.batch_groups != s.input_batch || s.batch_groups != s.output_features) return nullptr;
  if (s.input_batch_stride != 1 || s.kernel_output_stride != 1 || s.output_features < 4) return nullptr;
  if (s.windows.empty() || s.windows.size() > 3) return nullptr;
  int64_t taps = 1;
  for (const ConvWindow& w : s.windows) {
    if (w.reversed || w.input_dilation != 1) return nullptr;
    taps *= w.output;
  }
  if (taps > kMostTaps) return nullptr;
  if (bf16) return std::make_unique<DepthwiseGradient<float, uint16_t>>(s);
  if (type == Element::kF32) return std::make_unique<DepthwiseGradient<float>>(s);
  return std::make_unique<DepthwiseGradient<double>>(s);
}

}  // namespace ferrule

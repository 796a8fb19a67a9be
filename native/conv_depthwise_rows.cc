// Depthwise convolutions with channels innermost, of as many output features as input features: vectors go over
// channels, the taps of a row stay in registers.
#include <algorithm>
#include <string>
#include <vector>

#include "aligned_scratch.h"
#include "conv.h"
#include "conv_taps.h"
#include "program.h"
#include "thread_pool.h"

#pragma GCC optimize("O3")
#include "conv_channels.h"

namespace ferrule {
namespace {

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class T, class Stored = T>
class DepthwiseRows : public Prepared {
 public:
  explicit DepthwiseRows(const ConvShape& shape)
      : s_(shape), taps_(s_), w_(s_.windows.back()), functions_(ChannelFunctionsFor<T, Stored>(s_.output_features)) {
    lanes_ = functions_.bytes / static_cast<int64_t>(sizeof(T));
    blocks_ = DivideUp(s_.output_features, lanes_);
    together_ = std::min(blocks_, kTogether);
    sets_ = DivideUp(blocks_, together_);
    rows_ = s_.output_batch;
    for (size_t d = 0; d + 1 < s_.windows.size(); ++d) {
      rows_ *= s_.windows[d].output, outer_taps_ *= s_.windows[d].kernel;
    }
    stretch_ = std::min<int64_t>(w_.output, kStretch);
    stretches_ = DivideUp(w_.output, stretch_);
  }

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    const int64_t each = taps_.count() * lanes_, bytes = blocks_ * each * static_cast<int64_t>(sizeof(T));
    T* weights = static_cast<T*>(context.allocate(context.allocate_self, bytes));
    if (!weights) return OutOfMemory("no memory for a convolution's kernel, " + std::to_string(bytes) + " bytes");
    const Stored *x = static_cast<const Stored*>(operands[0]), *kernel = static_cast<const Stored*>(operands[1]);
    for (int64_t block = 0; block < blocks_; ++block) {
      for (int64_t tap = 0; tap < taps_.count(); ++tap) {
        const Stored* from = kernel + taps_.KernelOffset(tap) + FirstOf(block) * s_.kernel_output_stride;
        T* to = weights + block * each + tap * lanes_;
        LoadElements(s_.kernel_type, from, s_.kernel_output_stride, lanes_, to);
      }
    }
    Stored* to = static_cast<Stored*>(results[0]);
    const int64_t work = stretch_ * taps_.count() * together_ * lanes_;  // multiply-adds of a unit
    context.pool->For(
        rows_ * stretches_ * sets_, std::max<int64_t>(1, kWorthSharing / work), [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            Unit(i / sets_ / stretches_, i / sets_ % stretches_ * stretch_, i % sets_ * together_, x, weights, to);
          }
        });
    return Status();
  }

 private:
  // So many blocks of channels go along a row together: memory is read in runs.
  static constexpr int64_t kTogether = 8, kStretch = 128, kWorthSharing = 1 << 16;

  // The last block ends with the last channel, and begins within the one before it.
  int64_t FirstOf(int64_t block) const { return std::min(block * lanes_, s_.output_features - lanes_); }

  void Unit(int64_t row, int64_t first, int64_t block, const Stored* x, const T* weights, Stored* to) const {
    const int64_t outer = static_cast<int64_t>(s_.windows.size()) - 1, count = std::min(stretch_, w_.output - first);
    int64_t position[3] = {}, image = row;
    to += first * w_.output_stride;
    for (int64_t d = outer; d-- > 0;) {
      position[d] = image % s_.windows[d].output;
      image /= s_.windows[d].output;
      to += position[d] * s_.windows[d].output_stride;
    }
    to += image * s_.output_batch_stride;
    // Positions of the image that a stretch meets: what is read again and again lies side by side, with zeros around.
    const int64_t length = (count - 1) * w_.stride + (w_.kernel - 1) * w_.kernel_dilation + 1;
    const int64_t start = first * w_.stride - w_.pad_low, begin = std::clamp<int64_t>(-start, 0, length);
    const int64_t end = std::clamp<int64_t>(w_.input - start, begin, length);
    static thread_local AlignedScratch scratch;
    T* near = scratch.Get<T>((length + count) * lanes_);
    T* sums = near + length * lanes_;
    std::fill_n(near, begin * lanes_, T(0));
    std::fill(near + end * lanes_, near + length * lanes_, T(0));
    x += image * s_.input_batch_stride + (start + begin) * w_.input_stride;
    for (int64_t b = block; b < std::min(block + together_, blocks_); ++b) {
      std::fill_n(sums, count * lanes_, T(0));
      for (int64_t tap = 0; tap < outer_taps_; ++tap) {
        int64_t offset = FirstOf(b), left = tap;
        bool inside = true;
        for (int64_t d = outer; d-- > 0;) {
          const ConvWindow& w = s_.windows[d];
          const int64_t at = position[d] * w.stride + left % w.kernel * w.kernel_dilation - w.pad_low;
          left /= w.kernel;
          inside = inside && at >= 0 && at < w.input;
          offset += at * w.input_stride;
        }
        if (!inside) continue;
        functions_.load(x + offset, w_.input_stride, end - begin, near + begin * lanes_);
        const T* taps = weights + (b * taps_.count() + tap * w_.kernel) * lanes_;
        functions_.positions({near, taps, w_.stride, w_.kernel_dilation, count, sums}, w_.kernel);
      }
      // Channels that the block before has belong to another thread, perhaps.
      functions_.store(sums, b * lanes_ - FirstOf(b), w_.output_stride, count, to + FirstOf(b));
    }
  }

  const ConvShape s_;
  const ConvTaps taps_;
  const ConvWindow w_;  // rows go along it
  const ChannelFunctions<T, Stored> functions_;
  int64_t lanes_, blocks_, together_, sets_;  // channels of a vector, vectors, those that go together, sets of them
  int64_t rows_, stretch_, stretches_;        // stretch_: positions that go along a row together
  int64_t outer_taps_ = 1;
};

}  // namespace

bool DepthwiseRowsSuit(const ConvShape& s) { return s.input_type == Element::kF64 || s.windows.size() != 2; }

std::unique_ptr<Prepared> DepthwiseRowsConv(const ConvShape& s) {
  const Element type = s.input_type;
  const bool bf16 = type == Element::kBF16 && s.accumulator == Accumulator::kF32;
  if ((type != Element::kF32 && type != Element::kF64 && !bf16) || s.kernel_type != type || s.output_type != type) {
    return nullptr;
  }
  if (s.feature_groups == 1 || s.kernel_features != 1 || s.group_outputs() != 1 || s.output_features < 4) {
    return nullptr;
  }
  if (s.input_feature_stride != 1 || s.output_feature_stride != 1) return nullptr;
  if (s.windows.empty() || s.windows.size() > 3) return nullptr;
  for (const ConvWindow& w : s.windows) {
    if (w.input_dilation != 1) return nullptr;
  }
  if (bf16) return std::make_unique<DepthwiseRows<float, uint16_t>>(s);
  if (type == Element::kF32) return std::make_unique<DepthwiseRows<float>>(s);
  return std::make_unique<DepthwiseRows<double>>(s);
}

}  // namespace ferrule

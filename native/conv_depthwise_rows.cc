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

template <class T, class Stored = T>
class DepthwiseRows : public Prepared {
 public:
  explicit DepthwiseRows(const ConvShape& shape)
      : s_(shape),
        outer_(OuterShape(shape)),
        w_(s_.windows.back()),
        outer_taps_(outer_),
        functions_(ChannelFunctionsFor<T, Stored>(s_.output_features)) {
    lanes_ = functions_.bytes / static_cast<int64_t>(sizeof(T));
    blocks_ = DivideUp(s_.output_features, lanes_);
    together_ = std::min(blocks_, kTogether);
    sets_ = DivideUp(blocks_, together_);
    stretch_ = std::min<int64_t>(w_.output, kStretch);
    stretches_ = DivideUp(w_.output, stretch_);
    each_ = outer_taps_.count() * w_.kernel * lanes_;
  }

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    const int64_t bytes = blocks_ * each_ * static_cast<int64_t>(sizeof(T));
    T* weights = static_cast<T*>(context.allocate(context.allocate_self, bytes));
    if (!weights) return OutOfMemory("no memory for a convolution's kernel, " + std::to_string(bytes) + " bytes");
    const Stored *x = static_cast<const Stored*>(operands[0]), *kernel = static_cast<const Stored*>(operands[1]);
    T* arranged = weights;
    for (int64_t block = 0; block < blocks_; ++block) {
      for (int64_t tap = 0; tap < each_ / lanes_; ++tap, arranged += lanes_) {
        const int64_t last = tap % w_.kernel, turned = w_.reversed ? w_.kernel - 1 - last : last;
        const int64_t from = outer_taps_.KernelOffset(tap / w_.kernel) + turned * w_.kernel_stride;
        LoadElements(s_.kernel_type, kernel + from + FirstOf(block) * s_.kernel_output_stride, s_.kernel_output_stride,
                     lanes_, arranged);
      }
    }
    Stored* to = static_cast<Stored*>(results[0]);
    const int64_t work = stretch_ * each_ * together_;  // multiply-adds of a unit
    context.pool->For(outer_taps_.positions() * stretches_ * sets_, std::max<int64_t>(1, kWorthSharing / work),
                      [&](int64_t begin, int64_t end) {
                        for (int64_t i = begin; i < end; ++i) {
                          Unit(i / sets_ / stretches_, i / sets_ % stretches_ * stretch_, i % sets_ * together_, x,
                               weights, to);
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
    static thread_local AlignedScratch scratch, offsets_scratch;
    int64_t* offsets = offsets_scratch.Get<int64_t>(outer_taps_.count());
    const int64_t image = outer_taps_.Offsets(row, offsets), count = std::min(stretch_, w_.output - first);
    to += outer_taps_.OutputOffset(row) + first * w_.output_stride;
    // Positions of the image that a stretch meets: what is read again and again lies side by side, with zeros around.
    const int64_t length = (count - 1) * w_.stride + (w_.kernel - 1) * w_.kernel_dilation + 1;
    const int64_t start = first * w_.stride - w_.pad_low, begin = std::clamp<int64_t>(-start, 0, length);
    const int64_t end = std::clamp<int64_t>(w_.input - start, begin, length);
    T* near = scratch.Get<T>((length + count) * lanes_);
    T* sums = near + length * lanes_;
    std::fill_n(near, begin * lanes_, T(0));
    std::fill(near + end * lanes_, near + length * lanes_, T(0));
    x += image + (start + begin) * w_.input_stride;
    for (int64_t b = block; b < std::min(block + together_, blocks_); ++b) {
      std::fill_n(sums, count * lanes_, T(0));
      for (int64_t tap = 0; tap < outer_taps_.count(); ++tap) {
        if (offsets[tap] < 0) continue;
        functions_.load(x + FirstOf(b) + offsets[tap], w_.input_stride, end - begin, near + begin * lanes_);
        const T* taps = weights + b * each_ + tap * w_.kernel * lanes_;
        functions_.positions({near, taps, w_.stride, w_.kernel_dilation, count, sums}, w_.kernel);
      }
      // Channels that the block before has belong to another thread, perhaps.
      functions_.store(sums, b * lanes_ - FirstOf(b), w_.output_stride, count, to + FirstOf(b));
    }
  }

  const ConvShape s_, outer_;
  const ConvWindow w_;  // rows go along it
  const ConvTaps outer_taps_;
  const ChannelFunctions<T, Stored> functions_;
  int64_t lanes_, blocks_, together_, sets_;  // channels of a vector, vectors, those that go together, sets of them
  int64_t stretch_, stretches_;               // positions that go along a row together, and how many such
  int64_t each_;                              // weights of a block
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

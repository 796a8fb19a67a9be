// Convolutions with channels innermost and few output features, as those to the colours of an image or to one mask:
// vectors go along the input features, and along the taps of a row where these continue them. Vectors of output
// features would be mostly empty.
#include <algorithm>
#include <string>
#include <vector>

#include "aligned_scratch.h"
#include "conv.h"
#include "conv_taps.h"
#include "few_sums.h"
#include "program.h"
#include "thread_pool.h"

namespace ferrule {
namespace {

// The same in all spatial dimensions but the last.
ConvShape Outer(ConvShape shape) {
  shape.windows.pop_back();
  return shape;
}

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class T>
class FewOutputs : public Prepared {
 public:
  explicit FewOutputs(const ConvShape& shape)
      : s_(shape), outer_(Outer(shape)), w_(s_.windows.back()), outer_taps_(outer_), functions_(ChosenFew<T>()) {
    taps_at_once_ = w_.kernel_dilation == 1 ? w_.kernel : 1;
    runs_ = w_.kernel / taps_at_once_;
    depth_ = taps_at_once_ * s_.input_features;
    row_ = FewRow(depth_, functions_.lanes);
    stretch_ = std::min<int64_t>(w_.output, kStretch);
    stretches_ = DivideUp(w_.output, stretch_);
    // Positions all of whose taps are within the image.
    inner_begin_ = std::clamp<int64_t>(DivideUp(w_.pad_low, w_.stride), 0, w_.output);
    const int64_t room = w_.input - 1 - (w_.kernel - 1) * w_.kernel_dilation + w_.pad_low;
    inner_end_ = std::clamp<int64_t>(room < 0 ? 0 : room / w_.stride + 1, inner_begin_, w_.output);
  }

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    const int64_t all = outer_taps_.count() * runs_, each = s_.output_features * row_;
    const int64_t bytes = all * each * static_cast<int64_t>(sizeof(T));
    T* weights = static_cast<T*>(context.allocate(context.allocate_self, bytes));
    if (!weights) return OutOfMemory("no memory for a convolution's kernel, " + std::to_string(bytes) + " bytes");
    Arrange(static_cast<const T*>(operands[1]), weights);
    const T* x = static_cast<const T*>(operands[0]);
    T* to = static_cast<T*>(results[0]);
    const int64_t work = stretch_ * all * each;  // multiply-adds of a unit
    context.pool->For(outer_taps_.positions() * stretches_, std::max<int64_t>(1, kWorthSharing / work),
                      [&](int64_t begin, int64_t end) {
                        for (int64_t i = begin; i < end; ++i) {
                          Unit(i / stretches_, i % stretches_ * stretch_, x, weights, to);
                        }
                      });
    return Status();
  }

 private:
  static constexpr int64_t kStretch = 512, kWorthSharing = 1 << 17;

  // weights[outer tap][run][output] as FewWeights has them.
  void Arrange(const T* kernel, T* to) const {
    std::vector<T> run(static_cast<size_t>(depth_));
    for (int64_t i = 0; i < outer_taps_.count() * runs_ * s_.output_features; ++i, to += row_) {
      const int64_t output = i % s_.output_features, first = i / s_.output_features % runs_ * taps_at_once_;
      const int64_t from = outer_taps_.KernelOffset(i / s_.output_features / runs_) + output * s_.kernel_output_stride;
      for (int64_t t = 0; t < taps_at_once_; ++t) {
        const int64_t turned = w_.reversed ? w_.kernel - 1 - first - t : first + t;
        LoadElements(s_.kernel_type, kernel + from + turned * w_.kernel_stride, s_.kernel_input_stride,
                     s_.input_features, run.data() + t * s_.input_features);
      }
      FewWeights(run.data(), depth_, functions_.lanes, to);
    }
  }

  void Unit(int64_t row, int64_t first, const T* x, const T* weights, T* to) const {
    static thread_local AlignedScratch offsets_scratch, pointers_scratch, border_scratch;
    const int64_t taps = outer_taps_.count(), last = std::min(first + stretch_, w_.output);
    int64_t* offsets = offsets_scratch.Get<int64_t>(taps);
    x += outer_taps_.Offsets(row, offsets);
    to += outer_taps_.OutputOffset(row);
    const T** runs = pointers_scratch.Get<const T*>(2 * taps * runs_);
    const T** run_weights = runs + taps * runs_;
    const int64_t features = s_.input_features, begin = std::clamp(inner_begin_, first, last);
    const int64_t end = std::clamp(inner_end_, begin, last);
    auto sum = [&](int64_t from, int64_t until, bool border) {
      if (from == until) return;
      // At a border the elements of the image are copied next to zeros.
      const int64_t start = from * w_.stride - w_.pad_low;
      const int64_t length = (until - 1 - from) * w_.stride + (w_.kernel - 1) * w_.kernel_dilation + 1;
      const int64_t inside = std::clamp<int64_t>(-start, 0, length);
      const int64_t outside = std::clamp<int64_t>(w_.input - start, inside, length);
      T* copy = border ? border_scratch.Get<T>(taps * length * features) : nullptr;
      int64_t count = 0;
      for (int64_t tap = 0; tap < taps; ++tap) {
        if (offsets[tap] < 0) continue;
        const T* line = x + offsets[tap] + start * features;
        if (border) {
          std::fill_n(copy, inside * features, T(0));
          std::copy(line + inside * features, line + outside * features, copy + inside * features);
          std::fill(copy + outside * features, copy + length * features, T(0));
          line = copy;
          copy += length * features;
        }
        for (int64_t run = 0; run < runs_; ++run, ++count) {
          runs[count] = line + run * w_.kernel_dilation * features;
          run_weights[count] = weights + (tap * runs_ + run) * s_.output_features * row_;
        }
      }
      functions_.outputs[s_.output_features - 1](
          {runs, run_weights, count, depth_, w_.stride * features, to + from * s_.output_features, until - from});
    };
    sum(first, begin, true);
    sum(begin, end, false);
    sum(end, last, true);
  }

  const ConvShape s_, outer_;
  const ConvWindow w_;  // rows go along it
  const ConvTaps outer_taps_;
  const FewFunctions<T>& functions_;
  int64_t taps_at_once_, runs_;      // taps of a row that are one run, and how many runs
  int64_t depth_, row_;              // elements of a run, and of its weights for an output
  int64_t stretch_, stretches_;      // positions that go along a row together, and how many such
  int64_t inner_begin_, inner_end_;  // positions away from the borders
};

// Below, lanes stay empty or the lanes' own sums are most of the work.
constexpr int64_t kLeastFeatures = 8;

}  // namespace

std::unique_ptr<Prepared> FewOutputsConv(const ConvShape& s) {
  const Element type = s.input_type;
  if ((type != Element::kF32 && type != Element::kF64) || s.kernel_type != type || s.output_type != type) {
    return nullptr;
  }
  if (s.groups() != 1 || s.output_features > kFewOutputs || s.windows.empty()) return nullptr;
  const ConvWindow& w = s.windows.back();
  if (s.input_feature_stride != 1 || (s.output_features > 1 && s.output_feature_stride != 1)) return nullptr;
  if ((w.input > 1 && w.input_stride != s.input_features) || (w.output > 1 && w.output_stride != s.output_features)) {
    return nullptr;
  }
  for (const ConvWindow& each : s.windows) {
    if (each.input_dilation != 1) return nullptr;
  }
  const int64_t depth = (w.kernel_dilation == 1 ? w.kernel : 1) * s.input_features;
  const int64_t lanes = type == Element::kF32 ? ChosenFew<float>().lanes : ChosenFew<double>().lanes;
  if (s.input_features < kLeastFeatures || depth < lanes) return nullptr;
  if (type == Element::kF32) return std::make_unique<FewOutputs<float>>(s);
  return std::make_unique<FewOutputs<double>>(s);
}

}  // namespace ferrule

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

// Output positions of a row whose taps meet elements of the image: all of them, or, where the image is dilated, those
// of one remainder. They are those of a convolution of their own, of every so many taps.
struct Phase {
  int64_t position, positions;  // the first one, and how many
  int64_t tap, taps;            // the same of the taps
  int64_t pad_low;
  int64_t inner_begin, inner_end;  // positions all of whose taps are within the image
};

std::vector<Phase> PhasesOf(const ConvWindow& w) {
  std::vector<Phase> phases;
  for (int64_t first = 0; first < std::min(w.input_dilation, w.output); ++first) {
    Phase p;
    p.position = first, p.positions = DivideUp(w.output - first, w.input_dilation);
    p.tap = ((w.pad_low - first) % w.input_dilation + w.input_dilation) % w.input_dilation;
    p.taps = std::max<int64_t>(0, DivideUp(w.kernel - p.tap, w.input_dilation));
    p.pad_low = (w.pad_low - first - p.tap) / w.input_dilation;
    p.inner_begin = std::clamp<int64_t>(DivideUp(p.pad_low, w.stride), 0, p.positions);
    const int64_t room = w.input - 1 - (p.taps - 1) * w.kernel_dilation + p.pad_low;
    p.inner_end = std::clamp<int64_t>(room < 0 ? 0 : room / w.stride + 1, p.inner_begin, p.positions);
    phases.push_back(p);
  }
  return phases;
}

template <class T>
class FewOutputs : public Prepared {
 public:
  explicit FewOutputs(const ConvShape& shape)
      : s_(shape),
        outer_(OuterShape(shape)),
        w_(s_.windows.back()),
        phases_(PhasesOf(w_)),
        outer_taps_(outer_),
        functions_(ChosenFew<T>()) {
    runs_ = w_.kernel_dilation == 1 ? 1 : w_.kernel;
    int64_t longest = 0;
    for (const Phase& p : phases_) longest = std::max(longest, Depth(p));
    each_ = outer_taps_.count() * runs_ * s_.output_features * FewRow(longest, functions_.lanes);
    stretch_ = std::min<int64_t>(phases_[0].positions, kStretch);
    stretches_ = DivideUp(phases_[0].positions, stretch_);
  }

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    const auto phases = static_cast<int64_t>(phases_.size());
    const int64_t bytes = phases * each_ * static_cast<int64_t>(sizeof(T));
    T* weights = static_cast<T*>(context.allocate(context.allocate_self, bytes));
    if (!weights) return OutOfMemory("no memory for a convolution's kernel, " + std::to_string(bytes) + " bytes");
    for (int64_t p = 0; p < phases; ++p) {
      Arrange(phases_[p], static_cast<const T*>(operands[1]), weights + p * each_);
    }
    const T* x = static_cast<const T*>(operands[0]);
    T* to = static_cast<T*>(results[0]);
    const int64_t work = stretch_ * phases * each_;  // multiply-adds of a unit
    context.pool->For(outer_taps_.positions() * stretches_, std::max<int64_t>(1, kWorthSharing / work),
                      [&](int64_t begin, int64_t end) {
                        for (int64_t i = begin; i < end; ++i) {
                          for (int64_t p = 0; p < phases; ++p) {
                            Unit(phases_[p], i / stretches_, i % stretches_ * stretch_, x, weights + p * each_, to);
                          }
                        }
                      });
    return Status();
  }

 private:
  static constexpr int64_t kStretch = 512, kWorthSharing = 1 << 17;

  // Elements of a run.
  int64_t Depth(const Phase& p) const { return (w_.kernel_dilation == 1 ? p.taps : 1) * s_.input_features; }

  // weights[outer tap][run][output] as FewWeights has them.
  void Arrange(const Phase& p, const T* kernel, T* to) const {
    const int64_t at_once = w_.kernel_dilation == 1 ? p.taps : 1, row = FewRow(Depth(p), functions_.lanes);
    std::vector<T> run(static_cast<size_t>(Depth(p)));
    for (int64_t i = 0; i < outer_taps_.count() * runs_ * s_.output_features && p.taps > 0; ++i, to += row) {
      const int64_t output = i % s_.output_features, first = i / s_.output_features % runs_ * at_once;
      const int64_t from = outer_taps_.KernelOffset(i / s_.output_features / runs_) + output * s_.kernel_output_stride;
      for (int64_t t = 0; t < at_once; ++t) {
        const int64_t tap = p.tap + (first + t) * w_.input_dilation, turned = w_.reversed ? w_.kernel - 1 - tap : tap;
        LoadElements(s_.kernel_type, kernel + from + turned * w_.kernel_stride, s_.kernel_input_stride,
                     s_.input_features, run.data() + t * s_.input_features);
      }
      FewWeights(run.data(), Depth(p), functions_.lanes, to);
    }
  }

  // A stretch of a row's positions of one phase.
  void Unit(const Phase& p, int64_t row, int64_t first, const T* x, const T* weights, T* to) const {
    static thread_local AlignedScratch offsets_scratch, pointers_scratch, border_scratch, sums_scratch;
    const int64_t taps = outer_taps_.count(), last = std::min(first + stretch_, p.positions);
    const int64_t outputs = s_.output_features, features = s_.input_features, depth = Depth(p);
    if (first >= last) return;
    int64_t* offsets = offsets_scratch.Get<int64_t>(taps);
    x += outer_taps_.Offsets(row, offsets);
    to += outer_taps_.OutputOffset(row) + p.position * outputs;
    // Positions of one phase are not neighbours.
    const bool apart = w_.input_dilation > 1;
    T* sums = apart ? sums_scratch.Get<T>((last - first) * outputs) - first * outputs : to;
    const T** runs = pointers_scratch.Get<const T*>(2 * taps * runs_);
    const T** run_weights = runs + taps * runs_;
    auto sum = [&](int64_t from, int64_t until, bool border) {
      if (from == until) return;
      // At a border the elements of the image are copied next to zeros.
      const int64_t start = from * w_.stride - p.pad_low;
      const int64_t length = (until - 1 - from) * w_.stride + (p.taps - 1) * w_.kernel_dilation + 1;
      const int64_t inside = std::clamp<int64_t>(-start, 0, length);
      const int64_t outside = std::clamp<int64_t>(w_.input - start, inside, length);
      T* copy = border ? border_scratch.Get<T>(taps * length * features) : nullptr;
      int64_t count = 0;
      for (int64_t tap = 0; tap < taps && p.taps > 0; ++tap) {
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
          run_weights[count] = weights + (tap * runs_ + run) * outputs * FewRow(depth, functions_.lanes);
        }
      }
      functions_.outputs[outputs - 1](
          {runs, run_weights, count, depth, w_.stride * features, sums + from * outputs, until - from});
    };
    const int64_t begin = std::clamp(p.inner_begin, first, last), end = std::clamp(p.inner_end, begin, last);
    sum(first, begin, true);
    sum(begin, end, false);
    sum(end, last, true);
    for (int64_t i = first; apart && i < last; ++i) {
      std::copy_n(sums + i * outputs, outputs, to + i * w_.input_dilation * outputs);
    }
  }

  const ConvShape s_, outer_;
  const ConvWindow w_;  // rows go along it
  const std::vector<Phase> phases_;
  const ConvTaps outer_taps_;
  const FewFunctions<T>& functions_;
  int64_t runs_;                 // into which the taps of a row fall
  int64_t each_;                 // weights of a phase, at most
  int64_t stretch_, stretches_;  // positions that go along a row together, and how many such
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
  if (w.input_dilation != 1 && (w.stride != 1 || w.kernel_dilation != 1)) return nullptr;
  const int64_t lanes = type == Element::kF32 ? ChosenFew<float>().lanes : ChosenFew<double>().lanes;
  if (s.input_features < kLeastFeatures) return nullptr;
  for (const Phase& p : PhasesOf(w)) {
    const int64_t depth = (w.kernel_dilation == 1 ? p.taps : 1) * s.input_features;
    if (p.taps > 0 && depth < lanes) return nullptr;
  }
  if (type == Element::kF32) return std::make_unique<FewOutputs<float>>(s);
  return std::make_unique<FewOutputs<double>>(s);
}

}  // namespace ferrule

// Convolutions through oneDNN. One StableHLO convolution covers what oneDNN calls three things:
//   forward         no input dilation;
//   backward data   input dilation > 1 (transposed convolutions, gradients of strided ones);
//   backward weights  the "kernel" is larger than the result: gradients of kernels, as JAX writes them.
#include <algorithm>
#include <string>
#include <vector>

#include "conv.h"
#include "onednn.h"

namespace ferrule {
namespace {

using Dims = std::vector<int64_t>;

// Copies a kernel with some of its spatial dimensions turned around; the layout stays.
class TurnKernel : public DnnlPreparation {
 public:
  TurnKernel(const ConvShape& shape, std::vector<bool> turn) : s_(shape), turn_(std::move(turn)) {}
  int64_t Bytes() const override { return s_.kernel_elements * SizeOf(s_.kernel_type); }
  void Run(const void* from, void* to) const override {
    switch (SizeOf(s_.kernel_type)) {
      case 4:
        return Turn(static_cast<const uint32_t*>(from), static_cast<uint32_t*>(to), 0, 0, 0);
      case 2:
        return Turn(static_cast<const uint16_t*>(from), static_cast<uint16_t*>(to), 0, 0, 0);
      default:
        return Turn(static_cast<const uint8_t*>(from), static_cast<uint8_t*>(to), 0, 0, 0);
    }
  }

 private:
  template <class T>
  void Turn(const T* from, T* to, size_t d, int64_t at, int64_t turned) const {
    if (d < s_.windows.size()) {
      const ConvWindow& w = s_.windows[d];
      for (int64_t t = 0; t < w.kernel; ++t) {
        int64_t other = turn_[d] ? w.kernel - 1 - t : t;
        Turn(from, to, d + 1, at + t * w.kernel_stride, turned + other * w.kernel_stride);
      }
      return;
    }
    // The faster one of the two feature dimensions inside.
    int64_t n = s_.kernel_features, m = s_.output_features, ns = s_.kernel_input_stride, ms = s_.kernel_output_stride;
    if (ms > ns) std::swap(n, m), std::swap(ns, ms);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < m; ++j) to[turned + i * ns + j * ms] = from[at + i * ns + j * ms];
    }
  }

  ConvShape s_;
  std::vector<bool> turn_;
};

enum class Kind { kForward, kBackwardData, kBackwardWeights };

// Null where the kernel stays: backward data runs over it from its end, the others from its begin.
std::unique_ptr<DnnlPreparation> Turning(const ConvShape& s, Kind kind) {
  std::vector<bool> turn;
  for (const ConvWindow& w : s.windows) turn.push_back(w.kernel > 1 && w.reversed != (kind == Kind::kBackwardData));
  if (std::find(turn.begin(), turn.end(), true) == turn.end()) return nullptr;
  return std::make_unique<TurnKernel>(s, std::move(turn));
}

// One tensor as oneDNN sees it.
struct Tensor {
  Element type;
  Dims dims, strides;

  void Add(int64_t size, int64_t stride) {
    dims.push_back(size);
    strides.push_back(stride);
  }
  // Channels innermost: the layout that oneDNN's fast kernels take as it is.
  bool ChannelsLast() const { return strides[1] == 1 || dims[1] == 1; }
  // The same without any gaps: pixel after pixel.
  bool Dense() const {
    bool dense = ChannelsLast();
    int64_t stride = dims[1];
    for (size_t d = dims.size(); d-- > 0;) {
      if (d == 1) continue;
      dense = dense && (dims[d] == 1 || strides[d] == stride);
      stride *= dims[d];
    }
    return dense;
  }
};

struct Geometry {
  Tensor source, weights, destination;
  Dims strides, dilations, pad_low, pad_high;
};

// oneDNN wants a padding at the end that makes its formula for the output size come out; a stride leaves a choice.
bool PadHigh(int64_t source, int64_t kernel, int64_t destination, int64_t stride, int64_t dilation, int64_t low,
             int64_t* high) {
  int64_t least = (destination - 1) * stride - source + (kernel - 1) * dilation + 1 - low;
  *high = std::max<int64_t>(0, least);
  return low >= 0 && *high - least < stride;
}

bool Describe(const ConvShape& s, Kind kind, Geometry* g) {
  int64_t groups = s.groups();
  g->source.type = kind == Kind::kBackwardData ? s.output_type : s.input_type;
  g->weights.type = kind == Kind::kBackwardWeights ? s.output_type : s.kernel_type;
  g->destination.type = kind == Kind::kForward        ? s.output_type
                        : kind == Kind::kBackwardData ? s.input_type
                                                      : s.kernel_type;
  auto add_groups = [&](int64_t stride) {
    if (groups > 1) g->weights.Add(groups, stride);
  };
  switch (kind) {
    case Kind::kForward:
      g->source.Add(s.input_batch, s.input_batch_stride);
      g->source.Add(s.input_features, s.input_feature_stride);
      add_groups(s.group_outputs() * s.kernel_output_stride);
      g->weights.Add(s.group_outputs(), s.kernel_output_stride);
      g->weights.Add(s.kernel_features, s.kernel_input_stride);
      g->destination.Add(s.output_batch, s.output_batch_stride);
      g->destination.Add(s.output_features, s.output_feature_stride);
      break;
    case Kind::kBackwardData:
      g->source.Add(s.output_batch, s.output_batch_stride);
      g->source.Add(s.output_features, s.output_feature_stride);
      add_groups(s.group_outputs() * s.kernel_output_stride);
      g->weights.Add(s.kernel_features, s.kernel_input_stride);
      g->weights.Add(s.group_outputs(), s.kernel_output_stride);
      g->destination.Add(s.input_batch, s.input_batch_stride);
      g->destination.Add(s.input_features, s.input_feature_stride);
      break;
    case Kind::kBackwardWeights:
      g->source.Add(s.input_features, s.input_feature_stride);
      g->source.Add(s.input_batch, s.input_batch_stride);
      add_groups(s.group_outputs() * s.output_feature_stride);
      g->weights.Add(s.group_outputs(), s.output_feature_stride);
      g->weights.Add(s.output_batch, s.output_batch_stride);
      g->destination.Add(s.kernel_features, s.kernel_input_stride);
      g->destination.Add(s.output_features, s.kernel_output_stride);
      break;
  }
  for (const ConvWindow& w : s.windows) {
    int64_t low, high, stride, dilation;
    bool fits;
    switch (kind) {
      case Kind::kForward:
        g->source.Add(w.input, w.input_stride);
        g->weights.Add(w.kernel, w.kernel_stride);
        g->destination.Add(w.output, w.output_stride);
        stride = w.stride, dilation = w.kernel_dilation, low = w.pad_low;
        fits = w.input_dilation == 1 && PadHigh(w.input, w.kernel, w.output, stride, dilation, low, &high);
        break;
      case Kind::kBackwardData:
        g->source.Add(w.output, w.output_stride);
        g->weights.Add(w.kernel, w.kernel_stride);
        g->destination.Add(w.input, w.input_stride);
        stride = w.input_dilation, dilation = w.kernel_dilation;
        low = (w.kernel - 1) * w.kernel_dilation - w.pad_low;
        fits = w.stride == 1 && PadHigh(w.output, w.kernel, w.input, stride, dilation, low, &high);
        break;
      default:
        g->source.Add(w.input, w.input_stride);
        g->weights.Add(w.output, w.output_stride);
        g->destination.Add(w.kernel, w.kernel_stride);
        stride = w.kernel_dilation, dilation = w.stride, low = w.pad_low;
        fits = w.input_dilation == 1 && PadHigh(w.input, w.output, w.kernel, stride, dilation, low, &high);
    }
    if (!fits) return false;
    g->strides.push_back(stride);
    g->dilations.push_back(dilation - 1);
    g->pad_low.push_back(low);
    g->pad_high.push_back(high);
  }
  return true;
}

// All that the weights' form follows from: equal convolutions of one process choose equal layouts. (Whether the kernel
// is turned around follows from the kind and `reversed`.)
std::string Key(const ConvShape& s, const Geometry& g, Kind kind, int threads) {
  std::string key = "convolution";
  auto add = [&](int64_t number) { key += ' ' + std::to_string(number); };
  auto list = [&](const std::vector<int64_t>& numbers) { std::for_each(numbers.begin(), numbers.end(), add); };
  add(static_cast<int64_t>(kind)), add(threads);
  for (const Tensor* t : {&g.source, &g.weights, &g.destination}) {
    add(static_cast<int64_t>(t->type)), list(t->dims), list(t->strides);
  }
  list(g.strides), list(g.dilations), list(g.pad_low), list(g.pad_high);
  for (const ConvWindow& w : s.windows) add(w.reversed);
  return key;
}

std::unique_ptr<Prepared> Make(const OneDnn& dnnl, const ConvShape& s, Kind kind) {
  Geometry g;
  if (!Describe(s, kind, &g)) return nullptr;
  double work = static_cast<double>(s.output_elements) * s.kernel_elements / s.output_features;
  int threads = OneDnn::ThreadsFor(work);
  dnnl.UseThreads(threads);
  // oneDNN's kernels take the images as they are when channels are innermost; weights always go to its own layout.
  bool last = g.source.ChannelsLast() && g.destination.ChannelsLast();
  auto image = [&](const Tensor& t) {
    return last ? StridedDesc(dnnl, t.type, t.dims, t.strides) : AnyDesc(dnnl, t.type, t.dims);
  };
  DnnlOwner source = image(g.source), destination = image(g.destination);
  DnnlOwner weights = AnyDesc(dnnl, g.weights.type, g.weights.dims);
  if (!source || !weights || !destination) return nullptr;
  DnnlObject desc = nullptr, forward = nullptr;
  const int64_t *strides = g.strides.data(), *dilations = g.dilations.data();
  const int64_t *low = g.pad_low.data(), *high = g.pad_high.data();
  int prop = kind == Kind::kForward ? OneDnn::kForwardInference : OneDnn::kForwardTraining;
  int status;
  if (kind == Kind::kForward) {
    status = dnnl.convolution_forward_primitive_desc_create(&desc, dnnl.engine, prop, OneDnn::kDirect, source.get(),
                                                            weights.get(), nullptr, destination.get(), strides,
                                                            dilations, low, high, dnnl.attributes);
  } else {
    // The backward primitives ask for the forward one as a hint. Its types must be a forward's: the gradient's type may
    // be the wider one.
    DnnlOwner forward_source = AnyDesc(dnnl, s.kernel_type, g.source.dims);
    DnnlOwner forward_weights = AnyDesc(dnnl, s.kernel_type, g.weights.dims);
    DnnlOwner forward_destination = AnyDesc(dnnl, s.kernel_type, g.destination.dims);
    if (dnnl.convolution_forward_primitive_desc_create(
            &forward, dnnl.engine, prop, OneDnn::kDirect, forward_source.get(), forward_weights.get(), nullptr,
            forward_destination.get(), strides, dilations, low, high, dnnl.attributes) != 0) {
      return nullptr;
    }
    DnnlOwner hint(forward, dnnl.primitive_desc_destroy);
    if (kind == Kind::kBackwardData) {
      status = dnnl.convolution_backward_data_primitive_desc_create(&desc, dnnl.engine, OneDnn::kDirect, source.get(),
                                                                    weights.get(), destination.get(), strides,
                                                                    dilations, low, high, forward, dnnl.attributes);
    } else {
      status = dnnl.convolution_backward_weights_primitive_desc_create(
          &desc, dnnl.engine, OneDnn::kDirect, source.get(), weights.get(), nullptr, destination.get(), strides,
          dilations, low, high, forward, dnnl.attributes);
    }
  }
  if (status != 0) return nullptr;
  DnnlOwner owner(desc, dnnl.primitive_desc_destroy);
  auto layout = [&](const Tensor& t) { return StridedDesc(dnnl, t.type, t.dims, t.strides); };
  DnnlOwner source_layout = layout(g.source), weights_layout = layout(g.weights), to_layout = layout(g.destination);
  if (!source_layout || !weights_layout || !to_layout) return nullptr;
  std::unique_ptr<DnnlPreparation> preparation = Turning(s, kind);
  if (preparation && kind == Kind::kBackwardWeights) return nullptr;  // never written so; the general path knows it
  DnnlKept kept{s.kernel_source, Key(s, g, kind, threads)};
  DnnlTensor a{std::move(source_layout), OneDnn::kSourceArg, OneDnn::kSourceMd};
  DnnlTensor w{std::move(weights_layout), OneDnn::kWeightsArg, OneDnn::kWeightsMd};
  DnnlTensor b{std::move(to_layout), OneDnn::kDestinationArg, OneDnn::kDestinationMd};
  auto differential = [](DnnlTensor& t, int argument, int query) { t.argument = argument, t.query = query; };
  switch (kind) {
    case Kind::kForward:
      return DnnlCall(dnnl, threads, std::move(owner), std::move(a), std::move(w), std::move(b), std::move(kept),
                      std::move(preparation));
    case Kind::kBackwardData:
      differential(a, OneDnn::kDiffSourceArg, OneDnn::kDiffSourceMd);
      differential(b, OneDnn::kDiffDestinationArg, OneDnn::kDiffDestinationMd);
      return DnnlCall(dnnl, threads, std::move(owner), std::move(b), std::move(w), std::move(a), std::move(kept),
                      std::move(preparation));
    default:
      differential(w, OneDnn::kDiffWeightsArg, OneDnn::kDiffWeightsMd);
      differential(b, OneDnn::kDiffDestinationArg, OneDnn::kDiffDestinationMd);
      return DnnlCall(dnnl, threads, std::move(owner), std::move(a), std::move(b), std::move(w));
  }
}

// A convolution over some of the terms. Offsets count elements.
struct Part {
  Geometry g;
  int64_t source_offset = 0, weights_offset = 0;
};

// Half of the input features: pixels twice as many and half as deep, of which every second one is met. The padding, or
// where the first one lies, says which.
Part HalfOfFeatures(const ConvShape& s, const Geometry& whole, int half) {
  Part part{whole};
  Geometry& g = part.g;
  int64_t features = whole.source.dims[1] / 2;
  g.source.dims[1] = g.weights.dims[1] = features;
  g.source.dims.back() *= 2, g.source.strides.back() = features;
  g.strides.back() *= 2, g.dilations.back() = 2 * g.dilations.back() + 1;
  g.pad_low.back() = 2 * g.pad_low.back() - half;
  part.weights_offset = half * features * s.kernel_input_stride;
  return part;
}

// The whole image as one line of positions, the last of which ends with the features that are read.
Part HalfOfLine(const ConvShape& s, const Geometry& whole, int half) {
  int64_t positions = s.output_elements / s.output_features, features = s.input_features / 2;
  Part part;
  part.source_offset = half * features, part.weights_offset = half * features * s.kernel_input_stride;
  const int64_t outputs = s.output_features;
  part.g = {{whole.source.type, {1, features, 2 * positions - 1}, {(2 * positions - 1) * features, 1, features}},
            {whole.weights.type, {outputs, features, 1}, {s.kernel_output_stride, s.kernel_input_stride, 1}},
            {whole.destination.type, {1, outputs, positions}, {positions * outputs, 1, outputs}},
            {2},
            {0},
            {0},
            {0}};
  return part;
}

// The rows [from, to) of a kernel, for one image.
Part RowsOfKernel(const ConvShape& s, const Geometry& whole, int64_t from, int64_t to) {
  Part part{whole};
  Geometry& g = part.g;
  const ConvWindow& w = s.windows[0];
  int64_t first = from * w.kernel_dilation - w.pad_low, start = std::max<int64_t>(0, first);
  g.pad_low[0] = std::max<int64_t>(0, -first);
  g.weights.dims[2] = to - from;
  int64_t read = (w.output - 1) * w.stride + (to - from - 1) * w.kernel_dilation + 1 - g.pad_low[0];
  g.source.dims[2] = std::min(w.input - start, read);
  g.source.strides[0] = g.source.dims[2] * g.source.strides[2];
  part.source_offset = start * w.input_stride, part.weights_offset = from * w.kernel_stride;
  return part;
}

// oneDNN adds up all products of a result one after the other: with 1152 of them the error is 1.6 times that of sums in
// blocks, and grows with the root of their number. In two parts it is 0.7 of that, for 1 to 3 % of the time; where it
// takes more there are none.
std::vector<Part> PartsOf(const ConvShape& s, const Geometry& g) {
  constexpr int64_t kLong = 1024, kShortest = 64;
  constexpr double kWork = 1 << 25;  // multiply-adds beside which another call is nothing
  // After so many features oneDNN begins anew itself.
  constexpr int64_t kWhole = 1280;
  // A line's positions are computed together: beside a few of them, or with a kernel that comes from the last cache,
  // beginning anew takes 4 to 6 %.
  constexpr int64_t kLine = 14, kLongLine = 28, kKernelBytes = 4 << 20;
  const int64_t features = s.kernel_features, taps = s.kernel_elements / s.output_features / features;
  const bool even = features % 32 == 0 && features / 2 >= kShortest;
  if (static_cast<double>(s.output_elements) * static_cast<double>(features * taps) < kWork) return {};
  if (s.groups() != 1 || features * taps < kLong || !g.source.Dense() || !g.destination.Dense()) return {};
  if (taps == 1) {
    const int64_t positions = s.output_elements / s.output_features;
    for (const ConvWindow& w : s.windows) {
      if (w.stride != 1 || w.pad_low != 0 || w.input != w.output) return {};
    }
    if (!even || features > kWhole || positions < kLine) return {};
    return {HalfOfLine(s, g, 0), HalfOfLine(s, g, 1)};
  }
  const ConvWindow& last = s.windows.back();
  if (last.output < kLine) return {};
  if (last.output < kLongLine && s.kernel_elements * SizeOf(s.kernel_type) > kKernelBytes) return {};
  std::vector<Part> parts;
  if (even && last.pad_low > 0) {
    parts = {HalfOfFeatures(s, g, 0), HalfOfFeatures(s, g, 1)};
  } else if (s.input_batch == 1 && s.windows.size() > 1 && s.windows[0].kernel > 1) {
    const int64_t rows = s.windows[0].kernel, middle = (rows + 1) / 2;
    parts = {RowsOfKernel(s, g, 0, middle), RowsOfKernel(s, g, middle, rows)};
  }
  for (Part& part : parts) {
    Geometry& p = part.g;
    for (size_t d = 0; d < s.windows.size(); ++d) {
      int64_t source = p.source.dims[2 + d], kernel = p.weights.dims[2 + d], destination = p.destination.dims[2 + d];
      if (source < 1 ||
          !PadHigh(source, kernel, destination, p.strides[d], p.dilations[d] + 1, p.pad_low[d], &p.pad_high[d])) {
        return {};
      }
    }
  }
  return parts;
}

// A convolution as two primitives, the second of which adds to the first one's results; null where one is as good.
std::unique_ptr<Prepared> MakeParts(const OneDnn& dnnl, const ConvShape& s) {
  Geometry whole;
  if (s.input_type != Element::kF32 || !Describe(s, Kind::kForward, &whole)) return nullptr;
  std::vector<Part> parts = PartsOf(s, whole);
  if (parts.empty()) return nullptr;
  int threads = OneDnn::ThreadsFor(static_cast<double>(s.output_elements) * s.kernel_elements / s.output_features);
  dnnl.UseThreads(threads);
  std::string key = Key(s, whole, Kind::kForward, threads) + " in parts";
  std::vector<DnnlPart> made;
  DnnlOwner result;
  for (const Part& part : parts) {
    const Geometry& g = part.g;
    auto layout = [&](const Tensor& t) { return StridedDesc(dnnl, t.type, t.dims, t.strides); };
    DnnlOwner source = layout(g.source), weights = AnyDesc(dnnl, g.weights.type, g.weights.dims);
    DnnlOwner weights_layout = layout(g.weights), destination = layout(g.destination);
    if (!source || !weights || !weights_layout || !destination) return nullptr;
    DnnlObject desc = nullptr;
    if (dnnl.convolution_forward_primitive_desc_create(
            &desc, dnnl.engine, OneDnn::kForwardInference, OneDnn::kDirect, source.get(), weights.get(), nullptr,
            destination.get(), g.strides.data(), g.dilations.data(), g.pad_low.data(), g.pad_high.data(),
            made.empty() ? dnnl.attributes : dnnl.adding) != 0) {
      return nullptr;
    }
    DnnlOwner owner(desc, dnnl.primitive_desc_destroy);
    // The others go on adding to what is there, or are not as fast.
    std::string name = DnnlImplementation(dnnl, desc);
    if (name.rfind("brgconv", 0) != 0 || name.find("avx512") == std::string::npos) return nullptr;
    constexpr int64_t kSize = 4;
    made.push_back({std::move(owner), std::move(source), std::move(weights_layout), part.source_offset * kSize,
                    part.weights_offset * kSize});
    if (!result) result = std::move(destination);
  }
  DnnlPart first = std::move(made.front());
  made.erase(made.begin());
  return DnnlCall(dnnl, threads, std::move(first.desc), {std::move(first.first), OneDnn::kSourceArg, OneDnn::kSourceMd},
                  {std::move(first.second), OneDnn::kWeightsArg, OneDnn::kWeightsMd},
                  {std::move(result), OneDnn::kDestinationArg, OneDnn::kDestinationMd},
                  {s.kernel_source, std::move(key)}, Turning(s, Kind::kForward), std::move(made));
}

}  // namespace

std::unique_ptr<Prepared> OneDnnConv(const ConvShape& s, bool* mixes) {
  size_t rank = s.windows.size();
  if (rank < 1 || rank > 3) return nullptr;
  bool f32 = s.input_type == Element::kF32 && s.output_type == Element::kF32;
  bool bf16 = s.input_type == Element::kBF16 && (s.output_type == Element::kBF16 || s.output_type == Element::kF32);
  // Narrower results wrap around, where oneDNN's are saturated.
  bool int8 = (s.input_type == Element::kS8 || s.input_type == Element::kU8) && s.kernel_type == Element::kS8 &&
              s.output_type == Element::kS32;
  if (!int8 && ((!f32 && !bf16) || s.kernel_type != s.input_type)) return nullptr;
  const OneDnn* dnnl = OneDnn::Get();
  if (!dnnl || (int8 && !dnnl->ExactBytes())) return nullptr;
  bool dilated = false;
  double kernel = 1, output = 1;
  for (const ConvWindow& w : s.windows) {
    dilated = dilated || w.input_dilation > 1;
    kernel *= static_cast<double>(w.kernel);
    output *= static_cast<double>(w.output);
  }
  constexpr int64_t kWhole = 32;  // a row of an AMX tile
  const bool depthwise = s.kernel_features == 1 && s.group_outputs() == 1 && s.groups() > 1;
  *mixes = bf16 && s.kernel_features % kWhole != 0 && !depthwise;
  if (int8) return s.batch_groups == 1 && !dilated ? Make(*dnnl, s, Kind::kForward) : nullptr;  // it has no gradients
  // Of one spatial dimension oneDNN has no such loop for a feature in each group.
  if (dilated && rank == 1 && s.groups() > 1 && s.kernel_features == 1) return nullptr;
  if (dilated) return s.batch_groups == 1 ? Make(*dnnl, s, Kind::kBackwardData) : nullptr;
  if (s.feature_groups == 1 && (s.batch_groups > 1 || kernel > output)) {
    if (auto made = Make(*dnnl, s, Kind::kBackwardWeights)) {
      *mixes = false;  // here a NaN stands for an infinity at worst
      return made;
    }
  }
  if (auto made = MakeParts(*dnnl, s)) return made;
  return s.batch_groups == 1 ? Make(*dnnl, s, Kind::kForward) : nullptr;
}

}  // namespace ferrule

// Convolutions, see library_call.h. One StableHLO convolution covers what oneDNN calls three things:
//   forward           no input dilation
//   backward data     input dilation: transposed convolutions, gradients of strided ones
//   backward weights  the "kernel" is larger than the result: gradients of kernels, as JAX writes them
#include <algorithm>

#include "dnnl_call.h"

namespace ferrule_sycl {
namespace {

enum class Kind { kForward, kBackwardData, kBackwardWeights };

struct Dimension {  // sizes and strides of one spatial dimension
  int64_t input, kernel, output, input_stride, kernel_stride, output_stride;
  int64_t stride, pad_low, input_dilation, kernel_dilation;
  bool reversed;
};

struct Conv {
  Conv(const FerruleCallDesc& desc);

  Kind kind() const;
  bool reversed_as(bool wanted) const {
    return std::all_of(dimensions.begin(), dimensions.end(),
                       [&](const Dimension& d) { return d.kernel == 1 || d.reversed == wanted; });
  }

  int input_type, kernel_type, output_type;
  int64_t feature_groups, batch_groups;
  int64_t input_batch, input_features, kernel_features, output_batch, output_features;
  int64_t input_batch_stride, input_feature_stride, kernel_input_stride, kernel_output_stride;
  int64_t output_batch_stride, output_feature_stride;
  std::vector<Dimension> dimensions;

  int64_t groups() const { return feature_groups > 1 ? feature_groups : batch_groups; }
  int64_t group_outputs() const { return output_features / groups(); }
};

Conv::Conv(const FerruleCallDesc& desc) {
  Attributes attributes(desc);
  if (desc.num_operands < 2 || desc.num_results != 1) Refuse("a convolution has two operands or more, and one result");
  const FerruleShape &input = desc.operands[0], &kernel = desc.operands[1], &output = desc.results[0];
  if (input.rank < 3 || input.rank > 5) CannotDo("convolution with other than 1 to 3 spatial dimensions");
  if (kernel.rank != input.rank || output.rank != input.rank) Refuse("the ranks of a convolution's tensors differ");
  size_t rank = static_cast<size_t>(input.rank) - 2;
  auto strides_of = [](const FerruleShape& s) { return RowMajor({s.dims, s.dims + s.rank}); };
  std::vector<int64_t> is = strides_of(input), ks = strides_of(kernel), os = strides_of(output);
  auto dimension = [&](const char* name) {
    int64_t d = attributes.Int(name);
    if (d < 0 || d >= input.rank) Refuse(std::string(name) + " is no dimension");
    return d;
  };
  auto spatial = [&](const char* name) {
    std::vector<int64_t> all = attributes.Ints(name, rank);
    for (int64_t d : all) {
      if (d < 0 || d >= input.rank) Refuse(std::string(name) + " has a number that is no dimension");
    }
    return all;
  };
  int64_t input_b = dimension("input_batch_dimension"), input_f = dimension("input_feature_dimension");
  int64_t kernel_i = dimension("kernel_input_feature_dimension");
  int64_t kernel_o = dimension("kernel_output_feature_dimension");
  int64_t output_b = dimension("output_batch_dimension"), output_f = dimension("output_feature_dimension");
  std::vector<int64_t> input_s = spatial("input_spatial_dimensions"), kernel_s = spatial("kernel_spatial_dimensions");
  std::vector<int64_t> output_s = spatial("output_spatial_dimensions");
  std::vector<int64_t> strides = attributes.Ints("window_strides", rank),
                       padding = attributes.Ints("padding", 2 * rank);
  std::vector<int64_t> input_dilation = attributes.Ints("lhs_dilation", rank);
  std::vector<int64_t> kernel_dilation = attributes.Ints("rhs_dilation", rank);
  std::vector<int64_t> reversal = attributes.Ints("window_reversal", rank);
  feature_groups = attributes.Int("feature_group_count", 1);
  batch_groups = attributes.Int("batch_group_count", 1);
  input_type = DnnlType(input.dtype), kernel_type = DnnlType(kernel.dtype), output_type = DnnlType(output.dtype);
  input_batch = input.dims[input_b], input_features = input.dims[input_f], kernel_features = kernel.dims[kernel_i];
  output_batch = output.dims[output_b], output_features = output.dims[output_f];
  input_batch_stride = is[input_b], input_feature_stride = is[input_f];
  kernel_input_stride = ks[kernel_i], kernel_output_stride = ks[kernel_o];
  output_batch_stride = os[output_b], output_feature_stride = os[output_f];
  int64_t elements = input_batch * input_features * kernel_features * output_features;
  for (size_t d = 0; d < rank; ++d) {
    Dimension one;
    one.input = input.dims[input_s[d]], one.input_stride = is[input_s[d]];
    one.kernel = kernel.dims[kernel_s[d]], one.kernel_stride = ks[kernel_s[d]];
    one.output = output.dims[output_s[d]], one.output_stride = os[output_s[d]];
    one.stride = strides[d], one.pad_low = padding[2 * d];
    one.input_dilation = input_dilation[d], one.kernel_dilation = kernel_dilation[d];
    one.reversed = reversal[d] != 0;
    elements *= one.input * one.kernel * one.output;
    if (one.stride < 1 || one.input_dilation < 1 || one.kernel_dilation < 1) {
      Refuse("strides and dilations must be at least 1");
    }
    dimensions.push_back(one);
  }
  if (elements == 0) CannotDo("convolution of nothing: sizes must be at least 1");
  if (feature_groups < 1 || batch_groups < 1 || (feature_groups > 1 && batch_groups > 1) ||
      input_features != kernel_features * feature_groups || output_features % groups() != 0 ||
      output_features != kernel.dims[kernel_o] || input_batch != output_batch * batch_groups) {
    Refuse("batch, feature and group counts do not fit each other");
  }
  bool wider = output_type == Dnnl::kF32 && (input_type == Dnnl::kBF16 || input_type == Dnnl::kF16);
  bool known = input_type == Dnnl::kF32 || input_type == Dnnl::kBF16 || input_type == Dnnl::kF16;
  if (!known || kernel_type != input_type || !(output_type == input_type || wider)) {
    CannotDo("convolution of these element types");
  }
}

Kind Conv::kind() const {
  double kernel = 1, output = 1;
  for (const Dimension& d : dimensions) {
    if (d.input_dilation > 1) return Kind::kBackwardData;
    kernel *= static_cast<double>(d.kernel), output *= static_cast<double>(d.output);
  }
  if (reversed_as(true) && !reversed_as(false)) return Kind::kBackwardData;
  return feature_groups == 1 && (batch_groups > 1 || kernel > output) ? Kind::kBackwardWeights : Kind::kForward;
}

// A convolution in oneDNN's words.
struct Problem {
  DnnlTensor source, weights, destination;
  std::vector<int64_t> strides, dilations, pad_low, pad_high;

  // oneDNN wants a padding at the end that makes its formula for the size of the result come out; a stride leaves a
  // choice.
  bool AddWindow(int64_t from, int64_t kernel, int64_t to, int64_t stride, int64_t dilation, int64_t low) {
    int64_t least = (to - 1) * stride - from + (kernel - 1) * dilation + 1 - low;
    int64_t high = std::max<int64_t>(0, least);
    strides.push_back(stride), dilations.push_back(dilation - 1), pad_low.push_back(low), pad_high.push_back(high);
    return low >= 0 && high - least < stride;
  }
  bool ChannelsLast() const {
    auto last = [](const DnnlTensor& t) { return t.strides[1] == 1 || t.dims[1] == 1; };
    return last(source) && last(destination);
  }
};

// False when oneDNN has nothing of the kind for it.
bool Describe(const Conv& c, Kind kind, Problem* p) {
  auto groups = [&](int64_t stride) {
    if (c.groups() > 1) p->weights.Add(c.groups(), stride);
  };
  bool fits = true;
  switch (kind) {
    case Kind::kForward:
      p->source.type = c.input_type, p->weights.type = c.kernel_type, p->destination.type = c.output_type;
      p->source.Add(c.input_batch, c.input_batch_stride), p->source.Add(c.input_features, c.input_feature_stride);
      groups(c.group_outputs() * c.kernel_output_stride);
      p->weights.Add(c.group_outputs(), c.kernel_output_stride);
      p->weights.Add(c.kernel_features, c.kernel_input_stride);
      p->destination.Add(c.output_batch, c.output_batch_stride);
      p->destination.Add(c.output_features, c.output_feature_stride);
      fits = c.batch_groups == 1 && c.reversed_as(false);
      break;
    case Kind::kBackwardData:
      p->source.type = c.output_type, p->weights.type = c.kernel_type, p->destination.type = c.input_type;
      p->source.Add(c.output_batch, c.output_batch_stride), p->source.Add(c.output_features, c.output_feature_stride);
      groups(c.group_outputs() * c.kernel_output_stride);
      p->weights.Add(c.kernel_features, c.kernel_input_stride);
      p->weights.Add(c.group_outputs(), c.kernel_output_stride);
      p->destination.Add(c.input_batch, c.input_batch_stride);
      p->destination.Add(c.input_features, c.input_feature_stride);
      fits = c.batch_groups == 1 && c.reversed_as(true);
      break;
    case Kind::kBackwardWeights:
      p->source.type = c.input_type, p->weights.type = c.output_type, p->destination.type = c.kernel_type;
      p->source.Add(c.input_features, c.input_feature_stride), p->source.Add(c.input_batch, c.input_batch_stride);
      groups(c.group_outputs() * c.output_feature_stride);
      p->weights.Add(c.group_outputs(), c.output_feature_stride);
      p->weights.Add(c.output_batch, c.output_batch_stride);
      p->destination.Add(c.kernel_features, c.kernel_input_stride);
      p->destination.Add(c.output_features, c.kernel_output_stride);
      fits = c.feature_groups == 1 && c.reversed_as(false);
  }
  for (const Dimension& d : c.dimensions) {
    switch (kind) {
      case Kind::kForward:
        p->source.Add(d.input, d.input_stride), p->weights.Add(d.kernel, d.kernel_stride);
        p->destination.Add(d.output, d.output_stride);
        fits &= d.input_dilation == 1;
        fits &= p->AddWindow(d.input, d.kernel, d.output, d.stride, d.kernel_dilation, d.pad_low);
        break;
      case Kind::kBackwardData:
        p->source.Add(d.output, d.output_stride), p->weights.Add(d.kernel, d.kernel_stride);
        p->destination.Add(d.input, d.input_stride);
        fits &= d.stride == 1;
        fits &= p->AddWindow(d.output, d.kernel, d.input, d.input_dilation, d.kernel_dilation,
                             (d.kernel - 1) * d.kernel_dilation - d.pad_low);
        break;
      case Kind::kBackwardWeights:
        p->source.Add(d.input, d.input_stride), p->weights.Add(d.output, d.output_stride);
        p->destination.Add(d.kernel, d.kernel_stride);
        fits &= d.input_dilation == 1;
        fits &= p->AddWindow(d.input, d.output, d.kernel, d.kernel_dilation, d.stride, d.pad_low);
    }
  }
  return fits;
}

// `narrow_type` is the operands' type; `own_layouts` leaves the images' layout to oneDNN.
DnnlOwner MakeDesc(DnnlObject engine, int narrow_type, Kind kind, const Problem& p, bool own_layouts,
                   DnnlObject options) {
  const Dnnl& dnnl = Dnnl::Get();
  auto image = [&](const DnnlTensor& t) { return own_layouts ? t.AnyDesc() : t.Desc(); };
  DnnlOwner source = image(p.source), weights = p.weights.AnyDesc(), destination = image(p.destination);
  DnnlObject made = nullptr;
  const int64_t *strides = p.strides.data(), *dilations = p.dilations.data();
  const int64_t *low = p.pad_low.data(), *high = p.pad_high.data();
  if (kind == Kind::kForward) {
    DnnlCheck(dnnl.convolution_forward_primitive_desc_create(&made, engine, Dnnl::kForwardInference, Dnnl::kDirect,
                                                             source.get(), weights.get(), nullptr, destination.get(),
                                                             strides, dilations, low, high, options),
              "do this convolution");
    return {made, dnnl.primitive_desc_destroy};
  }
  // The backward primitives ask for the forward one as a hint. Its types must be a forward's: the gradient's type may
  // be the wider one.
  auto narrow = [&](DnnlTensor t) {
    t.type = narrow_type;
    return t.AnyDesc();
  };
  DnnlOwner forward_source = narrow(p.source), forward_weights = narrow(p.weights);
  DnnlOwner forward_destination = narrow(p.destination);
  DnnlObject forward = nullptr;
  DnnlCheck(dnnl.convolution_forward_primitive_desc_create(
                &forward, engine, Dnnl::kForwardTraining, Dnnl::kDirect, forward_source.get(), forward_weights.get(),
                nullptr, forward_destination.get(), strides, dilations, low, high, options),
            "do this convolution forward");
  DnnlOwner hint(forward, dnnl.primitive_desc_destroy);
  if (kind == Kind::kBackwardData) {
    DnnlCheck(dnnl.convolution_backward_data_primitive_desc_create(&made, engine, Dnnl::kDirect, source.get(),
                                                                   weights.get(), destination.get(), strides, dilations,
                                                                   low, high, forward, options),
              "do this convolution backward");
  } else {
    DnnlCheck(dnnl.convolution_backward_weights_primitive_desc_create(&made, engine, Dnnl::kDirect, source.get(),
                                                                      weights.get(), nullptr, destination.get(),
                                                                      strides, dilations, low, high, forward, options),
              "do this gradient of a convolution's kernel");
  }
  return {made, dnnl.primitive_desc_destroy};
}

}  // namespace

std::unique_ptr<FerruleCall> PrepareConv(FerruleDevice* device, const FerruleCallDesc& desc) {
  Conv conv(desc);
  Kind kind = conv.kind();
  Problem p;
  if (!Describe(conv, kind, &p)) {
    if (kind != Kind::kBackwardWeights) CannotDo("convolution of this geometry (see native/sycl/library_call.h)");
    kind = Kind::kForward;
    p = {};
    if (!Describe(conv, kind, &p)) CannotDo("convolution of this geometry (see native/sycl/library_call.h)");
  }
  auto call = std::make_unique<DnnlCall>(device);
  Epilogue epilogue(desc, p.destination, 1);
  if (kind != Kind::kForward && !epilogue.empty()) CannotDo("backward convolution with an epilogue");
  DnnlOwner options = epilogue.Attributes();
  // oneDNN's kernels take the images as they are when channels are innermost; weights always go to its own layout.
  Choice choice;
  for (bool widened : {false, true}) {
    for (bool own_layouts : {false, true}) {
      if ((widened && !IsShortFloat(conv.input_type)) || (!own_layouts && !p.ChannelsLast())) continue;
      choice.Try([&] {
        Problem inside = p;
        if (widened) inside.source.type = inside.weights.type = inside.destination.type = Dnnl::kF32;
        return MakeDesc(DnnlQueue::Of(device).engine.get(), widened ? Dnnl::kF32 : conv.kernel_type, kind, inside,
                        own_layouts, options.get());
      });
    }
  }
  DnnlOwner owner = choice.Take();
  switch (kind) {
    case Kind::kForward:
      call->Add(std::move(owner),
                {{p.source, Dnnl::kSourceArg, Dnnl::kSourceMd, false, 0},
                 {p.weights, Dnnl::kWeightsArg, Dnnl::kWeightsMd, false, 1},
                 {p.destination, Dnnl::kDestinationArg, Dnnl::kDestinationMd, true, 0}},
                epilogue);
      break;
    case Kind::kBackwardData:
      call->Add(std::move(owner),
                {{p.destination, Dnnl::kDiffDestinationArg, Dnnl::kDiffDestinationMd, false, 0},
                 {p.weights, Dnnl::kWeightsArg, Dnnl::kWeightsMd, false, 1},
                 {p.source, Dnnl::kDiffSourceArg, Dnnl::kDiffSourceMd, true, 0}},
                epilogue);
      break;
    case Kind::kBackwardWeights:
      call->Add(std::move(owner),
                {{p.source, Dnnl::kSourceArg, Dnnl::kSourceMd, false, 0},
                 {p.destination, Dnnl::kDiffDestinationArg, Dnnl::kDiffDestinationMd, false, 1},
                 {p.weights, Dnnl::kDiffWeightsArg, Dnnl::kDiffWeightsMd, true, 0}},
                epilogue);
  }
  return call;
}

}  // namespace ferrule_sycl

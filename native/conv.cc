// Library call "conv": StableHLO's convolution with its own attributes.
#include "conv.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "attributes.h"
#include "calls.h"
#include "conv_taps.h"
#include "epilogue.h"
#include "program.h"

namespace ferrule {

bool IsDense(const ConvShape& s) {
  int64_t next = s.output_features;
  for (size_t d = s.windows.size(); d-- > 0; next *= s.windows[d].output) {
    if (s.windows[d].output > 1 && s.windows[d].output_stride != next) return false;
  }
  return (s.output_features == 1 || s.output_feature_stride == 1) &&
         (s.output_batch == 1 || s.output_batch_stride == next);
}

namespace {

std::vector<int64_t> RowMajor(const std::vector<int64_t>& dims) {
  std::vector<int64_t> strides(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

// A sum of nothing: no input features, no taps or an empty input.
class ZeroFill : public Prepared {
 public:
  explicit ZeroFill(int64_t bytes) : bytes_(bytes) {}
  Status Run(void* const*, void* const* results, ExecContext&) const override {
    std::memset(results[0], 0, static_cast<size_t>(bytes_));
    return Status();
  }

 private:
  int64_t bytes_;
};

// The implementation for a shape; it may run the epilogue itself.
std::unique_ptr<Prepared> Choose(const ConvShape& s, const EpilogueCall& epilogue, bool* finishes) {
  if (s.output_elements == 0 || s.input_elements == 0 || s.kernel_elements == 0) {
    return std::make_unique<ZeroFill>(s.output_elements * SizeOf(s.output_type));
  }
  // For comparisons: FERRULE_CONV=own, few, lines, planes, windows or onednn leaves the others out.
  const char* value = std::getenv("FERRULE_CONV");
  const std::string wish = value ? value : "";
  auto suit = [&](bool library) {
    return (wish == "lines" && !s.windows.empty()) || (wish.empty() && LinesSuit(s, library));
  };
  auto gradient = wish.empty() ? DepthwiseGradientConv(s) : nullptr;
  if (gradient && DepthwiseGradientSuits(s)) return gradient;
  auto rows = wish.empty() ? DepthwiseRowsConv(s) : nullptr;
  if (rows && DepthwiseRowsSuit(s)) return rows;
  if (wish.empty() || wish == "planes") {
    if (auto planes = PlanesConv(s)) return planes;
  }
  if (!gradient && suit(true)) return LinesConv(s);
  if (wish.empty() || wish == "few") {
    if (auto few = FewOutputsConv(s)) return few;
  }
  if (wish.empty() && PointwiseSuits(s)) {
    if (auto product = PointwiseConv(s, epilogue, finishes)) return product;
  }
  if (wish == "windows" || (wish.empty() && WindowsSuit(s))) {
    if (auto windows = WindowsConv(s, epilogue, finishes)) return windows;
  }
  if (wish == "windows" || (wish.empty() && WindowsGradientSuits(s))) {
    if (auto windows = WindowsGradientConv(s)) return windows;
  }
  auto own = [&]() -> std::unique_ptr<Prepared> {
    if (gradient) return std::move(gradient);
    if (rows) return std::move(rows);
    if (suit(false)) return LinesConv(s);
    if (auto depthwise = DepthwiseConv(s)) return depthwise;
    // A check of the image (FiniteConv) stands around what is made here, and the epilogue behind both.
    if (auto product = PointwiseConv(s, EpilogueCall(), finishes)) return product;
    return GeneralConv(s);
  };
  if (wish.empty() || wish == "onednn") {
    bool mixes = false;
    if (auto fast = OneDnnConv(s, &mixes)) return mixes ? FiniteConv(s, std::move(fast), own()) : std::move(fast);
  }
  return own();
}

Result<std::unique_ptr<Prepared>> PrepareConv(const CallDesc& call) {
  Attributes attributes(call);
  const EpilogueCall epilogue(call, &attributes);
  FERRULE_RETURN_IF_ERROR(attributes.status());
  const Shape &input = call.operands[0], &kernel = call.operands[1], &output = call.results[epilogue.home()];
  if (input.dims.size() < 2 || input.dims.size() > 2 + ConvTaps::kMaxRank || kernel.dims.size() != input.dims.size() ||
      output.dims.size() != input.dims.size()) {
    attributes.Fail("the operands and the result differ in rank, or have less than two or more than 34 dimensions");
  }
  FERRULE_RETURN_IF_ERROR(attributes.status());
  size_t rank = input.dims.size() - 2;
  auto strides = attributes.Ints("window_strides", rank), padding = attributes.Ints("padding", 2 * rank);
  auto input_dilation = attributes.Ints("lhs_dilation", rank), kernel_dilation = attributes.Ints("rhs_dilation", rank);
  auto reversal = attributes.Ints("window_reversal", rank);
  auto input_dims = attributes.Ints("input_spatial_dimensions", rank);
  auto kernel_dims = attributes.Ints("kernel_spatial_dimensions", rank);
  auto output_dims = attributes.Ints("output_spatial_dimensions", rank);
  int64_t input_batch = attributes.Int("input_batch_dimension");
  int64_t input_feature = attributes.Int("input_feature_dimension");
  int64_t kernel_input = attributes.Int("kernel_input_feature_dimension");
  int64_t kernel_output = attributes.Int("kernel_output_feature_dimension");
  int64_t output_batch = attributes.Int("output_batch_dimension");
  int64_t output_feature = attributes.Int("output_feature_dimension");
  ConvShape s{};
  s.feature_groups = attributes.Int("feature_group_count", 1);
  s.batch_groups = attributes.Int("batch_group_count", 1);
  FERRULE_RETURN_IF_ERROR(attributes.status());
  auto permutation = [&](int64_t first, int64_t second, const std::vector<int64_t>& rest) {
    std::vector<bool> seen(rank + 2, false);
    auto see = [&](int64_t d) {
      if (d < 0 || d >= static_cast<int64_t>(rank + 2) || seen[d]) {
        attributes.Fail("the dimension numbers are not a permutation");
      } else {
        seen[d] = true;
      }
    };
    see(first), see(second);
    for (int64_t d : rest) see(d);
  };
  permutation(input_batch, input_feature, input_dims);
  permutation(kernel_input, kernel_output, kernel_dims);
  permutation(output_batch, output_feature, output_dims);
  FERRULE_RETURN_IF_ERROR(attributes.status());

  s.input_type = ElementOf(input), s.kernel_type = ElementOf(kernel), s.output_type = ElementOf(output);
  Result<Accumulator> accumulator = AccumulatorFor(s.input_type, s.kernel_type, s.output_type);
  FERRULE_RETURN_IF_ERROR(accumulator.status());
  s.accumulator = *accumulator;
  auto is = RowMajor(input.dims), ks = RowMajor(kernel.dims), os = RowMajor(output.dims);
  s.input_batch = input.dims[input_batch], s.input_features = input.dims[input_feature];
  s.kernel_features = kernel.dims[kernel_input];
  s.output_batch = output.dims[output_batch], s.output_features = output.dims[output_feature];
  s.input_batch_stride = is[input_batch], s.input_feature_stride = is[input_feature];
  s.kernel_input_stride = ks[kernel_input], s.kernel_output_stride = ks[kernel_output];
  s.output_batch_stride = os[output_batch], s.output_feature_stride = os[output_feature];
  s.input_elements = input.elements(), s.kernel_elements = kernel.elements(), s.output_elements = output.elements();
  for (size_t d = 0; d < rank; ++d) {
    s.windows.push_back({input.dims[input_dims[d]], kernel.dims[kernel_dims[d]], output.dims[output_dims[d]],
                         strides[d], padding[2 * d], padding[2 * d + 1], input_dilation[d], kernel_dilation[d],
                         reversal[d] != 0, is[input_dims[d]], ks[kernel_dims[d]], os[output_dims[d]]});
    if (strides[d] < 1 || input_dilation[d] < 1 || kernel_dilation[d] < 1) {
      attributes.Fail("strides and dilations must be at least 1");
    }
  }
  if (s.feature_groups < 1 || s.batch_groups < 1 || (s.feature_groups > 1 && s.batch_groups > 1) ||
      s.input_features != s.kernel_features * s.feature_groups || s.output_features % s.groups() != 0 ||
      s.output_features != kernel.dims[kernel_output] || s.input_batch != s.output_batch * s.batch_groups) {
    attributes.Fail("batch, feature and group counts do not fit each other");
  }
  FERRULE_RETURN_IF_ERROR(attributes.status());
  if (call.sources.size() > 1) s.kernel_source = call.sources[1];
  if (epilogue && !IsDense(s)) {
    attributes.Fail("an epilogue needs a result whose features lie side by side");
    return attributes.status();
  }
  bool finishes = false;
  std::unique_ptr<Prepared> conv = Choose(s, epilogue, &finishes);
  if (!epilogue || finishes) return conv;
  return ThenEpilogue(std::move(conv), s.output_elements / std::max<int64_t>(1, s.output_features), s.output_features,
                      epilogue);
}

[[maybe_unused]] const bool registered = RegisterCall("conv", &PrepareConv);

}  // namespace
}  // namespace ferrule

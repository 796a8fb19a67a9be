// A convolution as StableHLO means it, with the dimension numbers resolved to strides. Implementations: the general one
// (patches times a matrix), those for some shapes, and oneDNN's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "calls.h"
#include "divide.h"
#include "element.h"
#include "epilogue.h"
#include "gemm_blocked.h"
#include "status.h"

namespace ferrule {

// One spatial dimension. Strides count elements of the respective tensor.
struct ConvWindow {
  int64_t input, kernel, output;  // sizes
  int64_t stride, pad_low, pad_high, input_dilation, kernel_dilation;
  bool reversed;
  int64_t input_stride, kernel_stride, output_stride;
};

struct ConvShape {
  Element input_type, kernel_type, output_type;
  Accumulator accumulator;
  int64_t feature_groups, batch_groups;
  int64_t input_batch, input_features;    // whole sizes of the input
  int64_t kernel_features;                // input features that one output feature sees
  int64_t output_batch, output_features;  // whole sizes of the output
  int64_t input_batch_stride, input_feature_stride;
  int64_t kernel_input_stride, kernel_output_stride;
  int64_t output_batch_stride, output_feature_stride;
  std::vector<ConvWindow> windows;
  int64_t input_elements, kernel_elements, output_elements;
  OperandSource kernel_source;

  // Feature groups and batch groups never occur together: both split the output features.
  int64_t groups() const { return feature_groups > 1 ? feature_groups : batch_groups; }
  int64_t group_outputs() const { return output_features / groups(); }
  // Where group `g` of the input begins.
  int64_t input_group_stride() const {
    return feature_groups > 1 ? kernel_features * input_feature_stride
                              : input_batch / batch_groups * input_batch_stride;
  }
};

// Whether results lie one after the other, those of one position side by side.
bool IsDense(const ConvShape& shape);

// Works for every type and shape.
std::unique_ptr<Prepared> GeneralConv(const ConvShape& shape);

// Feature groups of one input feature each; null for other shapes.
std::unique_ptr<Prepared> DepthwiseConv(const ConvShape& shape);

// The same with channels innermost, and of one output feature each; null for other shapes.
std::unique_ptr<Prepared> DepthwiseRowsConv(const ConvShape& shape);
// Whether that is better than a library that knows the shape.
bool DepthwiseRowsSuit(const ConvShape& shape);

// The same with channels first, of images; null for other shapes, and where something else is faster.
std::unique_ptr<Prepared> PlanesConv(const ConvShape& shape);

// Few output features with channels innermost; null for other shapes, and where something else is faster.
std::unique_ptr<Prepared> FewOutputsConv(const ConvShape& shape);

// Gradients of such kernels with channels innermost; null for other shapes.
std::unique_ptr<Prepared> DepthwiseGradientConv(const ConvShape& shape);
// Whether that is better than a library that knows the shape.
bool DepthwiseGradientSuits(const ConvShape& shape);

// Kernels of one element at every position; null for other shapes. With an epilogue it may run it, and says so.
std::unique_ptr<Prepared> PointwiseConv(const ConvShape& shape, const EpilogueCall& epilogue, bool* finishes);
// Whether that is better than a library that knows the shape.
bool PointwiseSuits(const ConvShape& shape);

// Sums go along lines of the result, which must have spatial dimensions: for convolutions with few features.
std::unique_ptr<Prepared> LinesConv(const ConvShape& shape);
// Whether that is better than a library that knows the shape, or than the others here.
bool LinesSuit(const ConvShape& shape, bool library);

// Windows where they lie, with features innermost; null for other shapes and types. With an epilogue it may run it, and
// says so.
std::unique_ptr<Prepared> WindowsConv(const ConvShape& shape, const EpilogueCall& epilogue, bool* finishes);
// Whether that is better than a library that knows the shape.
bool WindowsSuit(const ConvShape& shape);

// Gradients of kernels with features innermost; null for other shapes and types.
std::unique_ptr<Prepared> WindowsGradientConv(const ConvShape& shape);
// Whether that is better than a library that knows the shape.
bool WindowsGradientSuits(const ConvShape& shape);

// oneDNN's convolution, or null when it is absent, does not know this case, or is slower at it than GeneralConv.
// `mixes`: it may multiply what no window has by zero, since it takes several bf16 at once, and where a group's
// features are no multiple of so many, the rest is of the next group or of the next pixel. An infinity or a NaN there
// makes a NaN where a number is right.
std::unique_ptr<Prepared> OneDnnConv(const ConvShape& shape, bool* mixes);

// `finite` where all elements of a bf16 image are, `any` where one is not.
std::unique_ptr<Prepared> FiniteConv(const ConvShape& shape, std::unique_ptr<Prepared> finite,
                                     std::unique_ptr<Prepared> any);

}  // namespace ferrule

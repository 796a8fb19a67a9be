// Convolutions with kernels of one element (1x1), at every position: matrix products of the operands where they lie.
// GeneralConv would copy the whole input first.
#include "conv.h"
#include "cpu_features.h"
#include "gemm_blocked.h"
#include "program.h"

namespace ferrule {
namespace {

// A positions' dimensions (the batch, then the windows) as one dimension of a matrix, and batches of matrices where the
// batch does not continue the rest.
struct Positions {
  int64_t count = 1, stride = 0;  // within a batch of the product; the stride is 0 while there is one position only
  int64_t batches = 1, batch_stride = 0;
  bool even = true;  // whether the positions of an image are all one stride apart
};

Positions PositionsOf(int64_t images, int64_t image_stride, const std::vector<ConvWindow>& windows,
                      int64_t ConvWindow::* stride) {
  Positions p;
  for (size_t d = windows.size(); d-- > 0;) {
    if (windows[d].output == 1) continue;
    if (p.count == 1) p.stride = windows[d].*stride;
    p.even = p.even && windows[d].*stride == p.count * p.stride;
    p.count *= windows[d].output;
  }
  p.batches = images, p.batch_stride = image_stride;
  return p;
}

void JoinBatches(Positions& p) {
  if (p.count == 1) p.stride = p.batch_stride;
  p.count *= p.batches;
  p.batches = 1, p.batch_stride = 0;
}

bool Continues(const Positions& p) { return p.batches == 1 || p.count == 1 || p.batch_stride == p.count * p.stride; }

class Pointwise : public Prepared {
 public:
  Pointwise(const GemmShape& shape, Accumulator accumulator, bool kernel_first, const EpilogueCall& epilogue)
      : shape_(shape), accumulator_(accumulator), kernel_first_(kernel_first), epilogue_(epilogue) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    const EpilogueRun run(epilogue_, operands, results);
    GemmExtras extras;
    extras.epilogue = run.get();
    BlockedGemm(shape_, accumulator_, operands[kernel_first_ ? 1 : 0], operands[kernel_first_ ? 0 : 1],
                results[epilogue_.home()], context.pool, extras);
    return Status();
  }

 private:
  GemmShape shape_;
  Accumulator accumulator_;
  bool kernel_first_;  // features are far apart in the result, positions adjacent
  EpilogueCall epilogue_;
};

}  // namespace

std::unique_ptr<Prepared> PointwiseConv(const ConvShape& s, const EpilogueCall& epilogue, bool* finishes) {
  if (s.groups() != 1) return nullptr;
  for (const ConvWindow& w : s.windows) {
    if (w.kernel != 1 || w.stride != 1 || w.pad_low != 0 || w.pad_high != 0 || w.input_dilation != 1) return nullptr;
  }
  Positions from = PositionsOf(s.input_batch, s.input_batch_stride, s.windows, &ConvWindow::input_stride);
  Positions to = PositionsOf(s.output_batch, s.output_batch_stride, s.windows, &ConvWindow::output_stride);
  if (!from.even || !to.even) return nullptr;
  if (Continues(from) && Continues(to)) JoinBatches(from), JoinBatches(to);
  GemmShape g;
  g.batch = to.batches, g.k = s.kernel_features, g.d_batch = to.batch_stride;
  const bool kernel_first = s.output_features > 1 && s.output_feature_stride != 1;
  if (kernel_first) {
    if (to.count > 1 && to.stride != 1) return nullptr;
    g.m = s.output_features, g.n = to.count, g.d_row = s.output_feature_stride;
    g.a_type = s.kernel_type, g.b_type = s.input_type;
    g.a_row = s.kernel_output_stride, g.a_col = s.kernel_input_stride;
    g.b_row = s.input_feature_stride, g.b_col = from.stride, g.b_batch = from.batch_stride;
  } else {
    g.m = to.count, g.n = s.output_features, g.d_row = to.stride;
    g.a_type = s.input_type, g.b_type = s.kernel_type;
    g.a_row = from.stride, g.a_col = s.input_feature_stride, g.a_batch = from.batch_stride;
    g.b_row = s.kernel_input_stride, g.b_col = s.kernel_output_stride;
  }
  g.d_type = s.output_type;
  const bool finish = epilogue && !kernel_first && IsDense(s);
  if (finish) *finishes = true;
  return std::make_unique<Pointwise>(g, s.accumulator, kernel_first, finish ? epilogue : EpilogueCall());
}

// Two kinds. With channels first the kernel times each image where it lies: oneDNN would rearrange the image and its
// result. Where that is better the compiler has left them so (passes/channels_last.py). And without AVX-512 some where
// oneDNN 3.2 reads the input from memory once for every few output features: 14² x 2048 to 256 takes 5.5 ms where the
// product takes 1.8. At the others of these shapes the product is level, or up to a fifth behind.
bool PointwiseSuits(const ConvShape& s) {
  constexpr int64_t kFeatures = 1536, kBytes = 1 << 20;
  if (s.input_type != Element::kF32) return false;
  const int64_t positions = s.output_elements / s.output_batch / s.output_features;
  if (!s.windows.empty() && s.windows.back().input_stride == 1 && s.output_feature_stride == positions &&
      s.input_feature_stride == positions) {
    return true;
  }
  return ChosenIsa() != Isa::kAvx512 && s.input_features >= kFeatures &&
         s.input_elements * SizeOf(s.input_type) > kBytes;
}

}  // namespace ferrule

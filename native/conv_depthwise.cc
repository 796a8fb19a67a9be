// Convolutions where each output feature sees one input feature: no matrix product, but sums over all features at once.
#include <algorithm>
#include <complex>
#include <string>

#include "aligned_scratch.h"
#include "conv.h"
#include "conv_taps.h"
#include "program.h"
#include "thread_pool.h"

#pragma GCC optimize("O3")

namespace ferrule {
namespace {

template <class T>
class Depthwise : public Prepared {
 public:
  explicit Depthwise(const ConvShape& shape) : s_(shape), taps_(s_) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    int64_t inputs = s_.input_features, outputs = s_.output_features, each = s_.group_outputs();
    int64_t bytes = taps_.count() * outputs * static_cast<int64_t>(sizeof(T));
    T* kernel = static_cast<T*>(context.allocate(context.allocate_self, bytes));
    if (!kernel) return OutOfMemory("no memory for a convolution's kernel, " + std::to_string(bytes) + " bytes");
    int64_t kernel_size = SizeOf(s_.kernel_type), input_size = SizeOf(s_.input_type);
    int64_t output_size = SizeOf(s_.output_type);
    for (int64_t t = 0; t < taps_.count(); ++t) {
      LoadElements(s_.kernel_type, static_cast<const char*>(operands[1]) + taps_.KernelOffset(t) * kernel_size,
                   s_.kernel_output_stride, outputs, kernel + t * outputs);
    }
    int64_t grain = std::max<int64_t>(1, 16384 / (taps_.count() * outputs));
    context.pool->For(taps_.positions(), grain, [&](int64_t begin, int64_t end) {
      static thread_local AlignedScratch sum_scratch, row_scratch, offsets_scratch;
      T* sum = sum_scratch.Get<T>(outputs);
      T* row = row_scratch.Get<T>(inputs);
      int64_t* offsets = offsets_scratch.Get<int64_t>(taps_.count());
      for (int64_t p = begin; p < end; ++p) {
        int64_t batch = taps_.Offsets(p, offsets);
        std::fill_n(sum, outputs, T(0));
        for (int64_t t = 0; t < taps_.count(); ++t) {
          if (offsets[t] < 0) continue;
          LoadElements(s_.input_type, static_cast<const char*>(operands[0]) + (batch + offsets[t]) * input_size,
                       s_.input_feature_stride, inputs, row);
          const T* weights = kernel + t * outputs;
          if (each == 1) {
            for (int64_t c = 0; c < outputs; ++c) sum[c] += row[c] * weights[c];
          } else {
            for (int64_t c = 0; c < inputs; ++c) {
              for (int64_t o = c * each; o < (c + 1) * each; ++o) sum[o] += row[c] * weights[o];
            }
          }
        }
        StoreElements(s_.output_type, static_cast<char*>(results[0]) + taps_.OutputOffset(p) * output_size,
                      s_.output_feature_stride, outputs, sum);
      }
    });
    return Status();
  }

 private:
  ConvShape s_;
  ConvTaps taps_;
};

}  // namespace

std::unique_ptr<Prepared> DepthwiseConv(const ConvShape& shape) {
  if (shape.feature_groups == 1 || shape.kernel_features != 1) return nullptr;
  switch (shape.accumulator) {
    case Accumulator::kF32:
      return std::make_unique<Depthwise<float>>(shape);
    case Accumulator::kF64:
      return std::make_unique<Depthwise<double>>(shape);
    case Accumulator::kU32:
      return std::make_unique<Depthwise<uint32_t>>(shape);
    case Accumulator::kU64:
      return std::make_unique<Depthwise<uint64_t>>(shape);
    case Accumulator::kC64:
      return std::make_unique<Depthwise<std::complex<float>>>(shape);
    case Accumulator::kC128:
      return std::make_unique<Depthwise<std::complex<double>>>(shape);
  }
  return nullptr;
}

}  // namespace ferrule

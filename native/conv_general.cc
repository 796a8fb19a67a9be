// The convolution that works for every type and shape: patches of the input, gathered for a block of output positions,
// times the kernel as a matrix.
#include <algorithm>
#include <cstring>
#include <string>

#include "aligned_scratch.h"
#include "conv.h"
#include "conv_taps.h"
#include "gemm_blocked.h"
#include "program.h"
#include "thread_pool.h"

namespace ferrule {
namespace {

class General : public Prepared {
 public:
  explicit General(const ConvShape& shape) : s_(shape), taps_(s_), positions_(taps_.positions()) {
    depth_ = taps_.count() * s_.kernel_features;
    // Output positions that are all one stride apart can be written by the matrix product itself.
    direct_ = s_.output_feature_stride == 1 || s_.group_outputs() == 1;
    int64_t next = 0;  // the stride that continues the positions so far; 0 when there is only one so far
    auto continues = [&](int64_t size, int64_t stride) {
      if (size == 1) return;
      if (next == 0) {
        row_stride_ = stride;
      } else if (stride != next) {
        direct_ = false;
      }
      next = stride * size;
    };
    for (size_t d = s_.windows.size(); d-- > 0;) continues(s_.windows[d].output, s_.windows[d].output_stride);
    continues(s_.output_batch, s_.output_batch_stride);
    // Enough rows for the product to be efficient, few enough for the patches to stay in the cache.
    int64_t patch_bytes = depth_ * SizeOf(s_.input_type);
    rows_ = std::clamp<int64_t>((512 << 10) / std::max<int64_t>(patch_bytes, 1) / 12 * 12, 12, 384);
  }

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    int64_t outputs = s_.group_outputs(), kernel_bytes = SizeOf(s_.kernel_type) * s_.kernel_elements;
    void* matrices = context.allocate(context.allocate_self, kernel_bytes + 64);
    if (!matrices)
      return OutOfMemory("no memory for a convolution's kernel, " + std::to_string(kernel_bytes) + " bytes");
    BySize(SizeOf(s_.kernel_type), [&]<class T>(T*) {
      ArrangeKernel(static_cast<const T*>(operands[1]), static_cast<T*>(matrices), *context.pool);
    });
    int64_t blocks = (positions_ + rows_ - 1) / rows_;
    GemmShape gemm;
    gemm.a_type = s_.input_type, gemm.b_type = s_.kernel_type, gemm.d_type = s_.output_type;
    gemm.n = outputs, gemm.k = depth_;
    gemm.a_row = depth_, gemm.a_col = 1, gemm.b_row = outputs, gemm.b_col = 1;
    gemm.d_row = direct_ ? row_stride_ : outputs;
    context.pool->For(s_.groups() * blocks, 1, [&](int64_t begin, int64_t end) {
      static thread_local AlignedScratch patches_scratch, rows_scratch;
      static thread_local AlignedScratch offsets_scratch;
      for (int64_t i = begin; i < end; ++i) {
        int64_t group = i / blocks, first = i % blocks * rows_, last = std::min(positions_, first + rows_);
        char* patches = patches_scratch.Get<char>(rows_ * depth_ * SizeOf(s_.input_type));
        char* rows = direct_ ? nullptr : rows_scratch.Get<char>(rows_ * outputs * SizeOf(s_.output_type));
        const char* input =
            static_cast<const char*>(operands[0]) + group * s_.input_group_stride() * SizeOf(s_.input_type);
        char* output =
            static_cast<char*>(results[0]) + group * outputs * s_.output_feature_stride * SizeOf(s_.output_type);
        BySize(SizeOf(s_.input_type), [&]<class T>(T*) {
          GatherPatches(reinterpret_cast<const T*>(input), first, last, reinterpret_cast<T*>(patches),
                        offsets_scratch.Get<int64_t>(taps_.count()));
        });
        GemmShape block = gemm;
        block.m = last - first;
        const char* matrix = static_cast<const char*>(matrices) + group * depth_ * outputs * SizeOf(s_.kernel_type);
        char* to = direct_ ? output + first * row_stride_ * SizeOf(s_.output_type) : rows;
        BlockedGemm(block, s_.accumulator, patches, matrix, to, nullptr);
        if (direct_) continue;
        BySize(SizeOf(s_.output_type), [&]<class T>(T*) {
          Scatter(reinterpret_cast<const T*>(rows), first, last, reinterpret_cast<T*>(output));
        });
      }
    });
    return Status();
  }

 private:
  // kernel[group][tap][input feature][output feature], taps in the order of the patches (turned around if reversed).
  template <class T>
  void ArrangeKernel(const T* kernel, T* to, ThreadPool& pool) const {
    int64_t outputs = s_.group_outputs();
    pool.For(s_.groups() * taps_.count(), std::max<int64_t>(1, 16384 / (s_.kernel_features * outputs)),
             [&](int64_t begin, int64_t end) {
               for (int64_t i = begin; i < end; ++i) {
                 const T* from = kernel + i / taps_.count() * outputs * s_.kernel_output_stride +
                                 taps_.KernelOffset(i % taps_.count());
                 T* row = to + i * s_.kernel_features * outputs;
                 for (int64_t c = 0; c < s_.kernel_features; ++c) {
                   for (int64_t o = 0; o < outputs; ++o) {
                     row[c * outputs + o] = from[c * s_.kernel_input_stride + o * s_.kernel_output_stride];
                   }
                 }
               }
             });
  }

  template <class T>
  void GatherPatches(const T* input, int64_t first, int64_t last, T* to, int64_t* offsets) const {
    int64_t features = s_.kernel_features, step = s_.input_feature_stride;
    for (int64_t p = first; p < last; ++p) {
      const T* from = input + taps_.Offsets(p, offsets);
      for (int64_t t = 0; t < taps_.count(); ++t, to += features) {
        if (offsets[t] < 0) {
          std::memset(static_cast<void*>(to), 0, static_cast<size_t>(features) * sizeof(T));
        } else if (step == 1) {
          std::memcpy(static_cast<void*>(to), from + offsets[t], static_cast<size_t>(features) * sizeof(T));
        } else {
          for (int64_t c = 0; c < features; ++c) to[c] = from[offsets[t] + c * step];
        }
      }
    }
  }

  template <class T>
  void Scatter(const T* rows, int64_t first, int64_t last, T* output) const {
    int64_t outputs = s_.group_outputs();
    for (int64_t p = first; p < last; ++p) {
      int64_t at = taps_.OutputOffset(p);
      for (int64_t o = 0; o < outputs; ++o) output[at + o * s_.output_feature_stride] = *rows++;
    }
  }

  ConvShape s_;
  ConvTaps taps_;
  int64_t positions_, depth_ = 1, rows_ = 1, row_stride_ = 0;
  bool direct_ = false;
};

}  // namespace

std::unique_ptr<Prepared> GeneralConv(const ConvShape& shape) { return std::make_unique<General>(shape); }

}  // namespace ferrule

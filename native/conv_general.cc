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
    arranged_ = s_.groups() == 1 && s_.kernel_output_stride == 1 && s_.kernel_input_stride == s_.output_features;
    for (int64_t t = 0; t < taps_.count(); ++t) {
      arranged_ = arranged_ && taps_.KernelOffset(t) == t * s_.kernel_features * s_.output_features;
    }
    // Enough rows for the product to be efficient, few enough for the patches to stay in the cache.
    int64_t patch_bytes = depth_ * SizeOf(s_.input_type);
    rows_ = std::clamp<int64_t>((512 << 10) / std::max<int64_t>(patch_bytes, 1) / 12 * 12, 12, 384);
  }

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    const char* matrices = static_cast<const char*>(operands[1]);
    if (!arranged_) {
      const int64_t bytes = SizeOf(s_.kernel_type) * s_.kernel_elements;
      void* copy = context.allocate(context.allocate_self, bytes + 64);
      if (!copy) return OutOfMemory("no memory for a convolution's kernel, " + std::to_string(bytes) + " bytes");
      BySize(SizeOf(s_.kernel_type), [&]<class T>(T*) {
        ArrangeKernel(static_cast<const T*>(operands[1]), static_cast<T*>(copy), *context.pool);
      });
      matrices = static_cast<const char*>(copy);
    }
    if (int64_t all = s_.groups() * Blocks(), each = (all - 1) / context.pool->threads() + 1;
        4 * all < 3 * each * context.pool->threads()) {
      return Together(operands[0], matrices, results[0], context);
    }
    context.pool->For(s_.groups() * Blocks(), 1, [&](int64_t begin, int64_t end) {
      static thread_local AlignedScratch patches_scratch, rows_scratch;
      for (int64_t i = begin; i < end; ++i) {
        const Part part = PartAt(i / Blocks(), i % Blocks() * rows_, rows_);
        char* patches = patches_scratch.Get<char>(part.count * depth_ * SizeOf(s_.input_type));
        char* rows =
            direct_ ? nullptr : rows_scratch.Get<char>(part.count * s_.group_outputs() * SizeOf(s_.output_type));
        Gather(operands[0], part, 0, part.count, patches);
        Multiply(part, patches, matrices, results[0], rows, nullptr);
        if (!direct_) Spread(part, 0, part.count, rows, results[0]);
      }
    });
    return Status();
  }

 private:
  // Output positions of a group.
  struct Part {
    int64_t group, first, count;
  };

  int64_t Blocks() const { return (positions_ + rows_ - 1) / rows_; }
  Part PartAt(int64_t group, int64_t first, int64_t count) const {
    return {group, first, std::min(count, positions_ - first)};
  }

  // Where there are too few blocks for the threads, these share the patches and the product of several.
  Status Together(const void* input, const char* matrices, void* output, ExecContext& context) const {
    const int64_t most = std::min(positions_, rows_ * context.pool->threads());
    const int64_t patch = depth_ * SizeOf(s_.input_type), row = s_.group_outputs() * SizeOf(s_.output_type);
    const int64_t bytes = most * patch, row_bytes = direct_ ? 0 : most * row;
    char* patches = static_cast<char*>(context.allocate(context.allocate_self, bytes + row_bytes + 64));
    if (!patches) return OutOfMemory("no memory for a convolution's patches, " + std::to_string(bytes) + " bytes");
    char* rows = patches + (bytes + 63) / 64 * 64;
    for (int64_t i = 0; i < s_.groups() * positions_; i += std::min(most, positions_ - i % positions_)) {
      const Part part = PartAt(i / positions_, i % positions_, most);
      context.pool->For(part.count, std::max<int64_t>(1, kGrainBytes / patch),
                        [&](int64_t begin, int64_t end) { Gather(input, part, begin, end, patches + begin * patch); });
      Multiply(part, patches, matrices, output, rows, context.pool);
      if (direct_) continue;
      context.pool->For(part.count, std::max<int64_t>(1, kGrainBytes / row),
                        [&](int64_t begin, int64_t end) { Spread(part, begin, end, rows + begin * row, output); });
    }
    return Status();
  }

  void Gather(const void* input, const Part& part, int64_t begin, int64_t end, char* patches) const {
    static thread_local AlignedScratch offsets;
    BySize(SizeOf(s_.input_type), [&]<class T>(T*) {
      GatherPatches(static_cast<const T*>(input) + part.group * s_.input_group_stride(), part.first + begin,
                    part.first + end, reinterpret_cast<T*>(patches), offsets.Get<int64_t>(taps_.count()));
    });
  }

  // Into the output where positions are one stride apart, else into `rows`.
  void Multiply(const Part& part, const char* patches, const char* matrices, void* output, char* rows,
                ThreadPool* pool) const {
    GemmShape gemm;
    gemm.a_type = s_.input_type, gemm.b_type = s_.kernel_type, gemm.d_type = s_.output_type;
    gemm.m = part.count, gemm.n = s_.group_outputs(), gemm.k = depth_;
    gemm.a_row = depth_, gemm.a_col = 1, gemm.b_row = gemm.n, gemm.b_col = 1;
    gemm.d_row = direct_ ? row_stride_ : gemm.n;
    const int64_t at = part.group * gemm.n * s_.output_feature_stride + part.first * row_stride_;
    BlockedGemm(gemm, s_.accumulator, patches, matrices + part.group * depth_ * gemm.n * SizeOf(s_.kernel_type),
                direct_ ? static_cast<char*>(output) + at * SizeOf(s_.output_type) : rows, pool);
  }

  void Spread(const Part& part, int64_t begin, int64_t end, const char* rows, void* output) const {
    BySize(SizeOf(s_.output_type), [&]<class T>(T*) {
      Scatter(reinterpret_cast<const T*>(rows), part.first + begin, part.first + end,
              static_cast<T*>(output) + part.group * s_.group_outputs() * s_.output_feature_stride);
    });
  }

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
                 for (int64_t c = 0; c < s_.kernel_features; ++c, row += outputs, from += s_.kernel_input_stride) {
                   if (s_.kernel_output_stride == 1) {
                     std::memcpy(static_cast<void*>(row), from, static_cast<size_t>(outputs) * sizeof(T));
                   } else {
                     for (int64_t o = 0; o < outputs; ++o) row[o] = from[o * s_.kernel_output_stride];
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
      for (int64_t t = 0, run; t < taps_.count(); t += run, to += run * features) {
        run = 1;
        if (offsets[t] < 0) {
          std::memset(static_cast<void*>(to), 0, static_cast<size_t>(features) * sizeof(T));
        } else if (step == 1) {  // taps that are neighbours are copied together
          while (t + run < taps_.count() && offsets[t + run] == offsets[t] + run * features) ++run;
          std::memcpy(static_cast<void*>(to), from + offsets[t], static_cast<size_t>(run * features) * sizeof(T));
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

  static constexpr int64_t kGrainBytes = 32 << 10;  // of patches or rows; for fewer no other thread is woken

  ConvShape s_;
  ConvTaps taps_;
  int64_t positions_, depth_ = 1, rows_ = 1, row_stride_ = 0;
  bool direct_ = false, arranged_ = false;  // the output, the kernel: whether their matrix is where they lie
};

}  // namespace

std::unique_ptr<Prepared> GeneralConv(const ConvShape& shape) { return std::make_unique<General>(shape); }

}  // namespace ferrule

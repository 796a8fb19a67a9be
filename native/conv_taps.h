// Where in the input a convolution's output position reads: one offset for each tap of the kernel.
#pragma once

#include <cstdint>
#include <vector>

#include "conv.h"

namespace ferrule {

// The same in all spatial dimensions but the last.
inline ConvShape OuterShape(ConvShape shape) {
  shape.windows.pop_back();
  return shape;
}

class ConvTaps {
 public:
  explicit ConvTaps(const ConvShape& shape) : s_(shape) {
    for (const ConvWindow& w : s_.windows) {
      count_ *= w.kernel;
      positions_ *= w.output;
      std::vector<int64_t> table(static_cast<size_t>(w.output * w.kernel));
      for (int64_t o = 0; o < w.output; ++o) {
        for (int64_t t = 0; t < w.kernel; ++t) {
          int64_t x = o * w.stride + t * w.kernel_dilation - w.pad_low;
          bool inside = x >= 0 && x % w.input_dilation == 0 && x / w.input_dilation < w.input;
          table[o * w.kernel + t] = inside ? x / w.input_dilation * w.input_stride : -1;
        }
      }
      tables_.push_back(std::move(table));
    }
    positions_ *= s_.output_batch;
  }

  int64_t count() const { return count_; }
  // Output positions of one group: batch, then the spatial dimensions, the last one fastest.
  int64_t positions() const { return positions_; }

  // Splits a position into the batch index, which is returned, and the spatial ones.
  int64_t Coordinates(int64_t position, int64_t* spatial) const {
    for (size_t d = s_.windows.size(); d-- > 0;) {
      spatial[d] = position % s_.windows[d].output;
      position /= s_.windows[d].output;
    }
    return position;
  }

  // Element offset of an output position, in the first group.
  int64_t OutputOffset(int64_t position) const {
    int64_t at = 0;
    for (size_t d = s_.windows.size(); d-- > 0;) {
      at += position % s_.windows[d].output * s_.windows[d].output_stride;
      position /= s_.windows[d].output;
    }
    return at + position * s_.output_batch_stride;
  }

  // Writes the spatial offset of each tap into `offsets` (count() of them), -1 for what lies in the padding or between
  // dilated elements; returns the offset of the batch. A reversed window reads the kernel from its end, not the input.
  int64_t Offsets(int64_t position, int64_t* offsets) const {
    int64_t spatial[kMaxRank];
    int64_t batch = Coordinates(position, spatial);
    offsets[count_ - 1] = 0;
    int64_t filled = 1;
    for (size_t d = 0; d < s_.windows.size(); ++d) {
      int64_t kernel = s_.windows[d].kernel;
      const int64_t* table = tables_[d].data() + spatial[d] * kernel;
      // The offsets combined so far are the last `filled` entries; spread them over the last filled * kernel ones.
      for (int64_t i = 0; i < filled; ++i) {
        int64_t base = offsets[count_ - filled + i], *to = offsets + count_ - (filled - i) * kernel;
        for (int64_t t = 0; t < kernel; ++t) to[t] = base < 0 || table[t] < 0 ? -1 : base + table[t];
      }
      filled *= kernel;
    }
    return batch * s_.input_batch_stride;
  }

  // Offset of a tap in the kernel.
  int64_t KernelOffset(int64_t tap) const {
    int64_t at = 0;
    for (size_t d = s_.windows.size(); d-- > 0;) {
      const ConvWindow& w = s_.windows[d];
      int64_t t = tap % w.kernel;
      at += (w.reversed ? w.kernel - 1 - t : t) * w.kernel_stride;
      tap /= w.kernel;
    }
    return at;
  }

  static constexpr size_t kMaxRank = 32;

 private:
  const ConvShape& s_;
  int64_t count_ = 1, positions_ = 1;
  std::vector<std::vector<int64_t>> tables_;  // for each dimension, output index and tap: where in the input, or -1
};

}  // namespace ferrule

// Gradients of convolutions' kernels, with features innermost, as JAX writes them: convolutions of the images, whose
// features are the batch, by the results' gradients, whose positions are the window. For each tap they are a product of
// the images, shifted by it, and the gradients. Both are put into the panels of a matrix product, some rows at a time:
// a tap begins elsewhere in the same panel, in which pixels that one stride reads follow each other.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "aligned_scratch.h"
#include "conv.h"
#include "gemm_blocked.h"
#include "program.h"
#include "thread_pool.h"

namespace ferrule {
namespace {

// The forward convolution in one dimension.
struct Dimension {
  int64_t input, output, taps, stride, dilation, pad_low;
  int64_t input_stride, output_stride, tap_stride;  // of elements: images, gradients, result
};

Dimension DimensionOf(const ConvWindow& w) {
  return {w.input,   w.kernel,       w.output,        w.kernel_dilation, w.stride,
          w.pad_low, w.input_stride, w.kernel_stride, w.output_stride};
}

template <class T, int kRows>
class KernelGradient : public Prepared {
 public:
  explicit KernelGradient(const ConvShape& shape)
      : s_(shape),
        x_(DimensionOf(s_.windows.back())),
        y_(s_.windows.size() > 1 ? DimensionOf(s_.windows[0]) : Dimension{1, 1, 1, 1, 1, 0, 0, 0, 0}),
        images_(s_.kernel_features),
        inputs_(s_.input_batch),
        outputs_(s_.output_features),
        taps_(y_.taps * x_.taps),
        tiles_(DivideUp(inputs_, kRows)),
        panels_(DivideUp(outputs_, FloatKernels<T>().columns)),
        length_(x_.output + (x_.taps - 1) * x_.dilation / x_.stride),
        pitch_(x_.stride * length_ * kRows),
        rows_(std::clamp<int64_t>(kPositions / x_.output, 1, images_ * y_.output)),
        bands_(DivideUp(images_ * y_.output, rows_)) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    const T* images = static_cast<const T*>(operands[0]);
    const T* gradients = static_cast<const T*>(operands[1]);
    T* to = static_cast<T*>(results[0]);
    const int64_t threads = context.pool->threads(), size = taps_ * inputs_ * outputs_;
    // Small results are sums of parts of the positions; of large ones each task has some input features.
    const int64_t parts = 2 * threads * Bytes(size) <= kPartsBytes ? std::min(bands_, 2 * threads) : 1;
    const int64_t blocks = std::min(tiles_, DivideUp(parts == 1 ? 4 * threads : 2 * threads, parts));
    T* sums = nullptr;
    if (parts > 1) {
      sums = static_cast<T*>(context.allocate(context.allocate_self, Bytes(parts * size)));
      if (!sums)
        return OutOfMemory("no memory for a convolution's sums, " + std::to_string(Bytes(parts * size)) + " bytes");
    }
    context.pool->For(parts * blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t part = i / blocks, block = i % blocks;
        const Home home = sums ? Home{sums + part * size, x_.taps * inputs_ * outputs_, inputs_ * outputs_, outputs_}
                               : Home{to, y_.tap_stride, x_.tap_stride, s_.output_batch_stride};
        Sum(images, gradients, bands_ * part / parts, bands_ * (part + 1) / parts, tiles_ * block / blocks,
            tiles_ * (block + 1) / blocks, home);
      }
    });
    if (sums) AddUp(sums, parts, to, context.pool);
    return Status();
  }

 private:
  static constexpr int64_t kPositions = 512;        // of the results' gradients at once
  static constexpr int64_t kPartsBytes = 4 << 20;   // of all parts' sums
  static constexpr int64_t kWorthAdding = 1 << 14;  // elements
  static constexpr int64_t kMostColumns = 64;       // of a tile

  static int64_t Bytes(int64_t count) { return count * static_cast<int64_t>(sizeof(T)); }

  // Where sums go, and how far apart its dimensions are; features of the result lie beside each other.
  struct Home {
    T* to;
    int64_t y, x, input;
  };
  // What rows of gradients read of the images: the first row of each image, and from where on in a panel.
  struct Band {
    std::vector<int64_t> starts;  // of the pieces in a panel, one for each row
    int64_t height = 0;           // rows of the panel
  };

  void Sum(const T* images, const T* gradients, int64_t first_band, int64_t last_band, int64_t first_tile,
           int64_t last_tile, const Home& home) const {
    static thread_local AlignedScratch left_scratch, right_scratch;
    const auto& kernels = FloatKernels<T>();
    const int64_t columns = kernels.columns;
    alignas(64) std::array<T, kRows * kMostColumns> spare;
    for (int64_t band = first_band; band < last_band; ++band) {
      const int64_t first = band * rows_, count = std::min(rows_, images_ * y_.output - first);
      const int64_t positions = count * x_.output;
      const Band read = BandOf(first, count);
      T* left = left_scratch.Get<T>((last_tile - first_tile) * read.height * pitch_);
      T* right = right_scratch.Get<T>(panels_ * positions * columns);
      PackImages(images, first, count, read, first_tile, last_tile, left);
      PackGradients(gradients, first, count, right);
      PanelSums<T> sums = {};
      sums.pieces = count, sums.offsets = read.starts.data(), sums.length = x_.output;
      for (int64_t p = 0; p < panels_; ++p) {
        const int64_t width = std::min(columns, outputs_ - p * columns);
        sums.right = right + p * positions * columns;
        for (int64_t t = first_tile; t < last_tile; ++t) {
          const int64_t height = std::min<int64_t>(kRows, inputs_ - t * kRows);
          const bool whole = height == kRows && width == columns, accumulate = band > first_band;
          for (int64_t tap = 0; tap < taps_; ++tap) {
            const int64_t y = tap / x_.taps, x = tap % x_.taps, at = x * x_.dilation;
            sums.left = left + ((t - first_tile) * read.height + y * y_.dilation) * pitch_ +
                        (at % x_.stride * length_ + at / x_.stride) * kRows;
            T* to = home.to + y * home.y + x * home.x + t * kRows * home.input + p * columns;
            sums.to = whole ? to : spare.data(), sums.to_row = whole ? home.input : columns;
            sums.accumulate = whole && accumulate;
            kernels.panels(sums);
            if (!whole) kernels.put_tile(spare.data(), columns, height, width, accumulate, to, home.input);
          }
        }
      }
    }
  }

  Band BandOf(int64_t first, int64_t count) const {
    Band band;
    for (int64_t r = first; r < first + count; ++r) {
      if (r > first && r % y_.output != 0) {
        band.starts.push_back(band.starts.back() + y_.stride * pitch_);
        continue;
      }
      band.starts.push_back(band.height * pitch_);
      const int64_t same = std::min(y_.output - r % y_.output, first + count - r);  // rows of this image
      band.height += (same - 1) * y_.stride + (y_.taps - 1) * y_.dilation + 1;
    }
    return band;
  }

  // left[tile][row][pixels of the same remainder by the stride][feature]: zeros around the image and behind its
  // features.
  void PackImages(const T* images, int64_t first, int64_t count, const Band& band, int64_t first_tile,
                  int64_t last_tile, T* left) const {
    const int64_t reach = (y_.taps - 1) * y_.dilation + 1, size = band.height * pitch_;
    for (int64_t r = 0, done = 0; r < count; ++r) {
      const int64_t image = (first + r) / y_.output, oy = (first + r) % y_.output;
      const int64_t from = band.starts[static_cast<size_t>(r)] / pitch_;
      for (int64_t row = std::max(done, from); row < from + reach; ++row) {
        const int64_t y = oy * y_.stride - y_.pad_low + row - from;
        const bool inside = y >= 0 && y < y_.input;
        const T* line = images + image * s_.input_feature_stride + y * y_.input_stride;
        for (int64_t f = 0; f < x_.stride; ++f) {
          T* to = left + row * pitch_ + f * length_ * kRows;
          for (int64_t i = 0; i < length_; ++i, to += kRows) {
            const int64_t x = i * x_.stride + f - x_.pad_low;
            if (!inside || x < 0 || x >= x_.input) {
              for (int64_t t = 0; t < last_tile - first_tile; ++t) std::fill_n(to + t * size, kRows, T(0));
            } else {
              PackPixel(line + x * x_.input_stride, first_tile, last_tile, to, size);
            }
          }
        }
      }
      done = from + reach;
    }
  }

  void PackPixel(const T* pixel, int64_t first_tile, int64_t last_tile, T* to, int64_t size) const {
    for (int64_t t = first_tile; t < last_tile; ++t, to += size) {
      const int64_t features = inputs_ - t * kRows;
      if (features >= kRows) {
        std::memcpy(to, pixel + t * kRows, kRows * sizeof(T));
      } else {
        std::copy_n(pixel + t * kRows, features, to);
        std::fill(to + features, to + kRows, T(0));
      }
    }
  }

  // right[panel][position][feature]
  void PackGradients(const T* gradients, int64_t first, int64_t count, T* right) const {
    const int64_t columns = FloatKernels<T>().columns, size = count * x_.output * columns, last = outputs_ % columns;
    for (int64_t r = 0; r < count; ++r) {
      const T* line =
          gradients + (first + r) / y_.output * s_.kernel_input_stride + (first + r) % y_.output * y_.output_stride;
      for (int64_t x = 0; x < x_.output; ++x, line += x_.output_stride) {
        T* to = right + (r * x_.output + x) * columns;
        for (int64_t p = 0; p < outputs_ / columns; ++p) {
          std::copy_n(line + p * columns, columns, to + p * size);
        }
        if (last == 0) continue;
        T* end = to + outputs_ / columns * size;
        std::copy_n(line + outputs_ - last, last, end);
        std::fill(end + last, end + columns, T(0));
      }
    }
  }

  void AddUp(const T* sums, int64_t parts, T* to, ThreadPool* pool) const {
    pool->For(taps_ * inputs_, std::max<int64_t>(1, kWorthAdding / (parts * outputs_)),
              [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) {
                  T* row = to + i / inputs_ / x_.taps * y_.tap_stride + i / inputs_ % x_.taps * x_.tap_stride +
                           i % inputs_ * s_.output_batch_stride;
                  const T* from = sums + i * outputs_;
                  std::copy_n(from, outputs_, row);
                  for (int64_t part = 1; part < parts; ++part) {
                    from += taps_ * inputs_ * outputs_;
                    for (int64_t o = 0; o < outputs_; ++o) row[o] += from[o];
                  }
                }
              });
  }

  const ConvShape s_;
  const Dimension x_, y_;
  const int64_t images_, inputs_, outputs_, taps_, tiles_, panels_;
  const int64_t length_, pitch_;  // pixels of a remainder in a row of a panel; elements of such a row
  const int64_t rows_, bands_;    // rows of gradients at once
};

template <class T>
std::unique_ptr<Prepared> Make(const ConvShape& s) {
  if (FloatKernels<T>().rows == 6) return std::make_unique<KernelGradient<T, 6>>(s);
  if (FloatKernels<T>().rows == 12) return std::make_unique<KernelGradient<T, 12>>(s);
  return nullptr;
}

}  // namespace

bool WindowsGradientSuits(const ConvShape& s) {
  // Tiles are mostly full, and rows not longer than what goes into panels at once. With one tap oneDNN's product is as
  // good, which there is none of in f64.
  const bool wide = s.input_type == Element::kF64;
  const int64_t columns = wide ? ChosenKernels().f64.columns : ChosenKernels().f32.columns;
  const int64_t rows = wide ? ChosenKernels().f64.rows : ChosenKernels().f32.rows, inputs = s.input_batch,
                outputs = s.output_features;
  constexpr int64_t kLongest = 1024;
  double taps = 1, positions = 1;
  for (const ConvWindow& w : s.windows) {
    taps *= static_cast<double>(w.output), positions *= static_cast<double>(w.kernel);
  }
  return !s.windows.empty() && s.windows.back().kernel <= kLongest && positions > taps && (taps > 1 || wide) &&
         4 * inputs >= 3 * RoundUp(inputs, rows) && 4 * outputs >= 3 * RoundUp(outputs, columns);
}

std::unique_ptr<Prepared> WindowsGradientConv(const ConvShape& s) {
  if (s.windows.empty() || s.windows.size() > 2 || s.groups() != 1 || s.input_type != s.kernel_type ||
      s.input_type != s.output_type) {
    return nullptr;
  }
  if (s.input_batch_stride != 1 || s.kernel_output_stride != 1 || s.output_feature_stride != 1) return nullptr;
  for (const ConvWindow& w : s.windows) {
    if (w.input_dilation != 1 || w.reversed) return nullptr;
  }
  if (s.input_type == Element::kF32 && ChosenKernels().f32.panels) return Make<float>(s);
  if (s.input_type == Element::kF64 && ChosenKernels().f64.panels) return Make<double>(s);
  return nullptr;
}

}  // namespace ferrule

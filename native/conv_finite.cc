// Convolutions that oneDNN does where all of the image is finite, the own loops where something is not.
#include <algorithm>
#include <atomic>

#include "conv.h"
#include "program.h"
#include "thread_pool.h"

#pragma GCC optimize("O3")

namespace ferrule {
namespace {

class FiniteOrNot : public Prepared {
 public:
  FiniteOrNot(std::unique_ptr<Prepared> finite, std::unique_ptr<Prepared> any, int64_t elements)
      : finite_(std::move(finite)), any_(std::move(any)), elements_(elements) {}

  Status Run(void* const* operands, void* const* results, ExecContext& context) const override {
    const bool finite = AllFinite(static_cast<const int16_t*>(operands[0]), *context.pool);
    return (finite ? finite_ : any_)->Run(operands, results, context);
  }

 private:
  // Of bf16, whose largest bits without the sign tell.
  bool AllFinite(const int16_t* image, ThreadPool& pool) const {
    constexpr int64_t kGrain = 1 << 15, kBlock = 1 << 12;
    constexpr int16_t kInfinity = 0x7f80, kMagnitude = 0x7fff;
    std::atomic<bool> finite = true;
    pool.For(elements_, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t from = begin; from < end && finite.load(std::memory_order_relaxed); from += kBlock) {
        const int64_t to = std::min(end, from + kBlock);
        int16_t largest = 0;
        for (int64_t i = from; i < to; ++i) {
          const int16_t magnitude = static_cast<int16_t>(image[i] & kMagnitude);
          largest = magnitude > largest ? magnitude : largest;
        }
        if (largest >= kInfinity) finite.store(false, std::memory_order_relaxed);
      }
    });
    return finite.load(std::memory_order_relaxed);
  }

  std::unique_ptr<Prepared> finite_, any_;
  int64_t elements_;
};

}  // namespace

std::unique_ptr<Prepared> FiniteConv(const ConvShape& s, std::unique_ptr<Prepared> finite,
                                     std::unique_ptr<Prepared> any) {
  return std::make_unique<FiniteOrNot>(std::move(finite), std::move(any), s.input_elements);
}

}  // namespace ferrule

// What the calls of oneMKL's LAPACK have in common. Most of its routines work on the device but let the caller wait:
// they throw what LAPACK calls `info`, before or while the commands run. So these calls have ended when Run returns.
#pragma once

#include <functional>
#include <oneapi/mkl/lapack.hpp>
#include <vector>

#include "calls.h"

namespace ferrule_sycl {

class LapackCall : public FerruleCall {
 public:
  explicit LapackCall(FerruleDevice* device);

  sycl::event Run(void* const* operands, void* const* results, void* scratch,
                  const std::vector<sycl::event>& after) final;

 protected:
  // Operands may be read and results be written.
  virtual void Work(void* const* operands, void* const* results, void* scratch) = 0;

  // Copies an operand to where LAPACK works in place.
  void Copy(void* to, const void* from, int64_t bytes) { queue().memcpy(to, from, static_cast<size_t>(bytes)).wait(); }

  // Starts a routine and waits for it. LAPACK's info where it is positive, else 0. `failed`: of a batch, the numbers of
  // the matrices that could not be factored.
  int64_t Info(const std::function<sycl::event()>& start, std::vector<int64_t>* failed = nullptr);

  // A queue of its own: what LAPACK throws late is no fault of the device.
  sycl::queue& queue() { return queue_; }

 private:
  // Shared: the queue's handler may outlive the call.
  struct Late {
    std::mutex mutex;
    std::vector<std::exception_ptr> thrown;
  };
  std::shared_ptr<Late> late_ = std::make_shared<Late>();
  bool is_cpu_;
  sycl::queue queue_;
};

// Bytes of scratch memory of `elements` of T.
template <class T>
int64_t ScratchBytes(int64_t elements) {
  return std::max<int64_t>(1, elements) * static_cast<int64_t>(sizeof(T));
}

}  // namespace ferrule_sycl

#include "lapack_call.h"

namespace ferrule_sycl {
namespace {

namespace lapack = oneapi::mkl::lapack;

// Of what was thrown; anything but a failed computation goes on.
int64_t InfoOf(const std::exception_ptr& thrown, std::vector<int64_t>* failed) {
  try {
    std::rethrow_exception(thrown);
  } catch (const lapack::batch_error& e) {
    if (failed) failed->insert(failed->end(), e.ids().begin(), e.ids().end());
    return e.info();
  } catch (const lapack::computation_error& e) {
    return e.info();
  }
}

}  // namespace

LapackCall::LapackCall(FerruleDevice* device)
    : is_cpu_(device->faults->is_cpu),
      queue_(device->found->context, device->found->device, [late = late_](const sycl::exception_list& list) {
        std::lock_guard lock(late->mutex);
        late->thrown.insert(late->thrown.end(), list.begin(), list.end());
      }) {}

sycl::event LapackCall::Run(void* const* operands, void* const* results, void* scratch,
                            const std::vector<sycl::event>& after) {
  const Turn turn(is_cpu_);  // LAPACK's routines wait by themselves
  sycl::event::wait(after);
  Work(operands, results, scratch);
  return {};
}

int64_t LapackCall::Info(const std::function<sycl::event()>& start, std::vector<int64_t>* failed) {
  int64_t info = 0;
  try {
    start().wait_and_throw();
  } catch (const oneapi::mkl::exception&) {
    info = InfoOf(std::current_exception(), failed);
  }
  queue_.wait_and_throw();
  std::vector<std::exception_ptr> thrown;
  {
    std::lock_guard lock(late_->mutex);
    thrown.swap(late_->thrown);
  }
  for (const std::exception_ptr& one : thrown) {
    if (int64_t of_one = InfoOf(one, failed)) info = of_one;
  }
  return std::max<int64_t>(0, info);
}

}  // namespace ferrule_sycl

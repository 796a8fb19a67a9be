#include "library_call.h"

#include "mkl_api.h"

namespace ferrule_sycl {

void CannotDo(const std::string& what) { throw Error{kUnimplemented, "oneDNN has no " + what}; }

int Prepare(FerruleDevice* device, const FerruleCallDesc* desc, FerruleCall** call, int64_t* scratch_bytes) {
  return Guard([&] { return device->In(std::string("preparing ") + desc->target); },
               [&] {
                 std::string target = desc->target;
                 std::unique_ptr<FerruleCall> made;
                 if (target == "dnnl.matmul") {
                   made = PrepareMatmul(device, *desc);
                 } else if (target == "dnnl.conv") {
                   made = PrepareConv(device, *desc);
                 } else if (target.rfind("mkl.", 0) == 0) {
                   made = PrepareMkl(device, *desc);
                 } else {
                   throw Error{kNotFound,
                               "the SYCL driver has no such library call (it has dnnl.matmul, dnnl.conv, and "
                               "oneMKL's)"};
                 }
                 made->name = std::move(target);
                 made->device = device;
                 *scratch_bytes = made->scratch_bytes;
                 *call = made.release();
               });
}

int Call(FerruleDevice* device, FerruleCall* call, void* const* operands, void* const* results, void* scratch,
         FerruleAfter after, FerruleEvent** done) {
  return Guard([&] { return device->In("starting " + call->name); },
               [&] {
                 if (device != call->device) Refuse("the call was prepared for another device");
                 const std::vector<sycl::event> events = EventsOf(after);
                 if (device->faults->is_cpu) {
                   // There, a call is a task of the host. SYCL has a thread for those, which takes no turn: it must
                   // find that there is nothing to wait for.
                   const Turn turn(true);
                   sycl::event::wait(events);
                 }
                 call->last = call->Run(operands, results, scratch, events);
                 Give(device, call->last, done);
               });
}

void Discard(FerruleCall* call) {
  if (!call) return;
  Guard([] { return "discarding a library call"; },
        [&] {
          const Turn turn(call->device->faults->is_cpu);
          call->last.wait();
        });
  delete call;
}

}  // namespace ferrule_sycl

#include "library_call.h"

#include <cstring>

namespace ferrule_sycl {

void Refuse(const std::string& why) { throw Error{kInvalidArgument, why}; }
void CannotDo(const std::string& what) { throw Error{kUnimplemented, "oneDNN has no " + what}; }

const FerruleAttribute* Attributes::Find(const char* name) const {
  for (size_t i = 0; i < desc_.num_attributes; ++i) {
    if (std::strcmp(desc_.attributes[i].name, name) == 0) return &desc_.attributes[i];
  }
  return nullptr;
}

std::vector<int64_t> Attributes::Ints(const char* name, size_t count) const {
  const FerruleAttribute* found = Find(name);
  if (!found || found->kind != FerruleAttribute::FERRULE_INTS || found->num_ints != count) {
    Refuse(std::string("attribute ") + name + " must be " + std::to_string(count) + " integers");
  }
  return {found->ints, found->ints + count};
}

double Attributes::Number(const char* name, double otherwise) const {
  const FerruleAttribute* found = Find(name);
  if (!found) return otherwise;
  if (found->kind != FerruleAttribute::FERRULE_FLOAT) Refuse(std::string("attribute ") + name + " must be a number");
  return found->number;
}

std::string Attributes::Text(const char* name) const {
  const FerruleAttribute* found = Find(name);
  if (!found) return "";
  if (found->kind != FerruleAttribute::FERRULE_STRING) Refuse(std::string("attribute ") + name + " must be a string");
  return found->text;
}

int Prepare(FerruleDevice* device, const FerruleCallDesc* desc, FerruleCall** call, int64_t* scratch_bytes) {
  return Guard([&] { return device->In(std::string("preparing ") + desc->target); },
               [&] {
                 std::string target = desc->target;
                 std::unique_ptr<FerruleCall> made;
                 if (target == "dnnl.matmul") {
                   made = PrepareMatmul(device, *desc);
                 } else if (target == "dnnl.conv") {
                   made = PrepareConv(device, *desc);
                 } else {
                   throw Error{kNotFound, "the SYCL driver has no such library call (it has dnnl.matmul, dnnl.conv)"};
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
                 call->last = call->Run(operands, results, scratch, EventsOf(after));
                 Give(device, call->last, done, true);
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

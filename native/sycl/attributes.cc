// The attributes of library calls; part of the driver and of libferrule_mkl.so.
#include <cstring>

#include "library_call.h"

namespace ferrule_sycl {

void Refuse(const std::string& why) { throw Error{kInvalidArgument, why}; }

const FerruleAttribute* Attributes::Find(const char* name) const {
  for (size_t i = 0; i < desc_.num_attributes; ++i) {
    if (std::strcmp(desc_.attributes[i].name, name) == 0) return &desc_.attributes[i];
  }
  return nullptr;
}

std::vector<int64_t> Attributes::IntList(const char* name) const {
  const FerruleAttribute* found = Find(name);
  if (!found || found->kind != FerruleAttribute::FERRULE_INTS) {
    Refuse(std::string("attribute ") + name + " must be integers");
  }
  return {found->ints, found->ints + found->num_ints};
}

std::vector<int64_t> Attributes::Ints(const char* name, size_t count) const {
  std::vector<int64_t> list = IntList(name);
  if (list.size() != count)
    Refuse(std::string("attribute ") + name + " must be " + std::to_string(count) + " integers");
  return list;
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

}  // namespace ferrule_sycl

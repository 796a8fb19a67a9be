// C functions for Python's ctypes: link objects, load and run whole programs without PJRT, hand over symbols. Meant for
// the compiler's tests and for ferrule.bridge; frameworks use the PJRT table instead.
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "calls.h"
#include "linker.h"
#include "program.h"
#include "status.h"
#include "thread_pool.h"

#define FERRULE_EXPORT extern "C" __attribute__((visibility("default")))

namespace ferrule {
namespace {

thread_local std::string last_error;
thread_local int last_code = 0;

// Remembers a failure for ferrule_last_error; 0 or the status code.
int Report(const Status& status) {
  last_error = status.message();
  last_code = static_cast<int>(status.code());
  return last_code;
}

}  // namespace
}  // namespace ferrule

using namespace ferrule;

// The message of the last failure on the calling thread; empty when its last call succeeded.
FERRULE_EXPORT const char* ferrule_last_error() { return last_error.c_str(); }
FERRULE_EXPORT int ferrule_last_error_code() { return last_code; }

// Links one ELF object. Returns 0 and a handle, or a status code.
FERRULE_EXPORT int ferrule_link_object(const char* data, size_t size, void** handle) {
  *handle = nullptr;
  std::string_view object(data, size);
  auto image = CodeImage::Link({&object, 1});
  if (!image.ok()) return Report(image.status());
  *handle = image.value().release();
  return Report({});
}

FERRULE_EXPORT void* ferrule_object_symbol(void* handle, const char* name) {
  return static_cast<CodeImage*>(handle)->Find(0, name);
}

FERRULE_EXPORT void ferrule_object_free(void* handle) { delete static_cast<CodeImage*>(handle); }

// C functions for Python's ctypes: link objects, load and run whole programs without PJRT, hand over symbols. Meant for
// the compiler's tests and for ferrule.bridge; frameworks use the PJRT table instead.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "calls.h"
#include "ffi.h"
#include "linker.h"
#include "openmp.h"
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

namespace ferrule {
namespace {

struct ProgramHandle {
  std::shared_ptr<const Program> program;
};

// Scratch memory of one run.
class Scratch {
 public:
  ~Scratch() {
    for (void* block : blocks_) std::free(block);
  }
  static void* Allocate(void* self, int64_t bytes) {
    size_t size = (static_cast<size_t>(bytes) + 63) / 64 * 64;
    void* block = std::aligned_alloc(64, size ? size : 64);
    if (block) static_cast<Scratch*>(self)->blocks_.push_back(block);
    return block;
  }

 private:
  std::vector<void*> blocks_;
};

}  // namespace
}  // namespace ferrule

// Loads a serialized program. Returns 0 and a handle, or a status code.
FERRULE_EXPORT int ferrule_program_load(const char* data, size_t size, void** handle) {
  *handle = nullptr;
  auto program = Program::Load(std::string(data, size));
  if (!program.ok()) return Report(program.status());
  *handle = new ProgramHandle{std::move(program.value())};
  return Report({});
}

// Runs a program on host memory (64-byte aligned buffers, in the order of its parameters and outputs).
FERRULE_EXPORT int ferrule_program_run(void* handle, void** params, void** outputs) {
  const Program& program = *static_cast<ProgramHandle*>(handle)->program;
  Scratch scratch;
  void* arena = Scratch::Allocate(&scratch, program.arena_bytes);
  if (!arena)
    return Report(OutOfMemory("no memory for " + std::to_string(program.arena_bytes) + " bytes of temporaries"));
  static std::atomic<int64_t> runs{0};
  ExecContext context;
  context.pool = &ThreadPool::Global();
  context.run_id = ++runs;
  context.allocate = &Scratch::Allocate;
  context.allocate_self = &scratch;
  return Report(program.Run(params, outputs, arena, context));
}

FERRULE_EXPORT void ferrule_program_free(void* handle) { delete static_cast<ProgramHandle*>(handle); }

// Symbols and library paths that library calls look up (see calls.h).
FERRULE_EXPORT void ferrule_set_symbol(const char* name, void* address) { SetSymbol(name, address); }
FERRULE_EXPORT void ferrule_set_path(const char* name, const char* path) { SetPath(name, path); }

// Registers an XLA FFI handler: functions per stage (null where it has none), as JAX's register_custom_call_handler
// hands them over. Only the typed interface (api_version 1) can be run.
FERRULE_EXPORT int ferrule_ffi_register(const char* name, const char* platform, int api_version, uint32_t traits,
                                        void* instantiate, void* prepare, void* initialize, void* execute) {
  if (api_version != 1)
    return Report(Unimplemented("the custom call '" + std::string(name) + "' has API version " +
                                std::to_string(api_version) +
                                "\n  why: Ferrule runs typed FFI handlers (API version 1) only\n  fix: rebuild it with "
                                "XLA's typed FFI"));
  return Report(RegisterFfiHandler(name, platform, {instantiate, prepare, initialize, execute, traits}));
}

// Registers an XLA FFI type. `*id` is 0 for a fresh number, which is written back.
FERRULE_EXPORT int ferrule_ffi_register_type(const char* name, int64_t* id, void (*deleter)(void*)) {
  return Report(RegisterFfiType(name, id, deleter));
}

// How many threads a library may use at once: the caller and the pool's workers, which are started.
FERRULE_EXPORT int ferrule_team_threads() { return ThreadPool::Global().TeamThreads(); }

// Lets a library that was opened (dlopen's handle) run its OpenMP regions on the pool; 1 where that is done, 0 where
// the library was left as it was.
FERRULE_EXPORT int ferrule_use_pool_for_openmp(void* library) { return UsePoolForOpenMp(library); }

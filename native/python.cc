#include "python.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>

#include "compile_process.h"
#include "python_api.h"

namespace ferrule {
namespace {

using python::Api;
using python::Gil;
using python::Object;
using python::Ref;

constexpr char kModule[] = "ferrule.bridge";
// Frameworks compile on threads with small stacks, while graphs can be deep. Address space only until it is touched.
constexpr size_t kCompileStack = size_t{256} << 20;

std::atomic<bool> initialized{false};

std::string LibraryPath() {
  Dl_info info{};
  if (!dladdr(reinterpret_cast<void*>(&LibraryPath), &info) || !info.dli_fname) return {};
  std::error_code error;
  std::filesystem::path path = std::filesystem::canonical(info.dli_fname, error);
  return error ? std::string(info.dli_fname) : path.string();
}

Object* Bytes(const Api& api, std::string_view data) {
  return api.PyBytes_FromStringAndSize(data.data(), static_cast<long>(data.size()));
}

Object* Text(const Api& api, std::string_view text) {
  return api.PyUnicode_FromStringAndSize(text.data(), static_cast<long>(text.size()));
}

Result<std::string> TakeBytes(const Api& api, Result<Ref> result, const char* function) {
  if (!result.ok()) return result.status();
  char* data = nullptr;
  long size = 0;
  if (api.PyBytes_AsStringAndSize(result->get(), &data, &size) != 0) {
    Status reason = python::TakeException(api);
    return Internal(std::string("ferrule.bridge.") + function + " gave no bytes\n  why: " + reason.message());
  }
  return std::string(data, static_cast<size_t>(size));
}

// `import ferrule`, from beside this library when it is not on the path.
Status ImportPackage(const Api& api, const std::string& library) {
  Ref package(api, api.PyImport_ImportModule("ferrule"));
  if (package) return {};
  Status first = python::TakeException(api);
  std::filesystem::path folder = std::filesystem::path(library).parent_path().parent_path();
  Ref entry(api, Text(api, folder.string()));
  Object* path = api.PySys_GetObject("path");  // borrowed
  if (!entry || !path || api.PyList_Append(path, entry.get()) != 0) return python::TakeException(api);
  Ref again(api, api.PyImport_ImportModule("ferrule"));
  if (again) return {};
  python::TakeException(api).ok();
  return Status(Code::kFailedPrecondition,
                "Ferrule's compiler, the Python package 'ferrule', cannot be imported\n  where: sys.path and " +
                    folder.string() + "\n  why: " + first.message() +
                    "\n  fix: install ferrule for the Python that runs in this process");
}

// Needs the GIL. Two threads may get here at once; ferrule.bridge.initialize may be called again.
Status InitializeLocked(const Api& api, bool again = false) {
  if (initialized.load() && !again) return {};
  std::string library = LibraryPath();
  FERRULE_RETURN_IF_ERROR(ImportPackage(api, library));
  auto result = python::Call(api, kModule, "initialize", {Text(api, library)});
  if (!result.ok()) return result.status();
  initialized.store(true);
  return {};
}

// A framework may hold the GIL while it waits for a compile (JAX does so when it compiles for a topology). Nothing in
// this process can take it then; a short wait tells that from a busy interpreter, which hands the GIL on in
// milliseconds.
constexpr std::chrono::seconds kGilPatience{1};

// One compile on a thread of its own. Shared with the thread, which outlives the caller when it does not get the GIL.
struct Compilation {
  Compilation(const Api& api, std::string code, std::string format, std::string options, std::string target)
      : api(api),
        code(std::move(code)),
        format(std::move(format)),
        options(std::move(options)),
        target(std::move(target)) {}

  const Api& api;
  std::string code, format, options, target;
  std::mutex mutex;
  std::condition_variable changed;
  bool started = false, abandoned = false;
  // Stays when the interpreter begins to shut down before the thread gets the GIL: then it never returns from there.
  Result<std::string> result = FailedPrecondition("the Python interpreter shut down while a program was compiled");

  static void* Run(void* self) {
    std::unique_ptr<std::shared_ptr<Compilation>> job(static_cast<std::shared_ptr<Compilation>*>(self));
    Gil gil((*job)->api);
    if ((*job)->Start()) (*job)->result = (*job)->Compile();
    return nullptr;
  }

  bool Start() {
    std::lock_guard lock(mutex);
    started = true;
    changed.notify_all();
    return !abandoned;
  }

  // False when the thread did not get the GIL in time: then it will do nothing.
  bool WaitForStart() {
    std::unique_lock lock(mutex);
    abandoned = !changed.wait_for(lock, kGilPatience, [this] { return started; });
    return started;
  }

  Result<std::string> Compile() const {
    FERRULE_RETURN_IF_ERROR(InitializeLocked(api));
    return TakeBytes(api,
                     python::Call(api, kModule, "compile",
                                  {Bytes(api, code), Text(api, format), Bytes(api, options), Text(api, target)}),
                     "compile");
  }
};

}  // namespace

Status InitializePython() {
  auto api = python::Interpreter();
  if (!api.ok()) return api.status();
  Gil gil(**api);
  // A framework that comes later than another user of the library in the process has its own wishes.
  return InitializeLocked(**api, true);
}

Result<std::string> CompileInPython(std::string_view code, std::string_view format, std::string_view options,
                                    std::string_view target) {
  auto api = python::Interpreter();
  if (!api.ok()) return api.status();
  auto job = std::make_shared<Compilation>(**api, std::string(code), std::string(format), std::string(options),
                                           std::string(target));
  auto own = std::make_unique<std::shared_ptr<Compilation>>(job);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kCompileStack);
  pthread_t thread;
  int error = pthread_create(&thread, &attributes, &Compilation::Run, own.get());
  pthread_attr_destroy(&attributes);
  if (error != 0)
    return OutOfMemory(std::string("no thread to compile on can be started: ") + std::strerror(error) +
                       "\n  fix: raise the limits on threads and address space (ulimit -u, ulimit -v)");
  own.release();  // the thread's now
  pthread_setname_np(thread, "ferrule-compile");
  python::WithoutGil wait(**api);
  if (!job->WaitForStart()) {
    pthread_detach(thread);
    return CompileInProcess(code, format, options, target);
  }
  pthread_join(thread, nullptr);
  return std::move(job->result);
}

Result<std::string> CallPython(const char* function, std::string_view payload) {
  auto api = python::Interpreter();
  if (!api.ok()) return api.status();
  Gil gil(**api);
  FERRULE_RETURN_IF_ERROR(InitializeLocked(**api));
  return TakeBytes(**api, python::Call(**api, kModule, function, {Bytes(**api, payload)}), function);
}

}  // namespace ferrule

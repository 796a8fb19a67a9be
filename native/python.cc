#include "python.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>

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
Status InitializeLocked(const Api& api) {
  if (initialized.load()) return {};
  std::string library = LibraryPath();
  FERRULE_RETURN_IF_ERROR(ImportPackage(api, library));
  auto result = python::Call(api, kModule, "initialize", {Text(api, library)});
  if (!result.ok()) return result.status();
  initialized.store(true);
  return {};
}

struct Compilation {
  const Api& api;
  std::string_view code, format, options, target;
  // Stays when the interpreter begins to shut down before the thread gets the GIL: then it never returns from there.
  Result<std::string> result = FailedPrecondition("the Python interpreter shut down while a program was compiled");

  static void* Run(void* self) {
    auto& job = *static_cast<Compilation*>(self);
    Gil gil(job.api);
    job.result = job.Compile();
    return nullptr;
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
  if (initialized.load()) return {};
  Gil gil(**api);
  return InitializeLocked(**api);
}

Result<std::string> CompileInPython(std::string_view code, std::string_view format, std::string_view options,
                                    std::string_view target) {
  auto api = python::Interpreter();
  if (!api.ok()) return api.status();
  Compilation job{**api, code, format, options, target};
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kCompileStack);
  pthread_t thread;
  int error = pthread_create(&thread, &attributes, &Compilation::Run, &job);
  pthread_attr_destroy(&attributes);
  if (error != 0)
    return OutOfMemory(std::string("no thread to compile on can be started: ") + std::strerror(error) +
                       "\n  fix: raise the limits on threads and address space (ulimit -u, ulimit -v)");
  pthread_setname_np(thread, "ferrule-compile");
  python::WithoutGil wait(**api);
  pthread_join(thread, nullptr);
  return std::move(job.result);
}

Result<std::string> CallPython(const char* function, std::string_view payload) {
  auto api = python::Interpreter();
  if (!api.ok()) return api.status();
  Gil gil(**api);
  FERRULE_RETURN_IF_ERROR(InitializeLocked(**api));
  return TakeBytes(**api, python::Call(**api, kModule, function, {Bytes(**api, payload)}), function);
}

}  // namespace ferrule

#include "python_api.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <mutex>
#include <vector>

namespace ferrule::python {
namespace {

std::atomic<const Api*> known{nullptr};

// Looks every function up; true when all are there.
bool LookUp(void* library, Api* api) {
  bool all = true;
#define FERRULE_LOOK_UP(name, result, parameters) \
  api->name.Set(dlsym(library, #name));           \
  all &= static_cast<bool>(api->name);
  FERRULE_PYTHON_FUNCTIONS(FERRULE_LOOK_UP)
#undef FERRULE_LOOK_UP
  for (const char* name : {"Py_IsFinalizing", "_Py_IsFinalizing"})
    if (!api->IsFinalizing) api->IsFinalizing.Set(dlsym(library, name));
  return all;
}

// A libpython that some other library has opened for itself alone is not among the global symbols: look for it by name.
void* FindLoadedLibrary() {
  std::string path;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* result) {
        const char* base = std::strrchr(info->dlpi_name, '/');
        base = base ? base + 1 : info->dlpi_name;
        if (std::strncmp(base, "libpython", 9) != 0) return 0;
        *static_cast<std::string*>(result) = info->dlpi_name;
        return 1;
      },
      &path);
  return path.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
}

std::string OutputOf(const char* command) {
  std::string text;
  FILE* pipe = popen(command, "r");
  if (!pipe) return text;
  char part[512];
  while (size_t count = std::fread(part, 1, sizeof(part), pipe)) text.append(part, count);
  pclose(pipe);
  return text;
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// Opens a libpython for a process that has none. `executable` becomes the python whose packages are used.
Result<void*> OpenLibrary(std::string* executable) {
  const char* given = std::getenv("FERRULE_PYTHON_LIBRARY");
  std::vector<std::string> candidates;
  std::vector<std::string> lines = Lines(
      OutputOf("python3 -c \"import sys, sysconfig as s; print(sys.executable); "
               "print(s.get_config_var('LIBDIR') or ''); print(s.get_config_var('INSTSONAME') or '')\" 2>/dev/null"));
  if (!lines.empty()) *executable = lines[0];
  if (given && *given) {
    candidates.push_back(given);
  } else if (lines.size() >= 3 && lines[2].find(".so") != std::string::npos) {
    candidates.push_back(lines[1] + "/" + lines[2]);
    candidates.push_back(lines[2]);
  }
  std::string tried;
  for (const std::string& path : candidates) {
    // Global, because Python's extension modules expect the interpreter's symbols there.
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL)) return library;
    tried += std::string("\n  why: ") + dlerror();
  }
  if (candidates.empty())
    tried = lines.empty() ? "\n  why: there is no python3 to ask for its library"
                          : "\n  why: " + lines[0] + " was built without a shared libpython";
  return FailedPrecondition(
      "compiling needs Python, and this process has no Python interpreter" + tried +
      "\n  fix: install Python's shared library, or set FERRULE_PYTHON_LIBRARY to the path of a libpython3.x.so");
}

Status StartInterpreter(void* library, const Api& api, const std::string& executable) {
  // Tells the interpreter which python it is, so that a virtual environment's packages are found.
  auto decode = reinterpret_cast<wchar_t* (*)(const char*, size_t*)>(dlsym(library, "Py_DecodeLocale"));
  auto set_name = reinterpret_cast<void (*)(const wchar_t*)>(dlsym(library, "Py_SetProgramName"));
  if (decode && set_name && !executable.empty())
    if (wchar_t* name = decode(executable.c_str(), nullptr)) set_name(name);  // must live as long as the interpreter
  api.Py_InitializeEx(0);  // without signal handlers: they are the application's
  if (!api.Py_IsInitialized()) return Internal("the Python interpreter does not start");
  api.PyEval_SaveThread();  // releases the GIL
  return {};
}

Result<const Api*> Find() {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  if (const Api* api = known.load()) return api;
  static Api api;
  std::string executable;
  void* library = RTLD_DEFAULT;
  if (!LookUp(library, &api)) {
    library = FindLoadedLibrary();
    if (!library) {
      auto opened = OpenLibrary(&executable);
      if (!opened.ok()) return opened.status();
      library = *opened;
    }
    if (!LookUp(library, &api))
      return FailedPrecondition(
          "this process's libpython lacks functions that Ferrule needs\n  fix: use Python 3.11 or newer");
  }
  if (!api.Py_IsInitialized()) FERRULE_RETURN_IF_ERROR(StartInterpreter(library, api, executable));
  known.store(&api);
  return &api;
}

constexpr std::pair<const char*, Code> kCodes[] = {
    {"CANCELLED", Code::kCancelled},
    {"UNKNOWN", Code::kUnknown},
    {"INVALID_ARGUMENT", Code::kInvalidArgument},
    {"DEADLINE_EXCEEDED", Code::kDeadlineExceeded},
    {"NOT_FOUND", Code::kNotFound},
    {"ALREADY_EXISTS", Code::kAlreadyExists},
    {"PERMISSION_DENIED", Code::kPermissionDenied},
    {"RESOURCE_EXHAUSTED", Code::kResourceExhausted},
    {"FAILED_PRECONDITION", Code::kFailedPrecondition},
    {"ABORTED", Code::kAborted},
    {"OUT_OF_RANGE", Code::kOutOfRange},
    {"UNIMPLEMENTED", Code::kUnimplemented},
    {"INTERNAL", Code::kInternal},
    {"UNAVAILABLE", Code::kUnavailable},
    {"DATA_LOSS", Code::kDataLoss},
    {"UNAUTHENTICATED", Code::kUnauthenticated},
};

bool IsA(const Api& api, Object* value, const char* builtin) {
  Ref module(api, api.PyImport_ImportModule("builtins"));
  Ref type(api, module ? api.PyObject_GetAttrString(module.get(), builtin) : nullptr);
  bool is = type && api.PyObject_IsInstance(value, type.get()) == 1;
  api.PyErr_Clear();
  return is;
}

// traceback.format_exception(type, value, traceback), joined; all of it or its last lines.
std::string Traceback(const Api& api, Object* type, Object* value, Object* traceback, bool whole) {
  std::string text;
  Ref module(api, api.PyImport_ImportModule("traceback"));
  Ref format(api, module ? api.PyObject_GetAttrString(module.get(), "format_exception") : nullptr);
  Ref empty(api, api.PyUnicode_FromStringAndSize("", 0));
  Ref join(api, empty ? api.PyObject_GetAttrString(empty.get(), "join") : nullptr);
  if (format && join) {
    Ref arguments(api, api.PyTuple_New(3));
    Ref none(api, nullptr);
    long at = 0;
    for (Object* item : {type, value, traceback}) {
      api.Py_IncRef(item);
      api.PyTuple_SetItem(arguments.get(), at++, item);
    }
    Ref lines(api, api.PyObject_CallObject(format.get(), arguments.get()));
    if (lines) {
      Ref one(api, api.PyTuple_New(1));
      api.PyTuple_SetItem(one.get(), 0, lines.release());
      Ref joined(api, api.PyObject_CallObject(join.get(), one.get()));
      if (joined) text = TextOf(api, joined.get());
    }
  }
  api.PyErr_Clear();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  constexpr int kLines = 16;
  size_t start = text.size();
  for (int i = 0; !whole && i < kLines && start != std::string::npos && start > 0; ++i)
    start = text.rfind('\n', start - 1);
  return whole || start == std::string::npos || start == 0 ? text : "…" + text.substr(start);
}

// The threads that hold the GIL by a `Gil` or wait for it, once for each.
struct Users {
  std::mutex mutex;
  std::vector<std::thread::id> threads;
  static Users& The() {
    static Users* users = new Users;  // threads outlive static destruction
    return *users;
  }
};

}  // namespace

void Hang() {
  for (;;) pause();
}

bool Ending(const Api& api) { return !api.Py_IsInitialized() || (api.IsFinalizing && api.IsFinalizing()); }

bool Lost(std::thread::id thread) {
  const Api* api = Known();
  if (!api || !Ending(*api)) return false;
  Users& users = Users::The();
  std::lock_guard lock(users.mutex);
  return std::find(users.threads.begin(), users.threads.end(), thread) != users.threads.end();
}

Gil::Gil(const Api& api) : api_(api) {
  Users& users = Users::The();
  {
    std::lock_guard lock(users.mutex);
    users.threads.push_back(std::this_thread::get_id());
  }
  state_ = api.PyGILState_Ensure();
}

Gil::~Gil() {
  api_.PyGILState_Release(state_);
  Users& users = Users::The();
  std::lock_guard lock(users.mutex);
  users.threads.erase(std::find(users.threads.begin(), users.threads.end(), std::this_thread::get_id()));
}

const Api* Known() { return known.load(); }

Result<const Api*> Interpreter() {
  const Api* api = known.load(std::memory_order_acquire);
  if (!api) {
    auto found = Find();
    if (!found.ok()) return found.status();
    api = *found;
  }
  if (Ending(*api))
    return FailedPrecondition(
        "the Python interpreter is shutting down, so nothing can be compiled or called back any more");
  return api;
}

std::string TextOf(const Api& api, Object* object) {
  std::string text;
  Ref string(api, api.PyObject_Str(object));
  Ref bytes(api, string ? api.PyUnicode_AsUTF8String(string.get()) : nullptr);
  char* data = nullptr;
  long size = 0;
  if (bytes && api.PyBytes_AsStringAndSize(bytes.get(), &data, &size) == 0)
    text.assign(data, static_cast<size_t>(size));
  api.PyErr_Clear();
  return text;
}

Code CodeOf(std::string_view name) {
  for (const auto& [known_name, known_code] : kCodes)
    if (name == known_name) return known_code;
  return Code::kOk;
}

Status TakeException(const Api& api, bool whole_traceback) {
  Object *type = nullptr, *value = nullptr, *traceback = nullptr;
  api.PyErr_Fetch(&type, &value, &traceback);
  if (!type) return Internal("a Python call failed without an exception");
  api.PyErr_NormalizeException(&type, &value, &traceback);
  Ref own_type(api, type), own_value(api, value), own_traceback(api, traceback);
  if (!value) return Internal("a Python call failed: " + TextOf(api, type));
  {
    Ref code(api, api.PyObject_GetAttrString(value, "code"));
    if (code && !whole_traceback) {
      Code known = CodeOf(TextOf(api, code.get()));
      if (known != Code::kOk) return Status(known, TextOf(api, value));
    }
    api.PyErr_Clear();
  }
  Code code = Code::kInternal;
  if (IsA(api, value, "MemoryError")) code = Code::kResourceExhausted;
  if (IsA(api, value, "KeyboardInterrupt")) code = Code::kCancelled;
  if (!traceback) {  // format_exception takes None for no traceback; the pending exception rarely has none
    Ref name(api, api.PyObject_GetAttrString(type, "__name__"));
    return Status(code, (name ? TextOf(api, name.get()) : "exception") + ": " + TextOf(api, value));
  }
  std::string text = Traceback(api, type, value, traceback, whole_traceback);
  if (whole_traceback) return Status(code, text);
  Ref name(api, api.PyObject_GetAttrString(type, "__name__"));
  return Status(code, (name ? TextOf(api, name.get()) : "exception") + ": " + TextOf(api, value) + "\n" + text);
}

Result<Ref> Call(const Api& api, const char* module, const char* function, std::initializer_list<Object*> arguments,
                 bool whole_traceback) {
  Ref tuple(api, api.PyTuple_New(static_cast<long>(arguments.size())));
  long at = 0;
  bool complete = static_cast<bool>(tuple);
  for (Object* argument : arguments) {
    complete &= argument != nullptr;
    if (tuple && argument)
      api.PyTuple_SetItem(tuple.get(), at++, argument);
    else if (argument)
      api.Py_DecRef(argument);
  }
  if (!complete) return TakeException(api);
  Ref loaded(api, api.PyImport_ImportModule(module));
  if (!loaded) return TakeException(api);
  Ref callable(api, api.PyObject_GetAttrString(loaded.get(), function));
  if (!callable) return TakeException(api);
  Ref result(api, api.PyObject_CallObject(callable.get(), tuple.get()));
  if (!result) return TakeException(api, whole_traceback);
  return result;
}

}  // namespace ferrule::python

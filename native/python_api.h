// CPython's functions, looked up at run time (all of them in the stable ABI, so one binary serves every version), and
// the RAII helpers to use them. Nothing here is called before Interpreter() has answered.
#pragma once

#include <cxxabi.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "denormals.h"
#include "status.h"

struct _object;  // PyObject

namespace ferrule::python {

using Object = ::_object;

// Name, result, parameters.
#define FERRULE_PYTHON_FUNCTIONS(F)                            \
  F(Py_IsInitialized, int, ())                                 \
  F(Py_InitializeEx, void, (int))                              \
  F(Py_IncRef, void, (Object*))                                \
  F(Py_DecRef, void, (Object*))                                \
  F(PyGILState_Ensure, int, ())                                \
  F(PyGILState_Release, void, (int))                           \
  F(PyGILState_Check, int, ())                                 \
  F(PyEval_SaveThread, void*, ())                              \
  F(PyEval_RestoreThread, void, (void*))                       \
  F(Py_AddPendingCall, int, (int (*)(void*), void*))           \
  F(PyImport_ImportModule, Object*, (const char*))             \
  F(PyObject_GetAttrString, Object*, (Object*, const char*))   \
  F(PyObject_CallObject, Object*, (Object*, Object*))          \
  F(PyObject_Str, Object*, (Object*))                          \
  F(PyObject_IsInstance, int, (Object*, Object*))              \
  F(PyTuple_New, Object*, (long))                              \
  F(PyTuple_SetItem, int, (Object*, long, Object*))            \
  F(PyList_New, Object*, (long))                               \
  F(PyList_Append, int, (Object*, Object*))                    \
  F(PyLong_FromLongLong, Object*, (long long))                 \
  F(PyBytes_FromStringAndSize, Object*, (const char*, long))   \
  F(PyBytes_AsStringAndSize, int, (Object*, char**, long*))    \
  F(PyUnicode_FromStringAndSize, Object*, (const char*, long)) \
  F(PyUnicode_AsUTF8String, Object*, (Object*))                \
  F(PyMemoryView_FromMemory, Object*, (char*, long, int))      \
  F(PySys_GetObject, Object*, (const char*))                   \
  F(PyErr_Occurred, Object*, ())                               \
  F(PyErr_Clear, void, ())                                     \
  F(PyErr_Fetch, void, (Object**, Object**, Object**))         \
  F(PyErr_NormalizeException, void, (Object**, Object**, Object**))

// Blocks the calling thread for ever.
[[noreturn]] void Hang();

// A function of CPython. While the interpreter shuts down, it ends every other thread that asks for the GIL by
// unwinding its stack (up to Python 3.13; later versions let it hang). That must not run destructors, which would use
// Python without the GIL, nor reach a noexcept function, which would abort the process; so the thread hangs here, too.
template <class Signature>
class Function;
template <class R, class... A>
class Function<R(A...)> {
 public:
  R operator()(A... arguments) const {
    try {
      return pointer_(arguments...);
    } catch (::abi::__forced_unwind&) {
      Hang();
    }
  }
  explicit operator bool() const { return pointer_ != nullptr; }
  void Set(void* address) { pointer_ = reinterpret_cast<R (*)(A...)>(address); }

 private:
  R (*pointer_)(A...) = nullptr;
};

struct Api {
#define FERRULE_DECLARE(name, result, parameters) Function<result parameters> name;
  FERRULE_PYTHON_FUNCTIONS(FERRULE_DECLARE)
#undef FERRULE_DECLARE
  Function<int()> IsFinalizing;  // Py_IsFinalizing since 3.13, _Py_IsFinalizing before
};

// The interpreter of this process; starts one when there is none. Fails with a sentence when no libpython can be found
// and when the interpreter is shutting down or gone.
Result<const Api*> Interpreter();

// The interpreter that was found before; null when Interpreter() never succeeded.
const Api* Known();

// Is the interpreter shutting down, or gone?
bool Ending(const Api& api);

// Is this thread one that uses Python or waits for the GIL while the interpreter shuts down? It will not come back.
bool Lost(std::thread::id thread);

// Holds the GIL, from any thread. Python computes with denormal numbers, also on threads that run programs.
class Gil {
 public:
  explicit Gil(const Api& api);
  ~Gil();
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  const Denormals mode_{Denormals::Mode::kKept};
  const Api& api_;
  int state_;
};

// Lets other Python threads run while the calling thread waits; does nothing when it does not hold the GIL.
class WithoutGil {
 public:
  explicit WithoutGil(const Api& api) : api_(api), state_(api.PyGILState_Check() ? api.PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (state_) api_.PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  const Api& api_;
  void* state_;
};

// Owns one reference; needs the GIL.
class Ref {
 public:
  Ref(const Api& api, Object* object) : api_(&api), object_(object) {}
  Ref(Ref&& other) noexcept : api_(other.api_), object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&&) = delete;
  ~Ref() {
    if (object_) api_->Py_DecRef(object_);
  }
  explicit operator bool() const { return object_ != nullptr; }
  Object* get() const { return object_; }
  Object* release() { return std::exchange(object_, nullptr); }

 private:
  const Api* api_;
  Object* object_;
};

// The UTF-8 text of str(object); empty on failure. Clears errors.
std::string TextOf(const Api& api, Object* object);

// The status code of that name ("INVALID_ARGUMENT"); kOk for any other text.
Code CodeOf(std::string_view name);

// Takes the pending exception. A FerruleError's `code` becomes the status code and str(error) the message; other
// exceptions become INTERNAL with type, text and traceback (all of it when `whole_traceback`, else its last lines).
Status TakeException(const Api& api, bool whole_traceback = false);

// module.function(*arguments); steals the references in `arguments`, of which a null one means a pending exception.
Result<Ref> Call(const Api& api, const char* module, const char* function, std::initializer_list<Object*> arguments,
                 bool whole_traceback = false);

}  // namespace ferrule::python

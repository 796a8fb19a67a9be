// The library call "ferrule.python_callback": a host callback of the program, run by ferrule.bridge.host_callback.
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "calls.h"
#include "program.h"
#include "python_api.h"

namespace ferrule {
namespace {

using python::Api;
using python::Gil;
using python::Object;
using python::Ref;

constexpr int kRead = 0x100, kWrite = 0x200;  // PyBUF_READ, PyBUF_WRITE

// Functions that no program needs any more, until somebody with the GIL tells Python so.
class Dropped {
 public:
  static Dropped& The() {
    static Dropped* dropped = new Dropped;  // programs outlive static destruction
    return *dropped;
  }
  void Add(int64_t id) {
    std::lock_guard lock(mutex_);
    ids_.push_back(id);
  }
  // With the GIL held; what CPython calls, so the argument and the result mean nothing.
  static int Release(void*) {
    const Api& api = *python::Known();
    Dropped& dropped = The();
    std::vector<int64_t> ids;
    {
      std::lock_guard lock(dropped.mutex_);
      ids.swap(dropped.ids_);
    }
    for (int64_t id : ids) {
      auto result = python::Call(api, "ferrule.bridge", "release_callback", {api.PyLong_FromLongLong(id)});
      api.PyErr_Clear();
    }
    return 0;
  }

 private:
  std::mutex mutex_;
  std::vector<int64_t> ids_;
};

class PythonCallback final : public Prepared {
 public:
  PythonCallback(int64_t id, const CallDesc& desc) : id_(id), operands_(desc.operands), results_(desc.results) {}

  // Frameworks drop programs on threads that they join while Python ends: such a thread must not wait for the GIL.
  ~PythonCallback() override {
    const Api* api = python::Known();
    if (!api || python::Ending(*api)) return;  // at the interpreter's end nobody needs the function any more
    Dropped::The().Add(id_);
    if (api->PyGILState_Check()) {
      Dropped::Release(nullptr);
    } else if (!python::Ending(*api)) {
      api->Py_AddPendingCall(&Dropped::Release, nullptr);  // where it is refused, the next callback does it
    }
  }

  // A program may still run when the framework has dropped its executable and with it the function: the program keeps
  // the function alive. Fails when there is no such function.
  static Status Retain(int64_t id) {
    auto found = python::Interpreter();
    if (!found.ok()) return found.status();
    const Api& api = **found;
    Gil gil(api);
    Dropped::Release(nullptr);
    return python::Call(api, "ferrule.bridge", "retain_callback", {api.PyLong_FromLongLong(id)}).status();
  }

  Status Run(void* const* operands, void* const* results, ExecContext&) const override {
    auto found = python::Interpreter();
    if (!found.ok()) return found.status();
    const Api& api = **found;
    Gil gil(api);
    Dropped::Release(nullptr);
    std::vector<Ref> views;
    Ref inputs(api, Describe(api, operands_, operands, kRead, &views));
    Ref outputs(api, Describe(api, results_, results, kWrite, &views));
    if (!inputs || !outputs) return python::TakeException(api);
    auto result = python::Call(api, "ferrule.bridge", "host_callback",
                               {api.PyLong_FromLongLong(id_), inputs.release(), outputs.release()}, true);
    Invalidate(api, views);
    return result.status();
  }

 private:
  // [(memoryview, dtype, dims), …]; null with an exception pending on failure.
  static Object* Describe(const Api& api, const std::vector<Shape>& shapes, void* const* addresses, int access,
                          std::vector<Ref>* views) {
    static char nothing;  // memory views must not be of null
    Ref list(api, api.PyList_New(0));
    for (size_t i = 0; list && i < shapes.size(); ++i) {
      auto* address = static_cast<char*>(addresses[i]);
      Ref view(api, api.PyMemoryView_FromMemory(address ? address : &nothing, ByteSize(shapes[i]), access));
      Ref dims(api, api.PyTuple_New(static_cast<long>(shapes[i].dims.size())));
      Ref item(api, api.PyTuple_New(3));
      if (!view || !dims || !item) return nullptr;
      for (size_t d = 0; d < shapes[i].dims.size(); ++d)
        api.PyTuple_SetItem(dims.get(), static_cast<long>(d), api.PyLong_FromLongLong(shapes[i].dims[d]));
      api.Py_IncRef(view.get());
      api.PyTuple_SetItem(item.get(), 0, view.get());
      api.PyTuple_SetItem(item.get(), 1, api.PyLong_FromLongLong(shapes[i].dtype));
      api.PyTuple_SetItem(item.get(), 2, dims.release());
      if (api.PyList_Append(list.get(), item.get()) != 0) return nullptr;
      views->push_back(std::move(view));
    }
    return list.release();
  }

  // The buffers are the program's: a view that Python has kept must not reach them later. One that an array still uses
  // cannot be taken back; the bridge copies what it hands to users.
  static void Invalidate(const Api& api, const std::vector<Ref>& views) {
    for (const Ref& view : views) {
      Ref release(api, api.PyObject_GetAttrString(view.get(), "release"));
      if (release) Ref(api, api.PyObject_CallObject(release.get(), nullptr));
      api.PyErr_Clear();
    }
  }

  int64_t id_;
  std::vector<Shape> operands_, results_;
};

Result<std::unique_ptr<Prepared>> Make(const CallDesc& desc) {
  auto found = desc.attrs.find("id");
  const int64_t* id = found == desc.attrs.end() ? nullptr : std::get_if<int64_t>(&found->second.data);
  if (!id) return InvalidArgument("the call 'ferrule.python_callback' has no attribute 'id' of type i64");
  FERRULE_RETURN_IF_ERROR(PythonCallback::Retain(*id));
  return std::unique_ptr<Prepared>(std::make_unique<PythonCallback>(*id, desc));
}

[[maybe_unused]] const bool registered = RegisterCall("ferrule.python_callback", &Make);

}  // namespace
}  // namespace ferrule

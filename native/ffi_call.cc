// A CALL step to an FFI handler: its attributes are encoded once, its buffers for each execution. LAPACK's handlers are
// called for parts of a batch, one in each thread.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "blas.h"
#include "ffi.h"
#include "ffi_context.h"
#include "program.h"
#include "thread_pool.h"

namespace ferrule {
XLA_FFI_DataType XlaType(int dtype) {
  static constexpr XLA_FFI_DataType kTypes[] = {XLA_FFI_DataType_INVALID,
                                                XLA_FFI_DataType_PRED,
                                                XLA_FFI_DataType_S8,
                                                XLA_FFI_DataType_S16,
                                                XLA_FFI_DataType_S32,
                                                XLA_FFI_DataType_S64,
                                                XLA_FFI_DataType_U8,
                                                XLA_FFI_DataType_U16,
                                                XLA_FFI_DataType_U32,
                                                XLA_FFI_DataType_U64,
                                                XLA_FFI_DataType_F16,
                                                XLA_FFI_DataType_F32,
                                                XLA_FFI_DataType_F64,
                                                XLA_FFI_DataType_BF16,
                                                XLA_FFI_DataType_C64,
                                                XLA_FFI_DataType_C128,
                                                XLA_FFI_DataType_F8E5M2,
                                                XLA_FFI_DataType_F8E4M3FN,
                                                XLA_FFI_DataType_F8E4M3B11FNUZ,
                                                XLA_FFI_DataType_F8E5M2FNUZ,
                                                XLA_FFI_DataType_F8E4M3FNUZ,
                                                XLA_FFI_DataType_S4,
                                                XLA_FFI_DataType_U4,
                                                XLA_FFI_DataType_TOKEN,
                                                XLA_FFI_DataType_S2,
                                                XLA_FFI_DataType_U2,
                                                XLA_FFI_DataType_F8E4M3,
                                                XLA_FFI_DataType_F8E3M4,
                                                XLA_FFI_DataType_F8E8M0FNU,
                                                XLA_FFI_DataType_F4E2M1FN,
                                                XLA_FFI_DataType_S1,
                                                XLA_FFI_DataType_U1};
  return dtype > 0 && dtype < static_cast<int>(std::size(kTypes)) ? kTypes[dtype] : XLA_FFI_DataType_INVALID;
}

namespace {

using namespace ffi;

// Types that XLA packs several of into a byte, while Ferrule gives each a byte of its own.
bool IsPacked(XLA_FFI_DataType type) {
  switch (type) {
    case XLA_FFI_DataType_S1:
    case XLA_FFI_DataType_U1:
    case XLA_FFI_DataType_S2:
    case XLA_FFI_DataType_U2:
    case XLA_FFI_DataType_S4:
    case XLA_FFI_DataType_U4:
    case XLA_FFI_DataType_F4E2M1FN:
      return true;
    default:
      return false;
  }
}

// A dictionary of attributes in the form that handlers read, with all it points to. Deques keep addresses stable.
class EncodedAttrs {
 public:
  Status Encode(const std::string& target, const Dict& dict) {
    for (const auto& [key, value] : dict) {  // sorted by name, as handlers expect
      const std::string& name = strings_.emplace_back(key);
      names_.push_back({name.data(), name.size()});
      FERRULE_RETURN_IF_ERROR(Add(target, name, value));
    }
    for (XLA_FFI_ByteSpan& name : names_) name_pointers_.push_back(&name);
    attrs_ = {XLA_FFI_Attrs_STRUCT_SIZE, nullptr,       static_cast<int64_t>(values_.size()), types_.data(),
              name_pointers_.data(),     values_.data()};
    return {};
  }
  const XLA_FFI_Attrs& attrs() const { return attrs_; }

 private:
  Status Add(const std::string& target, const std::string& name, const Value& value) {
    if (auto* number = std::get_if<int64_t>(&value.data)) {
      AddScalar(XLA_FFI_DataType_S64, number, sizeof(*number));
    } else if (auto* real = std::get_if<double>(&value.data)) {
      AddScalar(XLA_FFI_DataType_F64, real, sizeof(*real));
    } else if (auto* truth = std::get_if<bool>(&value.data)) {
      AddScalar(XLA_FFI_DataType_PRED, truth, sizeof(*truth));
    } else if (auto* scalar = std::get_if<TypedScalar>(&value.data)) {
      AddScalar(XlaType(scalar->dtype), scalar->raw, sizeof(scalar->raw));
    } else if (auto* text = std::get_if<std::string>(&value.data)) {
      const std::string& copy = strings_.emplace_back(*text);
      Push(XLA_FFI_AttrType_STRING, &spans_.emplace_back(XLA_FFI_ByteSpan{copy.data(), copy.size()}));
    } else if (auto* ints = std::get_if<std::vector<int64_t>>(&value.data)) {
      AddArray(XLA_FFI_DataType_S64, ints->data(), ints->size(), sizeof(int64_t));
    } else if (auto* reals = std::get_if<std::vector<double>>(&value.data)) {
      AddArray(XLA_FFI_DataType_F64, reals->data(), reals->size(), sizeof(double));
    } else if (auto* array = std::get_if<TypedArray>(&value.data)) {
      auto size = static_cast<size_t>(ElementBytes(array->dtype));
      if (size == 0) return Unsupported(target, name, "an array of an unknown element type");
      AddArray(XlaType(array->dtype), array->raw.data(), array->raw.size() / size, size);
    } else if (auto* dict = std::get_if<std::shared_ptr<Dict>>(&value.data)) {
      EncodedAttrs& inner = dicts_.emplace_back();
      FERRULE_RETURN_IF_ERROR(inner.Encode(target, **dict));
      Push(XLA_FFI_AttrType_DICTIONARY, &inner.attrs_);
    } else {
      return Unsupported(target, name, "a function or a list of mixed values");
    }
    return {};
  }

  static Status Unsupported(const std::string& target, const std::string& name, const char* what) {
    return InvalidArgument("the attribute '" + name + "' of the FFI call '" + target + "' is " + what +
                           ", which FFI handlers cannot take");
  }

  void Push(XLA_FFI_AttrType type, void* value) {
    types_.push_back(type);
    values_.push_back(value);
  }

  char* Keep(const void* data, size_t bytes) {
    // 8-byte units, so that every element is aligned.
    auto& storage = storage_.emplace_back(bytes / sizeof(uint64_t) + 1);
    if (bytes) std::memcpy(storage.data(), data, bytes);
    return reinterpret_cast<char*>(storage.data());
  }

  void AddScalar(XLA_FFI_DataType type, const void* data, size_t bytes) {
    Push(XLA_FFI_AttrType_SCALAR, &scalars_.emplace_back(XLA_FFI_Scalar{type, Keep(data, bytes)}));
  }

  void AddArray(XLA_FFI_DataType type, const void* data, size_t count, size_t element) {
    Push(XLA_FFI_AttrType_ARRAY, &arrays_.emplace_back(XLA_FFI_Array{type, count, Keep(data, count * element)}));
  }

  XLA_FFI_Attrs attrs_{};
  std::vector<XLA_FFI_AttrType> types_;
  std::vector<void*> values_;
  std::deque<XLA_FFI_ByteSpan> names_;
  std::vector<XLA_FFI_ByteSpan*> name_pointers_;
  std::deque<std::string> strings_;
  std::deque<XLA_FFI_ByteSpan> spans_;
  std::deque<XLA_FFI_Scalar> scalars_;
  std::deque<XLA_FFI_Array> arrays_;
  std::deque<std::vector<uint64_t>> storage_;
  std::deque<EncodedAttrs> dicts_;
};

// Which matrices of a batch; all, and no batch, where there is no end.
struct Part {
  int64_t begin = 0, end = 0;
};

class FfiCall final : public Prepared {
 public:
  Status Init(const CallDesc& desc) {
    desc_ = desc;
    lapack_ = desc.target.rfind("lapack_", 0) == 0;
    auto handler = FindHandler(desc.target);
    if (!handler.ok()) return handler.status();
    handler_ = *handler;
    TakeBatch();
    FERRULE_RETURN_IF_ERROR(attrs_.Encode(desc.target, desc_.attrs));
    FERRULE_RETURN_IF_ERROR(Describe(desc_.operands, &operands_));
    FERRULE_RETURN_IF_ERROR(Describe(desc_.results, &results_));
    if (!handler_.instantiate) return {};
    XLA_FFI_ExecutionContext context;
    context.states[XLA_FFI_ExecutionStage_INSTANTIATE] = &instance_;
    Frame frame(*this, nullptr, nullptr, &context);
    return Named(frame.Call(handler_.instantiate, XLA_FFI_ExecutionStage_INSTANTIATE));
  }

  Status Run(void* const* operands, void* const* results, ExecContext& run) const override {
    // JAX's routines call SciPy's LAPACK, whose threads hold each other up on a busy machine.
    std::optional<OneBlasThread> one;
    if (lapack_) one.emplace();
    if (batch_ <= 1 || handler_.prepare || handler_.initialize) return RunPart(operands, results, run, {});
    std::mutex mutex;
    Status first;
    run.pool->For(batch_, grain_, [&](int64_t begin, int64_t end) {
      Status status = RunPart(operands, results, run, {begin, end});
      std::lock_guard lock(mutex);
      if (first.ok()) first = std::move(status);
    });
    return first;
  }

 private:
  Status RunPart(void* const* operands, void* const* results, ExecContext& run, Part part) const {
    State prepared, initialized;
    XLA_FFI_ExecutionContext context;
    context.run = &run;
    context.one_thread = part.end > 0;
    context.states[XLA_FFI_ExecutionStage_INSTANTIATE] = &instance_;
    context.states[XLA_FFI_ExecutionStage_PREPARE] = &prepared;
    context.states[XLA_FFI_ExecutionStage_INITIALIZE] = &initialized;
    Frame frame(*this, operands, results, &context, part);
    if (handler_.prepare) FERRULE_RETURN_IF_ERROR(Named(frame.Call(handler_.prepare, XLA_FFI_ExecutionStage_PREPARE)));
    if (handler_.initialize)
      FERRULE_RETURN_IF_ERROR(Named(frame.Call(handler_.initialize, XLA_FFI_ExecutionStage_INITIALIZE)));
    return Named(frame.Call(handler_.execute, XLA_FFI_ExecutionStage_EXECUTE));
  }

  // Of calls of LAPACK the compiler says how many dimensions of every buffer, the slowest, number the matrices
  // (passes/lapack.py).
  void TakeBatch() {
    auto found = desc_.attrs.find("ferrule.batch");
    if (found == desc_.attrs.end() || desc_.operands.empty()) return;
    batch_dims_ = static_cast<size_t>(std::get<int64_t>(found->second.data));
    desc_.attrs.erase(found);
    const auto& dims = desc_.operands[0].dims;
    int64_t matrix = 1;
    batch_ = 1;
    for (size_t i = 0; i < dims.size(); ++i) (i < batch_dims_ ? batch_ : matrix) *= dims[i];
    // What a thread is worth, in about as many multiplications as LAPACK makes and in what a call costs.
    constexpr double kThreadWork = 1 << 17, kCall = 2000;
    const double elements = static_cast<double>(matrix);
    grain_ = static_cast<int64_t>(kThreadWork / (kCall + 8 * elements * std::sqrt(elements))) + 1;
  }

  // One call's buffers. Handlers only read them, but through pointers that are not const, hence a copy per call.
  class Frame {
   public:
    Frame(const FfiCall& call, void* const* operands, void* const* results, XLA_FFI_ExecutionContext* context,
          Part part = {})
        : operands_(call.operands_), results_(call.results_) {
      frame_.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
      frame_.api = &TheApi();
      frame_.ctx = context;
      pointers_.reserve(operands_.size() + results_.size());
      for (size_t i = 0; i < operands_.size(); ++i) Point(&operands_[i], operands ? operands[i] : nullptr);
      for (size_t i = 0; i < results_.size(); ++i) Point(&results_[i], results ? results[i] : nullptr);
      if (part.end > 0) {
        for (size_t i = 0; i < operands_.size(); ++i) Cut(call, call.desc_.operands[i], part, &operands_[i]);
        for (size_t i = 0; i < results_.size(); ++i) Cut(call, call.desc_.results[i], part, &results_[i]);
      }
      types_.assign(operands_.size(), XLA_FFI_ArgType_BUFFER);
      result_types_.assign(results_.size(), XLA_FFI_RetType_BUFFER);
      frame_.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, static_cast<int64_t>(operands_.size()), types_.data(),
                     pointers_.data()};
      frame_.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, static_cast<int64_t>(results_.size()), result_types_.data(),
                     pointers_.data() + operands_.size()};
      frame_.attrs = call.attrs_.attrs();
    }

    Status Call(void* handler, XLA_FFI_ExecutionStage stage) {
      frame_.stage = stage;
      frame_.future = nullptr;
      Status status = TakeError(reinterpret_cast<XLA_FFI_Handler*>(handler)(&frame_));
      if (!frame_.future) return status;
      std::unique_ptr<XLA_FFI_Future> future(frame_.future);
      Status later = future->Await();
      return status.ok() ? later : status;
    }

   private:
    void Point(XLA_FFI_Buffer* buffer, void* data) {
      buffer->data = data;
      pointers_.push_back(buffer);
    }

    // The part's matrices of a buffer, in one dimension.
    void Cut(const FfiCall& call, const Shape& shape, Part part, XLA_FFI_Buffer* buffer) {
      auto& dims =
          dims_.emplace_back(shape.dims.begin() + static_cast<std::ptrdiff_t>(call.batch_dims_) - 1, shape.dims.end());
      dims[0] = part.end - part.begin;
      buffer->dims = dims.data();
      buffer->rank = static_cast<int64_t>(dims.size());
      const int64_t bytes = shape.elements() / call.batch_ * ElementBytes(shape.dtype);
      buffer->data = static_cast<char*>(buffer->data) + part.begin * bytes;
    }

    std::vector<XLA_FFI_Buffer> operands_, results_;
    std::deque<std::vector<int64_t>> dims_;
    std::vector<void*> pointers_;
    std::vector<XLA_FFI_ArgType> types_;
    std::vector<XLA_FFI_RetType> result_types_;
    XLA_FFI_CallFrame frame_{};
  };

  Status Describe(std::vector<Shape>& shapes, std::vector<XLA_FFI_Buffer>* buffers) const {
    for (Shape& shape : shapes) {
      XLA_FFI_DataType type = XlaType(shape.dtype);
      if (type == XLA_FFI_DataType_INVALID || IsPacked(type))
        return Unimplemented("the FFI call '" + desc_.target + "' has a buffer of the element type number " +
                             std::to_string(shape.dtype) +
                             "\n  why: XLA packs several elements into a byte, Ferrule gives each its own");
      buffers->push_back({XLA_FFI_Buffer_STRUCT_SIZE, nullptr, type, nullptr, static_cast<int64_t>(shape.dims.size()),
                          shape.dims.data()});
    }
    return {};
  }

  Status Named(const Status& status) const {
    if (status.ok()) return status;
    return Status(status.code(), "the FFI call '" + desc_.target + "' failed: " + status.message());
  }

  CallDesc desc_;  // owns the dimensions that the buffers point to
  size_t batch_dims_ = 0;
  int64_t batch_ = 0, grain_ = 1;
  FfiHandler handler_;
  bool lapack_ = false;
  EncodedAttrs attrs_;
  std::vector<XLA_FFI_Buffer> operands_, results_;
  mutable State instance_;  // handlers synchronize their own state
};

}  // namespace

Result<std::unique_ptr<Prepared>> PrepareFfiCall(const CallDesc& desc) {
  auto call = std::make_unique<FfiCall>();
  FERRULE_RETURN_IF_ERROR(call->Init(desc));
  return std::unique_ptr<Prepared>(std::move(call));
}

}  // namespace ferrule

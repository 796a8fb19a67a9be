#include "buffer.h"

#include <optional>

#include "entry.h"
#include "program.h"
#include "python_api.h"

namespace ferrule {

std::string TypeName(int dtype) {
  static constexpr const char* kNames[] = {
      "invalid",       "pred",       "s8",         "s16", "s32",  "s64",      "u8",      "u16",    "u32",
      "u64",           "f16",        "f32",        "f64", "bf16", "c64",      "c128",    "f8e5m2", "f8e4m3fn",
      "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e4m3fnuz", "s4",  "u4",   "token",    "s2",      "u2",     "f8e4m3",
      "f8e3m4",        "f8e8m0fnu",  "f4e2m1fn",   "s1",  "u1",   "f6e2m3fn", "f6e3m2fn"};
  if (dtype < 0 || dtype >= static_cast<int>(std::size(kNames))) return "type " + std::to_string(dtype);
  return kNames[dtype];
}

std::string ShapeText(int dtype, const int64_t* dims, size_t rank) {
  std::string text = TypeName(dtype) + "[";
  for (size_t i = 0; i < rank; ++i) text += (i ? "," : "") + std::to_string(dims[i]);
  return text + "]";
}

Result<int64_t> CheckedBytes(int dtype, const int64_t* dims, size_t rank, const char* where) {
  if (rank > 0 && dims == nullptr) return InvalidArgument(std::string(where) + ": the dimensions are null");
  const int64_t element = ElementBytes(dtype);
  if (element == 0 && dtype != PJRT_Buffer_Type_TOKEN) {
    return InvalidArgument(std::string(where) + ": the element type " + TypeName(dtype) + " is not supported");
  }
  int64_t bytes = element;
  bool empty = false;
  for (size_t i = 0; i < rank; ++i) {
    if (dims[i] < 0) {
      return InvalidArgument(std::string(where) + ": dimension " + std::to_string(i) + " is negative (" +
                             std::to_string(dims[i]) + ")");
    }
    empty |= dims[i] == 0;
    if (!empty && __builtin_mul_overflow(bytes, dims[i], &bytes)) {
      return InvalidArgument(std::string(where) + ": an array of " + ShapeText(dtype, dims, rank) +
                             " is larger than any address space");
    }
  }
  return empty ? 0 : bytes;
}

Status CheckRowMajor(const PJRT_Buffer_MemoryLayout* layout, const int64_t* dims, size_t rank, int64_t element_bytes,
                     const char* where) {
  auto found = LayoutFrom(layout, dims, rank, element_bytes, where);
  if (!found.ok()) return found.status();
  if (*found == nullptr) return {};
  return Unimplemented(std::string(where) +
                       ": this call makes row-major buffers only; make one and give it another layout with a program "
                       "(jax.device_put with a Format), or leave the layout out");
}

PackedForms* Contents::Forms(Allocator* allocator) {
  if (exposed_.load(std::memory_order_relaxed) || !PackedForms::Enabled()) return nullptr;
  PackedForms* forms = forms_.load(std::memory_order_acquire);
  if (forms != nullptr) return forms;
  auto made = std::make_unique<PackedForms>(Ref<Allocator>::Share(allocator));
  // Another run may have been faster: then its own is taken.
  return forms_.compare_exchange_strong(forms, made.get(), std::memory_order_acq_rel) ? made.release() : forms;
}

int64_t Buffer::bytes() const {
  int64_t n = ElementBytes(dtype);
  for (int64_t d : dims) n *= d;
  return n;
}

std::string Buffer::TypeText() const { return ShapeText(dtype, dims.data(), dims.size()); }

Ref<Contents> Buffer::contents() const {
  std::lock_guard lock(mutex_);
  return contents_;
}

Result<Ref<Contents>> Buffer::Use(const char* what) const {
  Ref<Contents> contents = this->contents();
  if (contents) return contents;
  return InvalidArgument(std::string(what) + " (" + TypeText() + " on " + device()->description->text +
                         "): this buffer has been deleted or donated; keep a copy of an array that is needed after it "
                         "was donated, or do not donate it");
}

bool Buffer::deleted() const {
  std::lock_guard lock(mutex_);
  return !contents_;
}

Ref<Contents> Buffer::Take(bool* pinned) {
  std::lock_guard lock(mutex_);
  if (pins_ > 0 && contents_) pinned_ = contents_;
  if (pinned != nullptr) *pinned = pins_ > 0;
  return std::move(contents_);
}

void Buffer::PutBack(Ref<Contents> contents) {
  std::lock_guard lock(mutex_);
  contents_ = std::move(contents);
}

Status Buffer::Pin() {
  std::lock_guard lock(mutex_);
  if (!contents_) return InvalidArgument("an external reference to a deleted or donated buffer was asked for");
  ++pins_;
  return {};
}

Status Buffer::Unpin() {
  Ref<Contents> last;  // freed after the lock
  std::lock_guard lock(mutex_);
  if (pins_ == 0) return InvalidArgument("the buffer has no external references left to give back");
  if (--pins_ == 0) last = std::move(pinned_);
  return {};
}

namespace api {

Status PJRT_Buffer_Destroy(PJRT_Buffer_Destroy_Args& args) {
  delete From(args.buffer);
  return {};
}

Status PJRT_Buffer_ElementType(PJRT_Buffer_ElementType_Args& args) {
  args.type = static_cast<PJRT_Buffer_Type>(From(args.buffer)->dtype);
  return {};
}

Status PJRT_Buffer_Dimensions(PJRT_Buffer_Dimensions_Args& args) {
  args.dims = From(args.buffer)->dims.data();
  args.num_dims = From(args.buffer)->dims.size();
  return {};
}

Status PJRT_Buffer_UnpaddedDimensions(PJRT_Buffer_UnpaddedDimensions_Args& args) {
  args.unpadded_dims = From(args.buffer)->dims.data();
  args.num_dims = From(args.buffer)->dims.size();
  return {};
}

Status PJRT_Buffer_DynamicDimensionIndices(PJRT_Buffer_DynamicDimensionIndices_Args& args) {
  args.dynamic_dim_indices = nullptr;
  args.num_dynamic_dims = 0;
  return {};
}

Status PJRT_Buffer_GetMemoryLayout(PJRT_Buffer_GetMemoryLayout_Args& args) {
  const std::vector<int64_t>& order = LayoutOrder(From(args.buffer)->layout, From(args.buffer)->dims.size());
  args.layout = {};
  args.layout.struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE;
  args.layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  args.layout.tiled.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE;
  args.layout.tiled.minor_to_major = order.data();
  args.layout.tiled.minor_to_major_size = order.size();
  return {};
}

Status PJRT_Buffer_OnDeviceSizeInBytes(PJRT_Buffer_OnDeviceSizeInBytes_Args& args) {
  args.on_device_size_in_bytes = static_cast<size_t>(From(args.buffer)->bytes());
  return {};
}

Status PJRT_Buffer_Device(PJRT_Buffer_Device_Args& args) {
  args.device = To(From(args.buffer)->device());
  return {};
}

Status PJRT_Buffer_Memory(PJRT_Buffer_Memory_Args& args) {
  args.memory = From(args.buffer)->memory;
  return {};
}

Status PJRT_Buffer_Delete(PJRT_Buffer_Delete_Args& args) {
  From(args.buffer)->Delete();
  return {};
}

Status PJRT_Buffer_IsDeleted(PJRT_Buffer_IsDeleted_Args& args) {
  args.is_deleted = From(args.buffer)->deleted();
  return {};
}

Status PJRT_Buffer_IsOnCpu(PJRT_Buffer_IsOnCpu_Args& args) {
  args.is_on_cpu = !From(args.buffer)->device()->accelerator;
  return {};
}

namespace {

// Who asks for the event, or for the address, waits until the contents are there.
void Awaited(const Buffer& buffer, const Contents& contents) {
  if (contents.run != 0) buffer.device()->last_run.Await(contents.run);
}

}  // namespace

Status PJRT_Buffer_ReadyEvent(PJRT_Buffer_ReadyEvent_Args& args) {
  auto contents = From(args.buffer)->Use("the ready event's buffer");
  if (contents.ok()) Awaited(*From(args.buffer), **contents);
  Ref<Event> event = contents.ok() ? (*contents)->ready : Event::Failed(contents.status());
  args.event = To(event.release());
  return {};
}

namespace {

// The address of the data, once it is there: waits for the producer.
Result<void*> Address(Buffer* buffer) {
  auto contents = buffer->Use("the buffer whose address was asked for");
  if (!contents.ok()) return contents.status();
  Awaited(*buffer, **contents);
  if (!(*contents)->ready->IsReady()) {
    // JAX asks with the GIL held, and the producer may be waiting for the GIL to call back into Python.
    const python::Api* api = python::Known();
    const bool running = api != nullptr && !python::Ending(*api);
    std::optional<python::WithoutGil> released;
    if (running) released.emplace(*api);
    (void)(*contents)->ready->Await();
  }
  FERRULE_RETURN_IF_ERROR((*contents)->ready->status());
  return (*contents)->storage->data();
}

}  // namespace

Status PJRT_Buffer_UnsafePointer(PJRT_Buffer_UnsafePointer_Args& args) {
  auto address = Address(From(args.buffer));
  if (!address.ok()) return address.status();
  if (auto contents = From(args.buffer)->contents()) contents->Expose();
  args.buffer_pointer = reinterpret_cast<uintptr_t>(*address);
  return {};
}

Status PJRT_Buffer_OpaqueDeviceMemoryDataPointer(PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args& args) {
  auto address = Address(From(args.buffer));
  if (!address.ok()) return address.status();
  args.device_memory_ptr = *address;
  return {};
}

Status PJRT_Buffer_IncreaseExternalReferenceCount(PJRT_Buffer_IncreaseExternalReferenceCount_Args& args) {
  return From(args.buffer)->Pin();
}

Status PJRT_Buffer_DecreaseExternalReferenceCount(PJRT_Buffer_DecreaseExternalReferenceCount_Args& args) {
  return From(args.buffer)->Unpin();
}

}  // namespace api
}  // namespace ferrule

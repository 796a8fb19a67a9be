// Making buffers: from host memory, as views of foreign memory, empty, failed, or as a promise of a later buffer.
#include <cstring>

#include "buffer.h"
#include "entry.h"
#include "program.h"
#include "strided_copy.h"

namespace ferrule::api {
namespace {

bool Aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % kAlignment == 0; }

}  // namespace

Status PJRT_Client_BufferFromHostBuffer(PJRT_Client_BufferFromHostBuffer_Args& args) {
  constexpr const char* kWhere = "PJRT_Client_BufferFromHostBuffer";
  auto memory = ChooseMemory(From(args.client), args.memory, args.device, kWhere);
  if (!memory.ok()) return memory.status();
  auto bytes = CheckedBytes(args.type, args.dims, args.num_dims, kWhere);
  if (!bytes.ok()) return bytes.status();
  const int64_t element = ElementBytes(args.type);
  auto layout = LayoutFrom(args.device_layout, args.dims, args.num_dims, element, kWhere);
  if (!layout.ok()) return layout.status();
  if (*bytes > 0 && args.data == nullptr) return InvalidArgument(std::string(kWhere) + ": `data` is null");
  const bool strided = args.byte_strides != nullptr && args.num_byte_strides > 0;
  if (strided && args.num_byte_strides != args.num_dims) {
    return InvalidArgument(std::string(kWhere) + ": " + std::to_string(args.num_byte_strides) + " strides for " +
                           std::to_string(args.num_dims) + " dimensions");
  }
  // Whether the bytes come in the order in which they will lie.
  bool dense = *layout == nullptr && (!strided || IsRowMajor(args.dims, args.byte_strides, args.num_dims, element));
  std::vector<int64_t> order, given;
  if (!dense) {
    order = LayoutStrides(*layout, args.dims, args.num_dims, element);
    given = strided ? std::vector(args.byte_strides, args.byte_strides + args.num_dims)
                    : RowMajorStrides(args.dims, args.num_dims, element);
    dense = given == order;
  }
  const bool zero_copy = args.host_buffer_semantics == PJRT_HostBufferSemantics_kImmutableZeroCopy ||
                         args.host_buffer_semantics == PJRT_HostBufferSemantics_kMutableZeroCopy;
  Ref<Storage> storage;
  Ref<Event> done;
  if (zero_copy && dense && *bytes > 0 && Aligned(args.data) && !(*memory)->device->accelerator) {
    done = Event::New();
    const bool read_only = args.host_buffer_semantics == PJRT_HostBufferSemantics_kImmutableZeroCopy;
    storage = Storage::Alias(const_cast<void*>(args.data), *bytes, read_only, [done] { done->Set({}); });
  } else {
    auto allocated = Storage::Allocate((*memory)->allocator.get(), *bytes);
    if (!allocated.ok()) return allocated.status();
    storage = std::move(*allocated);
    auto* dst = static_cast<char*>(storage->data());
    std::unique_ptr<char[]> copy;
    const void* source = args.data;
    if (!dense) {
      if (!(*memory)->on_host()) copy = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(*bytes));
      StridedCopy(copy ? copy.get() : dst, order.data(), static_cast<const char*>(args.data), given.data(), args.dims,
                  args.num_dims, element);
      source = copy.get();
    }
    if (dense || copy) FERRULE_RETURN_IF_ERROR((*memory)->Write(dst, source, *bytes));
    done = Event::Done();
  }
  args.buffer = NewBuffer(*memory, args.type, args.dims, args.num_dims,
                          Ref<Contents>::Make(Event::Done(), std::move(storage)), *layout);
  args.done_with_host_buffer = To(done.release());
  return {};
}

Status PJRT_Client_CreateViewOfDeviceBuffer(PJRT_Client_CreateViewOfDeviceBuffer_Args& args) {
  constexpr const char* kWhere = "PJRT_Client_CreateViewOfDeviceBuffer";
  auto memory = ChooseMemory(From(args.client), args.memory, args.device, kWhere);
  if (!memory.ok()) return memory.status();
  auto bytes = CheckedBytes(args.element_type, args.dims, args.num_dims, kWhere);
  if (!bytes.ok()) return bytes.status();
  const int64_t element = ElementBytes(args.element_type);
  FERRULE_RETURN_IF_ERROR(CheckRowMajor(args.layout, args.dims, args.num_dims, element, kWhere));
  if (*bytes > 0 && args.device_buffer_ptr == nullptr) {
    return InvalidArgument(std::string(kWhere) + ": `device_buffer_ptr` is null");
  }
  if (element > 0 && reinterpret_cast<uintptr_t>(args.device_buffer_ptr) % std::min<int64_t>(element, 8) != 0) {
    return InvalidArgument(std::string(kWhere) + ": the memory is not aligned to its element type " +
                           TypeName(args.element_type) + "; copy it to aligned memory first");
  }
  std::function<void()> release;
  if (args.on_delete_callback != nullptr) {
    release = [f = args.on_delete_callback, data = args.device_buffer_ptr, user = args.on_delete_callback_arg] {
      f(data, user);
    };
  }
  // Read-only: its owner goes on using it, so donation must not hand it to an output.
  auto contents =
      Ref<Contents>::Make(Event::Done(), Storage::Alias(args.device_buffer_ptr, *bytes, true, std::move(release)));
  contents->Expose();
  args.buffer = NewBuffer(*memory, args.element_type, args.dims, args.num_dims, std::move(contents));
  return {};
}

Status PJRT_Client_CreateUninitializedBuffer(PJRT_Client_CreateUninitializedBuffer_Args& args) {
  constexpr const char* kWhere = "PJRT_Client_CreateUninitializedBuffer";
  auto memory = ChooseMemory(From(args.client), args.memory, args.device, kWhere);
  if (!memory.ok()) return memory.status();
  auto bytes = CheckedBytes(args.shape_element_type, args.shape_dims, args.shape_num_dims, kWhere);
  if (!bytes.ok()) return bytes.status();
  FERRULE_RETURN_IF_ERROR(CheckRowMajor(args.shape_layout, args.shape_dims, args.shape_num_dims,
                                        ElementBytes(args.shape_element_type), kWhere));
  auto storage = Storage::Allocate((*memory)->allocator.get(), *bytes);
  if (!storage.ok()) return storage.status();
  auto contents = Ref<Contents>::Make(Event::Done(), std::move(*storage));
  contents->Expose();  // who asks for it will write to it
  args.buffer = NewBuffer(*memory, args.shape_element_type, args.shape_dims, args.shape_num_dims, std::move(contents));
  return {};
}

Status PJRT_Client_CreateErrorBuffer(PJRT_Client_CreateErrorBuffer_Args& args) {
  constexpr const char* kWhere = "PJRT_Client_CreateErrorBuffer";
  auto memory = ChooseMemory(From(args.client), args.memory, nullptr, kWhere);
  if (!memory.ok()) return memory.status();
  auto bytes = CheckedBytes(args.shape_element_type, args.shape_dims, args.shape_num_dims, kWhere);
  if (!bytes.ok()) return bytes.status();
  Status error = StatusFrom(args.error_code, Text(args.error_message, args.error_message_size));
  args.buffer = NewBuffer(*memory, args.shape_element_type, args.shape_dims, args.shape_num_dims,
                          Ref<Contents>::Make(Event::Failed(std::move(error))));
  return {};
}

// An alias buffer is pending until it is fulfilled with another buffer's contents.
Status PJRT_Client_CreateAliasBuffer(PJRT_Client_CreateAliasBuffer_Args& args) {
  constexpr const char* kWhere = "PJRT_Client_CreateAliasBuffer";
  auto memory = ChooseMemory(From(args.client), args.memory, nullptr, kWhere);
  if (!memory.ok()) return memory.status();
  auto bytes = CheckedBytes(args.shape_element_type, args.shape_dims, args.shape_num_dims, kWhere);
  if (!bytes.ok()) return bytes.status();
  FERRULE_RETURN_IF_ERROR(CheckRowMajor(args.shape_layout, args.shape_dims, args.shape_num_dims,
                                        ElementBytes(args.shape_element_type), kWhere));
  Ref<Contents> promise = Ref<Contents>::Make(Event::New());
  promise->Expose();  // the buffer that it shares memory with may be
  args.alias_buffer = NewBuffer(*memory, args.shape_element_type, args.shape_dims, args.shape_num_dims, promise);
  args.fulfill_alias_buffer_cb = reinterpret_cast<PJRT_FulfillAliasBufferCallback*>(promise.release());
  return {};
}

Status PJRT_Client_FulfillAliasBuffer(PJRT_Client_FulfillAliasBuffer_Args& args) {
  if (args.fulfill_alias_buffer_cb == nullptr) {
    return InvalidArgument("PJRT_Client_FulfillAliasBuffer: `fulfill_alias_buffer_cb` is null");
  }
  Ref<Contents> promise = Ref<Contents>::Adopt(reinterpret_cast<Contents*>(args.fulfill_alias_buffer_cb));
  if (args.status_code != PJRT_Error_Code_OK) {
    promise->ready->Set(StatusFrom(args.status_code, Text(args.error_message, args.error_message_size)));
    return {};
  }
  Status failure;
  Ref<Contents> source;
  if (args.buffer == nullptr) {
    failure = InvalidArgument("PJRT_Client_FulfillAliasBuffer: neither a buffer nor an error was given");
  } else {
    auto used = From(args.buffer)->Use("the buffer that fulfills an alias");
    if (used.ok()) source = std::move(*used);
    failure = used.status();
    if (From(args.buffer)->layout != nullptr) {
      failure = InvalidArgument("PJRT_Client_FulfillAliasBuffer: the buffer that fulfills an alias must be row-major");
    }
  }
  if (!failure.ok()) {
    promise->ready->Set(failure);
    return failure;
  }
  source->ready->OnReady([promise, source](const Status& status) {
    if (status.ok()) promise->storage = source->storage;
    promise->ready->Set(status);
  });
  return {};
}

}  // namespace ferrule::api

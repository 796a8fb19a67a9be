// Moving a buffer's data: to the host, to another memory or device, as another type.
#include <cstring>
#include <numeric>

#include "buffer.h"
#include "entry.h"
#include "program.h"
#include "strided_copy.h"

namespace ferrule {
namespace {

// Byte strides of the host array that `layout` describes; empty for the buffer's own.
Result<std::vector<int64_t>> HostStrides(const PJRT_Buffer_MemoryLayout* layout, const Buffer& buffer) {
  constexpr const char* kWhere = "PJRT_Buffer_ToHostBuffer";
  const size_t rank = buffer.dims.size();
  if (layout == nullptr) return std::vector<int64_t>();
  std::vector<int64_t> strides(rank);
  if (layout->type == PJRT_Buffer_MemoryLayout_Type_Strides) {
    if (layout->strides.num_byte_strides != rank) {
      return InvalidArgument(std::string(kWhere) + ": the host layout has " +
                             std::to_string(layout->strides.num_byte_strides) + " strides, the buffer is " +
                             buffer.TypeText());
    }
    std::copy_n(layout->strides.byte_strides, rank, strides.begin());
    return strides;
  }
  const auto& tiled = layout->tiled;
  if (tiled.num_tiles != 0) {
    return Unimplemented(std::string(kWhere) +
                         ": tiled host layouts are not supported; ask for plain minor-to-major order");
  }
  if (tiled.minor_to_major_size != rank) {
    return InvalidArgument(std::string(kWhere) + ": the host layout orders " +
                           std::to_string(tiled.minor_to_major_size) + " dimensions, the buffer is " +
                           buffer.TypeText());
  }
  std::vector<bool> seen(rank);
  int64_t stride = ElementBytes(buffer.dtype);
  for (size_t i = 0; i < rank; ++i) {
    const int64_t axis = tiled.minor_to_major[i];
    if (axis < 0 || axis >= static_cast<int64_t>(rank) || seen[axis]) {
      return InvalidArgument(std::string(kWhere) + ": the host layout's minor-to-major order is not a permutation");
    }
    seen[axis] = true;
    strides[axis] = stride;
    stride *= buffer.dims[axis];
  }
  return strides;
}

// Runs `copy` once `source` is there, now or on the thread that makes it; the event tells when it is done.
Ref<Event> WhenReady(const Ref<Contents>& source, std::function<Status(Storage&)> copy) {
  if (source->ready->Succeeded()) {
    Status status = copy(*source->storage);
    return status.ok() ? Event::Done() : Event::Failed(std::move(status));
  }
  Ref<Event> done = Event::New();
  source->ready->OnReady([held = Ref<Contents>(source), done, copy = std::move(copy)](const Status& status) mutable {
    Status result = status.ok() ? copy(*held->storage) : status;
    held = nullptr;  // whoever is told that the copy is done finds the memory free
    done->Set(std::move(result));
  });
  return done;
}

Result<PJRT_Buffer*> CopyTo(Buffer* buffer, Memory* memory) {
  auto source = buffer->Use("the source of a copy");
  if (!source.ok()) return source.status();
  const int64_t bytes = buffer->bytes();
  constexpr int64_t kInlineBytes = 1 << 18;
  if ((*source)->ready->Succeeded() && bytes <= kInlineBytes) {
    auto storage = Storage::Allocate(memory->allocator.get(), bytes);
    if (!storage.ok()) return storage.status();
    FERRULE_RETURN_IF_ERROR(buffer->memory->CopyTo(memory, (*storage)->data(), (*source)->storage->data(), bytes));
    return NewBuffer(memory, buffer->dtype, buffer->dims.data(), buffer->dims.size(),
                     Ref<Contents>::Make(Event::Done(), std::move(*storage)), buffer->layout);
  }
  Ref<Contents> target = Ref<Contents>::Make(Event::New());
  auto copy = [client = buffer->client, source = *source, target, bytes, from = buffer->memory, memory] {
    Status status = source->ready->Await();
    if (status.ok()) {
      auto storage = Storage::Allocate(memory->allocator.get(), bytes);
      status = storage.status();
      if (status.ok()) status = from->CopyTo(memory, (*storage)->data(), source->storage->data(), bytes);
      if (status.ok()) target->storage = std::move(*storage);
    }
    target->ready->Set(std::move(status));
  };
  memory->device->queue.Add(std::move(copy), target->ready);
  return NewBuffer(memory, buffer->dtype, buffer->dims.data(), buffer->dims.size(), std::move(target), buffer->layout);
}

// The checked start of a raw byte range.
Status CheckRange(const Buffer& buffer, int64_t offset, int64_t size, const char* where) {
  if (offset >= 0 && size >= 0 && offset <= buffer.bytes() && size <= buffer.bytes() - offset) return {};
  return InvalidArgument(std::string(where) + ": bytes " + std::to_string(offset) + " to " +
                         std::to_string(offset + size) + " are not inside a buffer of " +
                         std::to_string(buffer.bytes()) + " bytes");
}

// A raw copy whose destination the caller names later, when its own allocation is ready.
struct FutureCopy {
  Ref<Client> client;  // so that the memory lives
  Memory* memory;
  Ref<Contents> source;
  Ref<Event> done;
  int64_t offset, size;

  static void Ready(PJRT_Buffer_CopyRawToHostFuture_Callback_Args* args) {
    std::unique_ptr<FutureCopy> self(static_cast<FutureCopy*>(args->callback_data));
    if (args->error_code != PJRT_Error_Code_OK) {
      self->done->Set(StatusFrom(args->error_code, Text(args->error_message, args->error_message_size)));
      return;
    }
    if (args->dst == nullptr && self->size > 0) {
      self->done->Set(InvalidArgument("PJRT_Buffer_CopyRawToHostFuture: the destination is null"));
      return;
    }
    self->source->ready->OnReady([client = self->client, memory = self->memory, source = self->source,
                                  done = self->done, offset = self->offset, size = self->size,
                                  dst = args->dst](const Status& status) {
      if (!status.ok()) {
        done->Set(status);
        return;
      }
      done->Set(memory->Read(dst, static_cast<const char*>(source->storage->data()) + offset, size));
    });
  }
};

// A donation that waits for the caller to say that its dependency is met.
struct ControlledDonation {
  Ref<Contents> source, target;

  static void Ready(PJRT_Buffer_DonateWithControlDependency_Callback_Args* args) {
    std::unique_ptr<ControlledDonation> self(static_cast<ControlledDonation*>(args->callback_data));
    if (args->error_code != PJRT_Error_Code_OK) {
      self->target->ready->Set(StatusFrom(args->error_code, Text(args->error_message, args->error_message_size)));
      return;
    }
    self->source->ready->OnReady([source = self->source, target = self->target](const Status& status) {
      if (status.ok()) target->storage = source->storage;
      target->ready->Set(status);
    });
  }
};

}  // namespace

namespace api {

Status PJRT_Buffer_ToHostBuffer(PJRT_Buffer_ToHostBuffer_Args& args) {
  if (args.src == nullptr) return InvalidArgument("PJRT_Buffer_ToHostBuffer: `src` is null");
  const Buffer& buffer = *From(args.src);
  const auto bytes = static_cast<size_t>(buffer.bytes());
  if (args.dst == nullptr) {
    args.dst_size = bytes;
    args.event = nullptr;
    return {};
  }
  if (args.dst_size < bytes) {
    return InvalidArgument("PJRT_Buffer_ToHostBuffer: the destination has " + std::to_string(args.dst_size) +
                           " bytes, " + buffer.TypeText() + " needs " + std::to_string(bytes));
  }
  auto strides = HostStrides(args.host_layout, buffer);
  if (!strides.ok()) return strides.status();
  auto source = buffer.Use("the source of a copy to the host");
  if (!source.ok()) return source.status();
  auto* dst = static_cast<char*>(args.dst);
  const int64_t element = ElementBytes(buffer.dtype);
  const size_t rank = buffer.dims.size();
  std::vector<int64_t> own;
  bool same = strides->empty();
  if (!same) {
    own = LayoutStrides(buffer.layout, buffer.dims.data(), rank, element);
    same =
        *strides == own || (buffer.layout == nullptr && IsRowMajor(buffer.dims.data(), strides->data(), rank, element));
  }
  if (same) {
    args.event = To(WhenReady(*source, [dst, bytes, client = buffer.client, memory = buffer.memory](Storage& data) {
                      return memory->Read(dst, data.data(), static_cast<int64_t>(bytes));
                    }).release());
    return {};
  }
  std::vector<int64_t> dims(buffer.dims.begin(), buffer.dims.end());
  args.event =
      To(WhenReady(*source,
                   [dst, element, bytes, client = buffer.client, memory = buffer.memory, dims = std::move(dims),
                    strides = *strides, own = std::move(own)](Storage& data) -> Status {
                     const auto* from = static_cast<const char*>(data.data());
                     std::unique_ptr<char[]> copy;
                     if (!memory->on_host()) {
                       copy = std::make_unique_for_overwrite<char[]>(bytes);
                       FERRULE_RETURN_IF_ERROR(memory->Read(copy.get(), from, static_cast<int64_t>(bytes)));
                       from = copy.get();
                     }
                     StridedCopy(dst, strides.data(), from, own.data(), dims.data(), dims.size(), element);
                     return {};
                   })
             .release());
  return {};
}

Status PJRT_Buffer_CopyRawToHost(PJRT_Buffer_CopyRawToHost_Args& args) {
  const Buffer& buffer = *From(args.buffer);
  const int64_t offset = args.offset, size = args.transfer_size;
  FERRULE_RETURN_IF_ERROR(CheckRange(buffer, offset, size, "PJRT_Buffer_CopyRawToHost"));
  if (args.dst == nullptr && size > 0) return InvalidArgument("PJRT_Buffer_CopyRawToHost: `dst` is null");
  auto source = buffer.Use("the source of a copy to the host");
  if (!source.ok()) return source.status();
  args.event = To(
      WhenReady(*source, [dst = args.dst, offset, size, client = buffer.client, memory = buffer.memory](Storage& data) {
        return memory->Read(dst, static_cast<char*>(data.data()) + offset, size);
      }).release());
  return {};
}

Status PJRT_Buffer_CopyRawToHostFuture(PJRT_Buffer_CopyRawToHostFuture_Args& args) {
  const Buffer& buffer = *From(args.buffer);
  FERRULE_RETURN_IF_ERROR(CheckRange(buffer, args.offset, args.transfer_size, "PJRT_Buffer_CopyRawToHostFuture"));
  auto source = buffer.Use("the source of a copy to the host");
  if (!source.ok()) return source.status();
  Ref<Event> done = Event::New();
  args.callback_data =
      new FutureCopy{buffer.client, buffer.memory, std::move(*source), done, args.offset, args.transfer_size};
  args.future_ready_callback = FutureCopy::Ready;
  args.event = To(done.release());
  return {};
}

Status PJRT_Buffer_CopyToDevice(PJRT_Buffer_CopyToDevice_Args& args) {
  auto memory = ChooseMemory(From(args.buffer)->client.get(), nullptr, args.dst_device, "PJRT_Buffer_CopyToDevice");
  if (!memory.ok()) return memory.status();
  auto copy = CopyTo(From(args.buffer), *memory);
  if (!copy.ok()) return copy.status();
  args.dst_buffer = *copy;
  return {};
}

Status PJRT_Buffer_CopyToMemory(PJRT_Buffer_CopyToMemory_Args& args) {
  auto memory = ChooseMemory(From(args.buffer)->client.get(), args.dst_memory, nullptr, "PJRT_Buffer_CopyToMemory");
  if (!memory.ok()) return memory.status();
  auto copy = CopyTo(From(args.buffer), *memory);
  if (!copy.ok()) return copy.status();
  args.dst_buffer = *copy;
  return {};
}

// The same bytes under another type; the contents are shared, nothing is copied.
Status PJRT_Buffer_Bitcast(PJRT_Buffer_Bitcast_Args& args) {
  constexpr const char* kWhere = "PJRT_Buffer_Bitcast";
  const Buffer& buffer = *From(args.buffer);
  auto bytes = CheckedBytes(args.element_type, args.dims, args.num_dims, kWhere);
  if (!bytes.ok()) return bytes.status();
  FERRULE_RETURN_IF_ERROR(
      CheckRowMajor(args.device_layout, args.dims, args.num_dims, ElementBytes(args.element_type), kWhere));
  if (buffer.layout != nullptr) {
    return Unimplemented(std::string(kWhere) + ": " + buffer.TypeText() + " has the layout " +
                         LayoutText(buffer.layout, buffer.dims.size()) +
                         "; only row-major buffers can be seen as another type");
  }
  if (*bytes != buffer.bytes()) {
    return InvalidArgument(std::string(kWhere) + ": " + buffer.TypeText() + " has " + std::to_string(buffer.bytes()) +
                           " bytes, " + ShapeText(args.element_type, args.dims, args.num_dims) + " has " +
                           std::to_string(*bytes));
  }
  auto contents = buffer.Use("the source of a bitcast");
  if (!contents.ok()) return contents.status();
  args.out_buffer = NewBuffer(buffer.memory, args.element_type, args.dims, args.num_dims, std::move(*contents));
  return {};
}

Status PJRT_Buffer_DonateWithControlDependency(PJRT_Buffer_DonateWithControlDependency_Args& args) {
  Buffer* buffer = From(args.buffer);
  Ref<Contents> source = buffer->Take();
  if (!source) return buffer->Use("the buffer to donate").status();
  Ref<Contents> target = Ref<Contents>::Make(Event::New());
  args.out_buffer =
      NewBuffer(buffer->memory, buffer->dtype, buffer->dims.data(), buffer->dims.size(), target, buffer->layout);
  args.callback_data = new ControlledDonation{std::move(source), std::move(target)};
  args.dependency_ready_callback = ControlledDonation::Ready;
  return {};
}

}  // namespace api
}  // namespace ferrule

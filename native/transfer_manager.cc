// Transfers in pieces: buffers that exist before their data has arrived, and are ready with the piece flagged last.
#include <cstring>
#include <mutex>

#include "buffer.h"
#include "entry.h"
#include "program.h"
#include "strided_copy.h"

namespace ferrule {

class TransferManager {
 public:
  struct Item {
    int dtype;
    Dims dims;
    int64_t bytes;
    Ref<Storage> storage;
    Ref<Contents> contents;
  };

  TransferManager(Memory* memory, std::vector<Item> items)
      : client(Ref<Client>::Share(memory->device->client)), memory(memory), items(std::move(items)) {}
  ~TransferManager() {
    for (Item& item : items) {
      item.contents->ready->Set(
          {Code::kCancelled, "the transfer to this buffer was abandoned before its data arrived"});
    }
  }

  Result<Item*> Find(int index) {
    if (index >= 0 && index < static_cast<int>(items.size())) return &items[index];
    return InvalidArgument("buffer index " + std::to_string(index) + " of a transfer with " +
                           std::to_string(items.size()) + " buffers");
  }
  // The item, while it still takes data.
  Result<Item*> Open(int index) {
    auto item = Find(index);
    if (item.ok() && (*item)->contents->ready->IsReady()) {
      return FailedPrecondition("buffer " + std::to_string(index) + " of the transfer is complete or failed already");
    }
    return item;
  }
  static void Finish(Item& item) {
    item.contents->storage = item.storage;
    item.contents->ready->Set({});
  }

  const Ref<Client> client;
  Memory* const memory;
  std::vector<Item> items;
};

namespace api {

Status PJRT_Client_CreateBuffersForAsyncHostToDevice(PJRT_Client_CreateBuffersForAsyncHostToDevice_Args& args) {
  constexpr const char* kWhere = "PJRT_Client_CreateBuffersForAsyncHostToDevice";
  auto memory = ChooseMemory(From(args.client), args.memory, nullptr, kWhere);
  if (!memory.ok()) return memory.status();
  std::vector<TransferManager::Item> items;
  for (size_t i = 0; i < args.num_shape_specs; ++i) {
    const PJRT_ShapeSpec& spec = args.shape_specs[i];
    auto bytes = CheckedBytes(spec.element_type, spec.dims, spec.num_dims, kWhere);
    if (!bytes.ok()) return bytes.status();
    if (args.device_layouts != nullptr && i < args.num_device_layouts) {
      FERRULE_RETURN_IF_ERROR(
          CheckRowMajor(args.device_layouts[i], spec.dims, spec.num_dims, ElementBytes(spec.element_type), kWhere));
    }
    auto storage = Storage::Allocate((*memory)->allocator.get(), *bytes);
    if (!storage.ok()) return storage.status();
    items.push_back({spec.element_type, Dims(spec.dims, spec.num_dims), *bytes, std::move(*storage),
                     Ref<Contents>::Make(Event::New())});
  }
  args.transfer_manager = To(new TransferManager(*memory, std::move(items)));
  return {};
}

Status PJRT_AsyncHostToDeviceTransferManager_Destroy(PJRT_AsyncHostToDeviceTransferManager_Destroy_Args& args) {
  delete From(args.transfer_manager);
  return {};
}

Status PJRT_AsyncHostToDeviceTransferManager_TransferData(
    PJRT_AsyncHostToDeviceTransferManager_TransferData_Args& args) {
  auto item = From(args.transfer_manager)->Open(args.buffer_index);
  if (!item.ok()) return item.status();
  const int64_t bytes = (*item)->bytes;
  if (args.offset < 0 || args.transfer_size < 0 || args.offset > bytes || args.transfer_size > bytes - args.offset) {
    return InvalidArgument("a transfer of " + std::to_string(args.transfer_size) + " bytes at offset " +
                           std::to_string(args.offset) + " does not fit a buffer of " + std::to_string(bytes) +
                           " bytes");
  }
  if (args.transfer_size > 0) {
    if (args.data == nullptr) return InvalidArgument("the data of a transfer is null");
    FERRULE_RETURN_IF_ERROR(
        From(args.transfer_manager)
            ->memory->Write(static_cast<char*>((*item)->storage->data()) + args.offset, args.data, args.transfer_size));
  }
  if (args.is_last_transfer) TransferManager::Finish(**item);
  args.done_with_h2d_transfer = To(Event::Done().release());
  return {};
}

Status PJRT_AsyncHostToDeviceTransferManager_TransferLiteral(
    PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args& args) {
  constexpr const char* kWhere = "PJRT_AsyncHostToDeviceTransferManager_TransferLiteral";
  auto item = From(args.transfer_manager)->Open(args.buffer_index);
  if (!item.ok()) return item.status();
  const bool fits = args.shape_element_type == (*item)->dtype && args.shape_num_dims == (*item)->dims.size() &&
                    std::equal((*item)->dims.begin(), (*item)->dims.end(), args.shape_dims);
  if (!fits) {
    return InvalidArgument(std::string(kWhere) + ": the literal is " +
                           ShapeText(args.shape_element_type, args.shape_dims, args.shape_num_dims) +
                           ", the buffer is " + ShapeText((*item)->dtype, (*item)->dims.data(), (*item)->dims.size()));
  }
  FERRULE_RETURN_IF_ERROR(CheckRowMajor(args.shape_layout, args.shape_dims, args.shape_num_dims,
                                        ElementBytes(args.shape_element_type), kWhere));
  if ((*item)->bytes > 0) {
    if (args.data == nullptr) return InvalidArgument(std::string(kWhere) + ": `data` is null");
    FERRULE_RETURN_IF_ERROR(
        From(args.transfer_manager)->memory->Write((*item)->storage->data(), args.data, (*item)->bytes));
  }
  TransferManager::Finish(**item);
  args.done_with_h2d_transfer = To(Event::Done().release());
  return {};
}

Status PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer(
    PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args& args) {
  TransferManager* manager = From(args.transfer_manager);
  auto item = manager->Find(args.buffer_index);
  if (!item.ok()) return item.status();
  args.buffer_out =
      NewBuffer(manager->memory, (*item)->dtype, (*item)->dims.data(), (*item)->dims.size(), (*item)->contents);
  return {};
}

Status PJRT_AsyncHostToDeviceTransferManager_Device(PJRT_AsyncHostToDeviceTransferManager_Device_Args& args) {
  args.device_out = To(From(args.transfer_manager)->memory->device);
  return {};
}

Status PJRT_AsyncHostToDeviceTransferManager_BufferCount(PJRT_AsyncHostToDeviceTransferManager_BufferCount_Args& args) {
  args.buffer_count = From(args.transfer_manager)->items.size();
  return {};
}

Status PJRT_AsyncHostToDeviceTransferManager_BufferSize(PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args& args) {
  auto item = From(args.transfer_manager)->Find(args.buffer_index);
  if (!item.ok()) return item.status();
  args.buffer_size = static_cast<size_t>((*item)->bytes);
  return {};
}

Status PJRT_AsyncHostToDeviceTransferManager_SetBufferError(
    PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args& args) {
  auto item = From(args.transfer_manager)->Open(args.buffer_index);
  if (!item.ok()) return item.status();
  (*item)->contents->ready->Set(StatusFrom(args.error_code, Text(args.error_message, args.error_message_size)));
  return {};
}

// Metadata is a hint for transports; memory copies need none.
Status PJRT_AsyncHostToDeviceTransferManager_AddMetadata(PJRT_AsyncHostToDeviceTransferManager_AddMetadata_Args&) {
  return {};
}

}  // namespace api
}  // namespace ferrule

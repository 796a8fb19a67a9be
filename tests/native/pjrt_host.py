"""A small PJRT host for the runtime's tests: calls the plugin's table through ctypes, knows nothing of Ferrule."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ferrule.ir.types import BY_NUMPY, BY_PJRT
from ferrule.pjrt import ctypes_abi
from ferrule.pjrt.ctypes_abi import PjrtError, Table, make

__all__ = ["Host", "PjrtError", "Table"]

ONLY_DURING_CALL, UNTIL_TRANSFER, ZERO_COPY, MUTABLE_ZERO_COPY = range(4)


def aligned(array: np.ndarray, offset: int = 0) -> np.ndarray:
    """A copy whose data begins `offset` bytes after a 64-byte boundary."""
    raw = np.empty(array.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class Host:
    """One client and shorthands for its calls; handles are plain addresses."""

    def __init__(self, table: Table, **options: Any) -> None:
        self.table = table
        values = [ctypes_abi.named_value(k, v) for k, v in options.items()]
        self.client = self("Client_Create", create_options=values, num_options=len(values)).client

    def __call__(self, name: str, /, **values: Any) -> Any:
        return self.table.call("PJRT_" + name, **values)

    def close(self) -> None:
        self("Client_Destroy", client=self.client)

    def list(self, address: int, count: int) -> list[int]:
        return list((ctypes.c_void_p * count).from_address(address)) if count else []

    def devices(self) -> list[int]:
        args = self("Client_AddressableDevices", client=self.client)
        return self.list(args.addressable_devices, args.num_addressable_devices)

    def memories(self, device: int) -> list[int]:
        args = self("Device_AddressableMemories", device=device)
        return self.list(args.memories, args.num_memories)

    def memory(self, device: int = 0) -> int:
        return self("Device_DefaultMemory", device=self.devices()[device]).memory

    def stats(self, device: int = 0) -> Any:
        return self("Device_MemoryStats", device=self.devices()[device])

    def put(
        self, array: np.ndarray, semantics: int = ONLY_DURING_CALL, memory: int | None = None, keep: bool = False
    ) -> Any:
        """The array as a buffer; with `keep` also the event that says when the host memory is free again."""
        args = self(
            "Client_BufferFromHostBuffer",
            client=self.client,
            data=array.ctypes.data,
            type=BY_NUMPY[array.dtype].pjrt,
            dims=(ctypes.c_int64 * max(array.ndim, 1))(*array.shape),
            num_dims=array.ndim,
            byte_strides=(ctypes.c_int64 * max(array.ndim, 1))(*array.strides),
            num_byte_strides=array.ndim,
            host_buffer_semantics=semantics,
            memory=memory or self.memory(),
        )
        if keep:
            return args.buffer, args.done_with_host_buffer
        self("Event_Destroy", event=args.done_with_host_buffer)
        return args.buffer

    def shape(self, buffer: int) -> tuple[int, ...]:
        args = self("Buffer_Dimensions", buffer=buffer)
        return tuple((ctypes.c_int64 * args.num_dims).from_address(args.dims)) if args.num_dims else ()

    def get(self, buffer: int, layout: Any = None) -> np.ndarray:
        """The buffer's contents; waits. `layout` as in the C API."""
        dtype = BY_PJRT[self("Buffer_ElementType", buffer=buffer).type].numpy
        out = np.empty(self.shape(buffer), dtype)
        args = self("Buffer_ToHostBuffer", src=buffer, dst=out.ctypes.data, dst_size=out.nbytes, host_layout=layout)
        self.wait(args.event)
        return out

    def wait(self, event: int) -> None:
        """Awaits and destroys; raises the event's error."""
        try:
            self("Event_Await", event=event)
        finally:
            self("Event_Destroy", event=event)

    def ready(self, event: int) -> bool:
        return self("Event_IsReady", event=event).is_ready

    def deleted(self, buffer: int) -> bool:
        return self("Buffer_IsDeleted", buffer=buffer).is_deleted

    def pointer(self, buffer: int) -> int:
        return self("Buffer_OpaqueDeviceMemoryDataPointer", buffer=buffer).device_memory_ptr

    def destroy(self, *buffers: int) -> None:
        for buffer in buffers:
            self("Buffer_Destroy", buffer=buffer)

    def load(self, data: bytes, options: bytes = b"") -> int:
        """A loaded executable from a serialized program."""
        return self(
            "Executable_DeserializeAndLoad",
            client=self.client,
            serialized_executable=data,
            serialized_executable_size=len(data),
            overridden_serialized_compile_options=options or None,
            overridden_serialized_compile_options_size=len(options),
        ).loaded_executable

    def execute(
        self, executable: int, *devices: list[int], outputs: int = 1, keep: tuple[int, ...] = (), complete: bool = True
    ) -> Any:
        """Runs on as many devices as there are argument lists; waits for completion, gives lists of output buffers."""
        rows = [(ctypes.c_void_p * max(len(row), 1))(*row) for row in devices]
        outs = [(ctypes.c_void_p * max(outputs, 1))() for _ in devices]
        events = (ctypes.c_void_p * len(devices))()
        options = make(
            "PJRT_ExecuteOptions",
            non_donatable_input_indices=(ctypes.c_int64 * max(len(keep), 1))(*keep),
            num_non_donatable_input_indices=len(keep),
        )
        self(
            "LoadedExecutable_Execute",
            executable=executable,
            options=options,
            argument_lists=(ctypes.c_void_p * len(rows))(*map(ctypes.addressof, rows)),
            num_devices=len(devices),
            num_args=len(devices[0]),
            output_lists=(ctypes.c_void_p * len(outs))(*map(ctypes.addressof, outs)),
            device_complete_events=events,
        )
        for event in events:
            if complete:
                self.wait(event)
            else:
                self("Event_Destroy", event=event)
        lists = [list(out)[:outputs] for out in outs]
        return lists if len(devices) > 1 else lists[0]

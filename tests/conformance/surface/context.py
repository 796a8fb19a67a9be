"""What a check is given: the plugin, a client, and short forms of what checks do often. Works with any plugin."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from registry import Unsupported

from ferrule.client import Buffer, Client, Device, LoadedExecutable, PjrtError, Plugin, compile_options
from ferrule.ir.types import BY_NUMPY, BY_PJRT
from ferrule.pjrt import abi, ctypes_abi
from ferrule.pjrt.ctypes_abi import make

ONLY_DURING_CALL, UNTIL_TRANSFER_COMPLETES, ZERO_COPY, MUTABLE_ZERO_COPY = range(4)
F32, S32, U32 = 11, 4, 8
CODES = {name.removeprefix("PJRT_Error_Code_"): n for name, n in abi.ENUMS["PJRT_Error_Code"].values.items()}
ONE = np.ones(4, np.float32)


def parse_options(words: Sequence[str]) -> dict[str, str | int | float | bool]:
    """`name=value` words as options of a client."""
    options: dict[str, str | int | float | bool] = {}
    for word in words:
        name, _, value = word.partition("=")
        if value in ("true", "false"):
            options[name] = value == "true"
        elif value.lstrip("-").isdigit():
            options[name] = int(value)
        else:
            options[name] = value
    return options


def array_of(address: int | None, count: int, kind: Any = ctypes.c_void_p) -> list[Any]:
    """A C array as a list."""
    return list((kind * count).from_address(address)) if address and count else []


def aligned(array: np.ndarray, offset: int = 0) -> np.ndarray:
    """A copy whose data begins `offset` bytes after a 64-byte boundary."""
    raw = np.empty(array.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class Event:
    """An event that the caller owns."""

    def __init__(self, context: Context, handle: int | None) -> None:
        assert handle, "the plugin gave no event"
        self.context, self.handle = context, handle

    def __del__(self) -> None:
        self.destroy()

    def destroy(self) -> None:
        if self.handle:
            handle, self.handle = self.handle, 0
            self.context.call("Event_Destroy", event=handle)

    @property
    def ready(self) -> bool:
        return bool(self.context.call("Event_IsReady", event=self.handle).is_ready)

    def wait(self) -> None:
        """Awaits; raises the event's error."""
        self.context.call("Event_Await", event=self.handle)

    def failure(self) -> PjrtError | None:
        """Awaits; the error, if there is one."""
        try:
            self.wait()
        except PjrtError as error:
            return error
        return None

    def on_ready(self, function: Callable[[PjrtError | None], None]) -> None:
        """Calls the function once the event is ready; it gets the error."""

        @ctypes_abi.callback("PJRT_Event_OnReadyCallback")
        def callback(error: int | None, _: Any) -> None:
            try:
                self.context.plugin.table.check(error)
            except PjrtError as raised:
                function(raised)
            else:
                function(None)

        self.context.kept.append(callback)
        self.context.call("Event_OnReady", event=self.handle, callback=callback)


class Context:
    """One plugin with one client; everything that checks share."""

    def __init__(self, plugin: Plugin, options: dict[str, Any], note: Callable[[str], None]) -> None:
        self.plugin, self.options, self.note = plugin, options, note
        self.kept: list[Any] = []  # callbacks that C may still call
        self._programs: dict[bytes, LoadedExecutable] = {}

    # --- the plugin

    def about(self) -> dict[str, Any]:
        """What the plugin says of itself, for the report."""
        known: dict[str, Any] = {"api_version": "{}.{}".format(*self.plugin.table.version)}
        try:
            known["extensions"] = sorted(self.plugin.table.extensions())
            known |= {
                "platform": self.client.platform,
                "platform_version": self.client.platform_version,
                "devices": len(self.client.devices),
            }
        except PjrtError as error:
            known["error"] = str(error)
        return known

    def call(self, function: str, **inputs: Any) -> Any:
        """Calls a function of the table; the struct that it filled. Objects stand for their handles, and live on until
        the call returns."""
        return self.plugin.call(function, **{k: getattr(v, "handle", v) for k, v in inputs.items()})

    def fails(self, function: str, *codes: str, **inputs: Any) -> PjrtError:
        """Calls a function that must fail (with one of the codes, if any are given); the error."""
        return self.error_of(lambda: self.call(function, **inputs), *codes, what=function)

    def error_of(self, function: Callable[[], Any], *codes: str, what: str = "it") -> PjrtError:
        """Runs what must fail; the error. UNIMPLEMENTED, if not among the codes, makes the check unsupported."""
        try:
            function()
        except PjrtError as error:
            if error.code == "UNIMPLEMENTED" and "UNIMPLEMENTED" not in codes:
                raise
            assert not codes or error.code in codes, f"{what} gave {error.code}, not {' or '.join(codes)}: {error}"
            assert error.message, f"{what} gave {error.code} without a message"
            return error
        raise AssertionError(f"{what} succeeded")

    def extension(self, name: str) -> None:
        """Says that the check needs an extension."""
        if name not in self.plugin.table.extensions():
            raise Unsupported(f"the plugin has no {name} extension")

    def ext(self, extension: str, function: str, **inputs: Any) -> Any:
        """Calls a function of an extension."""
        return self.plugin.table.extension_call(extension, function, **inputs)

    def since(self, minor: int) -> None:
        """Says that the check is about something that came with a minor version of PJRT."""
        if self.plugin.table.version[1] < minor:
            raise Unsupported(f"the plugin declares PJRT 0.{self.plugin.table.version[1]}; this came with 0.{minor}")

    # --- clients, devices, memories

    @cached_property
    def client(self) -> Client:
        """The client that checks share."""
        return self.new_client()

    def new_client(self) -> Client:
        return self.plugin.client(**self.options)

    @property
    def device(self) -> Device:
        return self.client.devices[0]

    def device_pair(self) -> tuple[Device, Device]:
        """Two devices, or the check is unsupported."""
        if len(self.client.devices) < 2:
            raise Unsupported("the client has one device")
        return self.client.devices[0], self.client.devices[1]

    def description(self, device: Device) -> int:
        return self.call("Device_GetDescription", device=device.handle).device_description

    def memories(self, device: Device | None = None) -> list[int]:
        args = self.call("Device_AddressableMemories", device=(device or self.device).handle)
        return array_of(args.memories, args.num_memories)

    def memory(self, device: Device | None = None) -> int:
        return self.call("Device_DefaultMemory", device=(device or self.device).handle).memory

    def text(self, function: str, field: str, **inputs: Any) -> str:
        """A string that a function gives in `field` and `field_size`."""
        args = self.call(function, **inputs)
        return ctypes_abi.text(getattr(args, field), getattr(args, field + "_size"))

    def memory_kind(self, memory: int) -> str:
        return self.text("Memory_Kind", "kind", memory=memory)

    # --- buffers

    def put_with_event(
        self, array: np.ndarray, semantics: int = ONLY_DURING_CALL, *, strides: bool = True, **inputs: Any
    ) -> tuple[Buffer, Event]:
        """The array on a device, and the event that says when the host memory is free again."""
        given: dict[str, Any] = {
            "client": self.client.handle,
            "data": array.ctypes.data,
            "type": BY_NUMPY[array.dtype].pjrt,
            "dims": list(array.shape),
            "num_dims": array.ndim,
            "host_buffer_semantics": semantics,
        }
        if strides and array.ndim:
            given |= {"byte_strides": list(array.strides), "num_byte_strides": array.ndim}
        if not {"memory", "device"} & set(inputs):
            given["memory"] = self.memory()
        args = self.call("Client_BufferFromHostBuffer", **(given | inputs))
        self.kept.append(array)  # the plugin may read it as long as it likes
        return Buffer(self.client, args.buffer), Event(self, args.done_with_host_buffer)

    def put(self, array: np.ndarray, semantics: int = ONLY_DURING_CALL, **inputs: Any) -> Buffer:
        """The array on a device; waits until the host memory is free unless the plugin may keep it."""
        buffer, done = self.put_with_event(array, semantics, **inputs)
        if semantics in (ONLY_DURING_CALL, UNTIL_TRANSFER_COMPLETES):
            done.wait()
        return buffer

    def get(self, buffer: Buffer, layout: Any = None) -> np.ndarray:
        """The buffer on the host, read in a host layout as in the C API (row-major without one)."""
        dtype = BY_PJRT[self.call("Buffer_ElementType", buffer=buffer.handle).type].numpy
        out = np.empty(buffer.shape, dtype)
        if layout is None and out.ndim:
            order = make("PJRT_Buffer_MemoryLayout_Tiled", **self.row_major(out.ndim))
            layout = make("PJRT_Buffer_MemoryLayout", type=0, tiled=order)
        args = self.call(
            "Buffer_ToHostBuffer", src=buffer.handle, dst=out.ctypes.data, dst_size=out.nbytes, host_layout=layout
        )
        Event(self, args.event).wait()
        return out

    @staticmethod
    def row_major(rank: int) -> dict[str, Any]:
        return {"minor_to_major": list(reversed(range(rank))), "minor_to_major_size": rank}

    def ready_event(self, buffer: Buffer) -> Event:
        return Event(self, self.call("Buffer_ReadyEvent", buffer=buffer.handle).event)

    def pointer(self, buffer: Buffer) -> int:
        """The address of the buffer's memory, where the host can read it."""
        if not self.call("Buffer_IsOnCpu", buffer=buffer.handle).is_on_cpu:
            raise Unsupported("the buffer's memory is not the host's")
        self.ready_event(buffer).wait()
        return self.call("Buffer_OpaqueDeviceMemoryDataPointer", buffer=buffer.handle).device_memory_ptr or 0

    def error_buffer(self, code: str = "DATA_LOSS", message: str = "lost") -> Buffer:
        """Four floats that failed."""
        args = self.call(
            "Client_CreateErrorBuffer",
            client=self.client.handle,
            error_code=CODES[code],
            error_message=message,
            error_message_size=len(message),
            memory=self.memory(),
            **self.shape(4),
        )
        return Buffer(self.client, args.buffer)

    @staticmethod
    def shape(*dims: int, type: int = F32) -> dict[str, Any]:
        """The fields of a shape, as most functions name them; row-major."""
        order = make("PJRT_Buffer_MemoryLayout_Tiled", **Context.row_major(len(dims)))
        return {
            "shape_dims": list(dims),
            "shape_num_dims": len(dims),
            "shape_element_type": type,
            "shape_layout": make("PJRT_Buffer_MemoryLayout", type=0, tiled=order),
        }

    # --- programs

    def compile(self, code: bytes, client: Client | None = None, **options: Any) -> LoadedExecutable:
        """Compiles for the first device (or as the options say); the checks share what has no options."""
        if client is None and not options:
            if code not in self._programs:
                self._programs[code] = self.client.compile(code)
            return self._programs[code]
        client = client or self.client
        given = compile_options(**options) if options else None
        return client.compile(code, options=given)

    def launch(
        self,
        program: LoadedExecutable,
        *rows: Sequence[Buffer],
        events: bool = True,
        keep: Sequence[int] = (),
        **more: Any,
    ) -> tuple[list[list[Buffer]], list[Event]]:
        """Executes without waiting: output buffers and completion events, a list per device."""
        inputs = [(ctypes.c_void_p * max(len(row), 1))(*(b.handle for b in row)) for row in rows]
        outputs = [(ctypes.c_void_p * max(program.num_outputs, 1))() for _ in rows]
        complete = (ctypes.c_void_p * len(rows))()
        fields = {k: more.pop(k) for k in list(more) if k not in ("execute_device",)}
        options = make(
            "PJRT_ExecuteOptions",
            non_donatable_input_indices=list(keep),
            num_non_donatable_input_indices=len(keep),
            **fields,
        )
        self.call(
            "LoadedExecutable_Execute",
            executable=program.handle,
            options=options,
            argument_lists=(ctypes.c_void_p * len(rows))(*map(ctypes.addressof, inputs)),
            num_devices=len(rows),
            num_args=len(rows[0]),
            output_lists=(ctypes.c_void_p * len(rows))(*map(ctypes.addressof, outputs)),
            device_complete_events=complete if events else None,
            **more,
        )
        made = [[Buffer(self.client, h or 0) for h in list(row)[: program.num_outputs]] for row in outputs]
        return made, [Event(self, h) for h in complete] if events else []

    def slow(self, program: LoadedExecutable, seconds: float) -> np.ndarray:
        """The count that keeps programs.COUNT busy for about that long."""
        if not hasattr(self, "_per_step"):
            data = self.put(np.zeros(4, np.int32))
            steps = 20_000
            while True:
                count = self.put(np.array(steps, np.int32))
                started = time.perf_counter()
                self.get(program.execute([count, data])[0])
                taken = time.perf_counter() - started
                if taken > 0.02:
                    break
                steps *= 4
            self._per_step = taken / steps
        return np.array(min(int(seconds / self._per_step), 2**29), np.int32)

    def in_threads(self, count: int, function: Callable[[int], None]) -> None:
        """Runs the function in threads; raises the first failure."""
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                function(number)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def close(self) -> None:
        """Destroys programs and client, in this order."""
        self._programs.clear()
        self.__dict__.pop("client", None)

"""The framework side of PJRT in Python: load any plugin, compile, move buffers, execute.

Works with every PJRT plugin (libferrule.so or another vendor's): only the C API is used. Objects own their PJRT
handles and destroy them when they are collected; every failing call raises `PjrtError` with the plugin's own code and
message.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ferrule.client.options import compile_options
from ferrule.errors import FerruleError, InvalidArgument, NotFound
from ferrule.ir.types import BY_NUMPY, BY_PJRT
from ferrule.pjrt import abi
from ferrule.pjrt.ctypes_abi import struct

_CODES = {value: name.removeprefix("PJRT_Error_Code_") for name, value in abi.ENUMS["PJRT_Error_Code"].values.items()}
_ONLY_DURING_CALL = 0


class PjrtError(FerruleError):
    """An error that a plugin returned; `code` is its status code name ("INVALID_ARGUMENT", …)."""

    def __init__(self, code: str, message: str, call: str) -> None:
        super().__init__(message)
        self.code, self.call = code, call


class Plugin:
    """A loaded PJRT plugin."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._library = ctypes.CDLL(str(self.path))
        except OSError as error:
            raise NotFound(f"cannot open the PJRT plugin {self.path}", why=str(error), fix="check the path") from error
        try:
            entry = self._library.GetPjrtApi
        except AttributeError:
            raise InvalidArgument(f"{self.path} is not a PJRT plugin", why="it does not export GetPjrtApi") from None
        entry.restype = ctypes.c_void_p
        address = entry()
        if not address:
            raise InvalidArgument(f"GetPjrtApi of {self.path} returned null")
        self._api = struct("PJRT_Api").from_address(address)
        version = self._api.pjrt_api_version
        self.version = (version.major_version, version.minor_version)
        self.call("Plugin_Initialize")

    def has(self, function: str) -> bool:
        """Does the plugin's table hold this function (name without "PJRT_")?"""
        name = "PJRT_" + function
        field = abi.STRUCTS_BY_NAME["PJRT_Api"].field(name)
        return self._api.struct_size >= field.end and bool(getattr(self._api, name))

    def call(self, function: str, **inputs: Any) -> Any:
        """Calls a function of the table with the given input fields; returns the filled argument struct."""
        name = "PJRT_" + function
        if not self.has(function):
            raise PjrtError("UNIMPLEMENTED", f"the plugin {self.path.name} has no {name}", function)
        kind = struct(name + "_Args")
        args = kind(struct_size=abi.STRUCTS_BY_NAME[name + "_Args"].struct_size, **inputs)
        void = name in abi.VOID_FUNCTIONS
        prototype = ctypes.CFUNCTYPE(None if void else ctypes.c_void_p, ctypes.c_void_p)
        error = prototype(_address(getattr(self._api, name)))(ctypes.addressof(args))
        if error:
            raise self.error(error, function)
        return args

    def error(self, handle: int, function: str) -> PjrtError:
        """Turns a PJRT_Error into an exception and destroys it."""
        code = self.call("Error_GetCode", error=handle).code
        message = self.call("Error_Message", error=handle)
        text = ctypes.string_at(_address(message.message), message.message_size).decode(errors="replace")
        self.call("Error_Destroy", error=handle)
        return PjrtError(_CODES.get(code, str(code)), text, function)

    def attributes(self) -> dict[str, Any]:
        """The plugin's attributes (StableHLO versions and so on)."""
        args = self.call("Plugin_Attributes")
        return _named_values(args.attributes, args.num_attributes)

    def client(self, **options: str | bool | int | float) -> Client:
        """Creates a client; options are the plugin's own."""
        return Client(self, options)

    def await_event(self, event: int, function: str) -> None:
        """Waits for an event, destroys it, raises its error."""
        try:
            self.call("Event_Await", event=event)
        except PjrtError as error:
            error.call = function
            raise
        finally:
            self.call("Event_Destroy", event=event)


def _address(pointer: Any) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


def _text(pointer: Any, size: int) -> str:
    return ctypes.string_at(_address(pointer), size).decode(errors="replace")


def _pointers(base: Any, count: int) -> list[int]:
    return list((ctypes.c_void_p * count).from_address(_address(base))) if count else []


def _named_values(base: Any, count: int) -> dict[str, Any]:
    kind = struct("PJRT_NamedValue")
    values: dict[str, Any] = {}
    for item in (kind * count).from_address(_address(base)) if count else ():
        name = _text(item.name, item.name_size)
        match item.type:
            case 0:
                values[name] = _text(item.string_value, item.value_size)
            case 1:
                values[name] = item.int64_value
            case 2:
                at = _address(item.int64_array_value)
                values[name] = list((ctypes.c_int64 * item.value_size).from_address(at)) if item.value_size else []
            case 3:
                values[name] = item.float_value
            case 4:
                values[name] = item.bool_value
    return values


def _make_named_values(options: Mapping[str, Any], keep: list[Any]) -> Any:
    kind = struct("PJRT_NamedValue")
    items = (kind * max(1, len(options)))()
    for item, (name, value) in zip(items, options.items(), strict=False):
        raw = ctypes.create_string_buffer(name.encode())
        keep.append(raw)
        item.struct_size = abi.STRUCTS_BY_NAME["PJRT_NamedValue"].struct_size
        item.name, item.name_size = ctypes.addressof(raw), len(name.encode())
        if isinstance(value, bool):
            item.type, item.bool_value, item.value_size = 4, value, 1
        elif isinstance(value, int):
            item.type, item.int64_value, item.value_size = 1, value, 1
        elif isinstance(value, float):
            item.type, item.float_value, item.value_size = 3, value, 1
        else:
            text = ctypes.create_string_buffer(str(value).encode())
            keep.append(text)
            item.type, item.string_value, item.value_size = 0, ctypes.addressof(text), len(text.value)
    return items


class Device:
    """One device of a client."""

    def __init__(self, client: Client, handle: int) -> None:
        plugin = client.plugin
        self.client, self.handle = client, handle
        described = plugin.call("Device_GetDescription", device=handle).device_description
        described = _address(described)
        self.id: int = plugin.call("DeviceDescription_Id", device_description=described).id
        kind = plugin.call("DeviceDescription_Kind", device_description=described)
        self.kind = _text(kind.device_kind, kind.device_kind_size)
        shown = plugin.call("DeviceDescription_ToString", device_description=described)
        self.text = _text(shown.to_string, shown.to_string_size)

    def __repr__(self) -> str:
        return self.text

    def memory_stats(self) -> dict[str, int]:
        """Bytes in use, peak, limit, … as far as the plugin reports them."""
        args = self.client.plugin.call("Device_MemoryStats", device=self.handle)
        stats = {"bytes_in_use": args.bytes_in_use}
        for name, _ in args._fields_:
            if name.endswith("_is_set") and getattr(args, name):
                stats[name.removesuffix("_is_set")] = getattr(args, name.removesuffix("_is_set"))
        return stats


class Client:
    """A client: the devices of one plugin in this process."""

    def __init__(self, plugin: Plugin, options: Mapping[str, Any] | None = None) -> None:
        self.plugin, self.handle = plugin, 0
        keep: list[Any] = []
        values = _make_named_values(options or {}, keep)
        args = plugin.call("Client_Create", create_options=ctypes.addressof(values), num_options=len(options or {}))
        self.handle = _address(args.client)
        name = plugin.call("Client_PlatformName", client=self.handle)
        self.platform = _text(name.platform_name, name.platform_name_size)
        version = plugin.call("Client_PlatformVersion", client=self.handle)
        self.platform_version = _text(version.platform_version, version.platform_version_size)
        found = plugin.call("Client_AddressableDevices", client=self.handle)
        handles = _pointers(found.addressable_devices, found.num_addressable_devices)
        self.devices = [Device(self, h) for h in handles]

    def __del__(self) -> None:
        if getattr(self, "handle", 0):
            self.plugin.call("Client_Destroy", client=self.handle)
            self.handle = 0

    def put(self, array: Any, device: Device | None = None) -> Buffer:
        """Copies a host array to a device (the first one by default)."""
        data = np.asarray(array)
        dtype = BY_NUMPY.get(data.dtype)
        if dtype is None:
            raise InvalidArgument(f"arrays of dtype {data.dtype} cannot be moved to a device")
        dims = (ctypes.c_int64 * max(1, data.ndim))(*data.shape)
        strides = (ctypes.c_int64 * max(1, data.ndim))(*data.strides)
        args = self.plugin.call(
            "Client_BufferFromHostBuffer",
            client=self.handle,
            data=data.__array_interface__["data"][0],
            type=dtype.pjrt,
            dims=ctypes.addressof(dims),
            num_dims=data.ndim,
            byte_strides=ctypes.addressof(strides),
            num_byte_strides=data.ndim,
            host_buffer_semantics=_ONLY_DURING_CALL,
            device=(device or self.devices[0]).handle,
        )
        buffer = Buffer(self, _address(args.buffer))
        self.plugin.await_event(_address(args.done_with_host_buffer), "Client_BufferFromHostBuffer")
        return buffer

    def compile(self, code: bytes, *, format: str = "mlir", options: bytes | None = None) -> LoadedExecutable:
        """Compiles a program (StableHLO portable artifact, MLIR bytecode or text) for the client's first device."""
        options = compile_options([self.devices[0].id]) if options is None else options
        keep = [ctypes.create_string_buffer(b, len(b) or 1) for b in (code, format.encode(), options)]
        program = struct("PJRT_Program")(
            struct_size=abi.STRUCTS_BY_NAME["PJRT_Program"].struct_size,
            code=ctypes.addressof(keep[0]),
            code_size=len(code),
            format=ctypes.addressof(keep[1]),
            format_size=len(format.encode()),
        )
        args = self.plugin.call(
            "Client_Compile",
            client=self.handle,
            program=ctypes.addressof(program),
            compile_options=ctypes.addressof(keep[2]),
            compile_options_size=len(options),
        )
        return LoadedExecutable(self, _address(args.executable))

    def load(self, data: bytes) -> LoadedExecutable:
        """Loads what `LoadedExecutable.serialize` gave."""
        keep = ctypes.create_string_buffer(data, len(data) or 1)
        args = self.plugin.call(
            "Executable_DeserializeAndLoad",
            client=self.handle,
            serialized_executable=ctypes.addressof(keep),
            serialized_executable_size=len(data),
        )
        return LoadedExecutable(self, _address(args.loaded_executable))


class Buffer:
    """An array on a device."""

    def __init__(self, client: Client, handle: int) -> None:
        self.client, self.handle = client, handle

    def __del__(self) -> None:
        if self.handle:
            self.client.plugin.call("Buffer_Destroy", buffer=self.handle)
            self.handle = 0

    @property
    def shape(self) -> tuple[int, ...]:
        args = self.client.plugin.call("Buffer_Dimensions", buffer=self.handle)
        return tuple((ctypes.c_int64 * args.num_dims).from_address(_address(args.dims))) if args.num_dims else ()

    @property
    def dtype(self) -> np.dtype[Any]:
        return BY_PJRT[self.client.plugin.call("Buffer_ElementType", buffer=self.handle).type].numpy

    def numpy(self) -> np.ndarray[Any, Any]:
        """Waits for the buffer and copies it to the host."""
        out = np.empty(self.shape, self.dtype)
        size = ctypes.c_size_t(out.nbytes)
        args = self.client.plugin.call(
            "Buffer_ToHostBuffer", src=self.handle, dst=out.__array_interface__["data"][0], dst_size=size.value
        )
        self.client.plugin.await_event(_address(args.event), "Buffer_ToHostBuffer")
        return out

    def delete(self) -> None:
        """Gives the memory back; the buffer cannot be used any more."""
        self.client.plugin.call("Buffer_Delete", buffer=self.handle)

    @property
    def is_deleted(self) -> bool:
        return bool(self.client.plugin.call("Buffer_IsDeleted", buffer=self.handle).is_deleted)


class LoadedExecutable:
    """A compiled program on a client's devices."""

    def __init__(self, client: Client, handle: int) -> None:
        self.client, self.handle = client, handle
        plugin = client.plugin
        got = plugin.call("LoadedExecutable_GetExecutable", loaded_executable=handle)
        self.executable = _address(got.executable)
        self.num_outputs: int = plugin.call("Executable_NumOutputs", executable=self.executable).num_outputs
        name = plugin.call("Executable_Name", executable=self.executable)
        self.name = _text(name.executable_name, name.executable_name_size)

    def __del__(self) -> None:
        plugin = self.client.plugin
        if getattr(self, "executable", 0):
            plugin.call("Executable_Destroy", executable=self.executable)
        if self.handle:
            plugin.call("LoadedExecutable_Destroy", executable=self.handle)
            self.handle = 0

    def execute(self, arguments: Sequence[Buffer], keep: Iterable[int] = ()) -> list[Buffer]:
        """Runs the program on the client's first device. `keep` lists arguments that must not be donated."""
        plugin = self.client.plugin
        held = (ctypes.c_int64 * max(1, len(list(keep))))(*keep)
        options = struct("PJRT_ExecuteOptions")(
            struct_size=abi.STRUCTS_BY_NAME["PJRT_ExecuteOptions"].struct_size,
            non_donatable_input_indices=ctypes.addressof(held),
            num_non_donatable_input_indices=len(list(keep)),
        )
        inputs = (ctypes.c_void_p * max(1, len(arguments)))(*(b.handle for b in arguments))
        input_lists = (ctypes.c_void_p * 1)(ctypes.addressof(inputs))
        outputs = (ctypes.c_void_p * max(1, self.num_outputs))()
        output_lists = (ctypes.c_void_p * 1)(ctypes.addressof(outputs))
        events = (ctypes.c_void_p * 1)()
        plugin.call(
            "LoadedExecutable_Execute",
            executable=self.handle,
            options=ctypes.addressof(options),
            argument_lists=ctypes.addressof(input_lists),
            num_devices=1,
            num_args=len(arguments),
            output_lists=ctypes.addressof(output_lists),
            device_complete_events=ctypes.addressof(events),
        )
        results = [Buffer(self.client, h or 0) for h in outputs[: self.num_outputs]]
        if events[0]:
            plugin.await_event(events[0], "LoadedExecutable_Execute")
        return results

    def __call__(self, *arrays: Any) -> list[np.ndarray[Any, Any]]:
        """Runs the program on host arrays; returns host arrays."""
        buffers = [self.client.put(a) for a in arrays]
        return [b.numpy() for b in self.execute(buffers)]

    def serialize(self) -> bytes:
        """The program as bytes that the same plugin's `Client.load` takes."""
        args = self.client.plugin.call("Executable_Serialize", executable=self.executable)
        data = ctypes.string_at(_address(args.serialized_bytes), args.serialized_bytes_size)
        deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_address(args.serialized_executable_deleter))
        deleter(_address(args.serialized_executable))
        return data

    def cost(self) -> dict[str, Any]:
        """The plugin's cost analysis: flops, bytes accessed, …"""
        args = self.client.plugin.call("Executable_GetCostAnalysis", executable=self.executable)
        return _named_values(args.properties, args.num_properties)

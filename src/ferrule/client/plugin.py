"""The framework side of PJRT in Python: load any plugin, compile, move buffers, execute.

Works with every PJRT plugin (libferrule.so or another vendor's): only the C API is used. Objects own their PJRT
handles and destroy them when they are collected; every failing call raises `PjrtError` with the plugin's own code and
message.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ferrule.client.options import compile_options
from ferrule.errors import InvalidArgument, NotFound
from ferrule.ir.types import BY_NUMPY, BY_PJRT
from ferrule.pjrt import abi
from ferrule.pjrt.ctypes_abi import PjrtError, Table, make, named_value, read_named_values, text

_ONLY_DURING_CALL = abi.ENUMS["PJRT_HostBufferSemantics"].values["PJRT_HostBufferSemantics_kImmutableOnlyDuringCall"]


class Plugin:
    """A loaded PJRT plugin; `table` is its C API, called by name."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.table = Table.load(str(self.path))
        except OSError as error:
            raise NotFound(f"cannot open the PJRT plugin {self.path}", why=str(error), fix="check the path") from error
        except AttributeError:
            raise InvalidArgument(f"{self.path} is not a PJRT plugin", why="it does not export GetPjrtApi") from None
        self.call("Plugin_Initialize")

    def call(self, function: str, **inputs: Any) -> Any:
        """Calls a function of the table (its name without "PJRT_"); returns the filled argument struct."""
        return self.table.call("PJRT_" + function, **inputs)

    def attributes(self) -> dict[str, Any]:
        """The plugin's attributes (StableHLO versions and so on)."""
        args = self.call("Plugin_Attributes")
        return read_named_values(args.attributes, args.num_attributes)

    def client(self, **options: str | bool | int | float) -> Client:
        """Creates a client; options are the plugin's own."""
        return Client(self, options)

    def wait(self, event: int) -> None:
        """Waits for an event, destroys it, raises its error."""
        try:
            self.call("Event_Await", event=event)
        finally:
            self.call("Event_Destroy", event=event)


def _handles(address: int | None, count: int) -> list[int]:
    return list((ctypes.c_void_p * count).from_address(address)) if address and count else []  # type: ignore[arg-type]


class Device:
    """One device of a client."""

    def __init__(self, client: Client, handle: int) -> None:
        call = client.plugin.call
        self.client, self.handle = client, handle
        description = call("Device_GetDescription", device=handle).device_description
        self.id: int = call("DeviceDescription_Id", device_description=description).id
        kind = call("DeviceDescription_Kind", device_description=description)
        self.kind = text(kind.device_kind, kind.device_kind_size)
        shown = call("DeviceDescription_ToString", device_description=description)
        self.text = text(shown.to_string, shown.to_string_size)
        self._description = description

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """What the plugin tells of the device beyond its kind."""
        found = self.client.plugin.call("DeviceDescription_Attributes", device_description=self._description)
        return read_named_values(found.attributes, found.num_attributes)

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

    def __init__(self, plugin: Plugin, options: dict[str, str | bool | int | float] | None = None) -> None:
        self.plugin, self.handle = plugin, 0
        values = [named_value(name, value) for name, value in (options or {}).items()]
        given: dict[str, Any] = {"create_options": values, "num_options": len(values)} if values else {}
        self.handle = plugin.call("Client_Create", **given).client
        name = plugin.call("Client_PlatformName", client=self.handle)
        self.platform = text(name.platform_name, name.platform_name_size)
        version = plugin.call("Client_PlatformVersion", client=self.handle)
        self.platform_version = text(version.platform_version, version.platform_version_size)
        found = plugin.call("Client_AddressableDevices", client=self.handle)
        handles = _handles(found.addressable_devices, found.num_addressable_devices)
        self.devices = [Device(self, h) for h in handles]

    def __del__(self) -> None:
        if self.handle:
            self.plugin.call("Client_Destroy", client=self.handle)
            self.handle = 0

    def put(self, array: Any, device: Device | None = None) -> Buffer:
        """Copies a host array to a device (the first one by default)."""
        data = np.asarray(array)
        dtype = BY_NUMPY.get(data.dtype)
        if dtype is None:
            raise InvalidArgument(f"arrays of dtype {data.dtype} cannot be moved to a device")
        args = self.plugin.call(
            "Client_BufferFromHostBuffer",
            client=self.handle,
            data=data.__array_interface__["data"][0],
            type=dtype.pjrt,
            dims=list(data.shape),
            num_dims=data.ndim,
            byte_strides=list(data.strides),
            num_byte_strides=data.ndim,
            host_buffer_semantics=_ONLY_DURING_CALL,
            device=(device or self.devices[0]).handle,
        )
        buffer = Buffer(self, args.buffer)
        self.plugin.wait(args.done_with_host_buffer)
        return buffer

    def compile(self, code: bytes, *, format: str = "mlir", options: bytes | None = None) -> LoadedExecutable:
        """Compiles a program (StableHLO portable artifact, MLIR bytecode or text) for the client's first device."""
        options = compile_options([self.devices[0].id]) if options is None else options
        program = make("PJRT_Program", code=code, code_size=len(code), format=format, format_size=len(format.encode()))
        args = self.plugin.call(
            "Client_Compile",
            client=self.handle,
            program=program,
            compile_options=options,
            compile_options_size=len(options),
        )
        return LoadedExecutable(self, args.executable)

    def load(self, data: bytes) -> LoadedExecutable:
        """Loads what `LoadedExecutable.serialize` gave."""
        args = self.plugin.call(
            "Executable_DeserializeAndLoad",
            client=self.handle,
            serialized_executable=data,
            serialized_executable_size=len(data),
        )
        return LoadedExecutable(self, args.loaded_executable)


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
        return tuple((ctypes.c_int64 * args.num_dims).from_address(args.dims)) if args.num_dims else ()

    @property
    def dtype(self) -> np.dtype[Any]:
        return BY_PJRT[self.client.plugin.call("Buffer_ElementType", buffer=self.handle).type].numpy

    def numpy(self) -> np.ndarray[Any, Any]:
        """Waits for the buffer and copies it to the host."""
        out = np.empty(self.shape, self.dtype)
        address = out.__array_interface__["data"][0]
        args = self.client.plugin.call("Buffer_ToHostBuffer", src=self.handle, dst=address, dst_size=out.nbytes)
        self.client.plugin.wait(args.event)
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
        call = client.plugin.call
        self.client, self.handle, self.executable = client, handle, 0
        self.executable = call("LoadedExecutable_GetExecutable", loaded_executable=handle).executable
        self.num_outputs: int = call("Executable_NumOutputs", executable=self.executable).num_outputs
        name = call("Executable_Name", executable=self.executable)
        self.name = text(name.executable_name, name.executable_name_size)

    def __del__(self) -> None:
        call = self.client.plugin.call
        if self.executable:
            call("Executable_Destroy", executable=self.executable)
            self.executable = 0
        if self.handle:
            call("LoadedExecutable_Destroy", executable=self.handle)
            self.handle = 0

    def execute(self, arguments: Sequence[Buffer], keep: Collection[int] = ()) -> list[Buffer]:
        """Runs the program on the client's first device. `keep` lists arguments that must not be donated."""
        inputs = (ctypes.c_void_p * len(arguments))(*(b.handle for b in arguments))
        outputs = (ctypes.c_void_p * self.num_outputs)()
        events = (ctypes.c_void_p * 1)()
        options = make(
            "PJRT_ExecuteOptions", non_donatable_input_indices=list(keep), num_non_donatable_input_indices=len(keep)
        )
        self.client.plugin.call(
            "LoadedExecutable_Execute",
            executable=self.handle,
            options=options,
            argument_lists=(ctypes.c_void_p * 1)(ctypes.addressof(inputs)),
            num_devices=1,
            num_args=len(arguments),
            output_lists=(ctypes.c_void_p * 1)(ctypes.addressof(outputs)),
            device_complete_events=events,
        )
        results = [Buffer(self.client, h or 0) for h in outputs]
        if events[0]:
            self.client.plugin.wait(events[0])
        return results

    def __call__(self, *arrays: Any) -> list[np.ndarray[Any, Any]]:
        """Runs the program on host arrays; returns host arrays."""
        buffers = [self.client.put(a) for a in arrays]
        return [b.numpy() for b in self.execute(buffers)]

    def serialize(self) -> bytes:
        """The program as bytes that the same plugin's `Client.load` takes."""
        args = self.client.plugin.call("Executable_Serialize", executable=self.executable)
        data = ctypes.string_at(args.serialized_bytes, args.serialized_bytes_size)
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(args.serialized_executable_deleter)(args.serialized_executable)
        return data

    def cost(self) -> dict[str, Any]:
        """The plugin's cost analysis: flops, bytes accessed, …"""
        args = self.client.plugin.call("Executable_GetCostAnalysis", executable=self.executable)
        return read_named_values(args.properties, args.num_properties)


__all__ = ["Buffer", "Client", "Device", "LoadedExecutable", "PjrtError", "Plugin"]

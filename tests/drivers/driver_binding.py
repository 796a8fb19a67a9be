"""native/driver.h through ctypes: what the runtime sees of a driver, for tests."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_void_p,
)
from pathlib import Path
from typing import Any

import numpy as np

from ferrule.native import library_path
from ferrule.targets import xpu

ABI = 1
DEVICE, HOST, SHARED = range(3)


class Info(Structure):
    _fields_ = [
        *[(name, c_char_p) for name in ("name", "kind", "backend", "driver_version", "arch")],
        *[(name, c_int64) for name in ("memory_bytes", "max_allocation_bytes", "local_memory_bytes")],
        *[(name, c_int32) for name in ("compute_units", "max_group_size", "clock_mhz")],
        ("sub_group_sizes", c_int32 * 8),
        ("formats", c_uint32),
        ("host_access", c_int32),
    ]


class Shape(Structure):
    _fields_ = [("dtype", c_int32), ("rank", c_int32), ("dims", POINTER(c_int64))]


class Attribute(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("kind", c_int),
        ("ints", POINTER(c_int64)),
        ("num_ints", c_size_t),
        ("number", c_double),
        ("text", c_char_p),
    ]


class CallDesc(Structure):
    _fields_ = [
        ("target", c_char_p),
        *[("operands", POINTER(Shape)), ("num_operands", c_size_t)],
        *[("results", POINTER(Shape)), ("num_results", c_size_t)],
        *[("attributes", POINTER(Attribute)), ("num_attributes", c_size_t)],
    ]


class After(Structure):
    _fields_ = [("events", POINTER(c_void_p)), ("count", c_size_t)]


OUT = POINTER(c_void_p)


def function(*arguments: Any, result: Any = c_int) -> Any:
    return CFUNCTYPE(result, *arguments)


class Table(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("abi", c_uint32),
        ("last_error", function(result=c_char_p)),
        ("devices", function(c_char_p, POINTER(POINTER(POINTER(Info))), POINTER(c_size_t))),
        ("open", function(c_size_t, OUT)),
        ("close", function(c_void_p, result=None)),
        ("allocate", function(c_void_p, c_int, c_int64, OUT)),
        ("free", function(c_void_p, c_void_p, result=None)),
        ("copy", function(c_void_p, c_void_p, c_void_p, c_int64, After, OUT)),
        ("launch", function(c_void_p, c_void_p, c_int64, c_int64, OUT, c_size_t, After, OUT)),
        ("call", function(c_void_p, c_void_p, OUT, OUT, c_void_p, After, OUT)),
        ("join", function(c_void_p, After, OUT)),
        ("wait", function(c_void_p)),
        ("retain", function(c_void_p, result=None)),
        ("release", function(c_void_p, result=None)),
        ("times", function(c_void_p, POINTER(c_int64), POINTER(c_int64))),
        ("load", function(c_void_p, c_char_p, c_size_t, OUT)),
        ("unload", function(c_void_p, result=None)),
        ("kernel", function(c_void_p, c_char_p, OUT)),
        ("prepare", function(c_void_p, POINTER(CallDesc), OUT, POINTER(c_int64))),
        ("discard", function(c_void_p, result=None)),
    ]


class DriverError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


def driver_file() -> Path:
    """The built driver, or the place where it would be: beside libferrule.so."""
    return Path(os.environ.get("FERRULE_DRIVER") or Path(library_path()).with_name(xpu.DRIVER))


class Driver:
    """An opened driver library, its dependencies opened before it as the runtime does it."""

    def __init__(self, path: Path | None = None, with_dnnl: bool = True) -> None:
        files = xpu.find(library_path())
        if files.icd:
            os.environ.setdefault("OCL_ICD_FILENAMES", files.icd)
        self.preloaded = [ctypes.CDLL(p) for p in files.preload]
        self.library = ctypes.CDLL(str(path or driver_file()))
        get = self.library.ferrule_get_driver
        get.restype, get.argtypes = POINTER(Table), [c_uint32, c_char_p]
        assert not get(ABI + 1, None)
        paths = f"dnnl={files.dnnl}\nmkl={files.mkl}\n" if with_dnnl else ""
        self.table = get(ABI, paths.encode()).contents
        assert self.table.struct_size == ctypes.sizeof(Table) and self.table.abi == ABI

    def error(self) -> str:
        return self.table.last_error().decode()

    def check(self, code: int) -> None:
        if code:
            raise DriverError(code, self.error())

    def devices(self, options: str | None = None) -> list[Info]:
        infos, count = POINTER(POINTER(Info))(), c_size_t()
        self.check(self.table.devices(options and options.encode(), byref(infos), byref(count)))
        return [infos[i].contents for i in range(count.value)]

    def open(self, index: int = 0) -> Device:
        handle = c_void_p()
        self.check(self.table.open(index, byref(handle)))
        return Device(self, handle)


class Event:
    def __init__(self, driver: Driver, handle: c_void_p) -> None:
        self.driver, self.handle = driver, handle

    def wait(self) -> None:
        self.driver.check(self.driver.table.wait(self.handle))

    def times(self) -> tuple[int, int]:
        begin, end = c_int64(), c_int64()
        self.driver.check(self.driver.table.times(self.handle, byref(begin), byref(end)))
        return begin.value, end.value

    def __del__(self) -> None:
        if self.handle:
            self.driver.table.release(self.handle)


def after(events: Iterable[Event]) -> After:
    handles = [e.handle for e in events]
    return After((c_void_p * len(handles))(*handles), len(handles))


def pointers(values: Sequence[int]) -> Any:
    return (c_void_p * len(values))(*values)


class Call:
    """A prepared library call."""

    def __init__(self, device: Device, handle: c_void_p, scratch: int) -> None:
        self.device, self.handle, self.scratch_bytes = device, handle, scratch
        self.scratch = device.allocate(scratch) if scratch else 0

    def run(self, operands: Sequence[int], results: Sequence[int], events: Iterable[Event] = ()) -> Event:
        done, d = c_void_p(), self.device
        d.check(
            d.table.call(
                d.handle, self.handle, pointers(operands), pointers(results), self.scratch, after(events), byref(done)
            )
        )
        return Event(d.driver, done)

    def discard(self) -> None:
        self.device.table.discard(self.handle)
        self.device.free(self.scratch)


class Device:
    def __init__(self, driver: Driver, handle: c_void_p) -> None:
        self.driver, self.table, self.handle, self.check = driver, driver.table, handle, driver.check

    def close(self) -> None:
        self.table.close(self.handle)

    def allocate(self, size: int, kind: int = DEVICE) -> int:
        data = c_void_p()
        self.check(self.table.allocate(self.handle, kind, size, byref(data)))
        return data.value or 0

    def free(self, data: int) -> None:
        self.table.free(self.handle, data)

    def copy(self, to: int, source: int, size: int, events: Iterable[Event] = ()) -> Event:
        done = c_void_p()
        self.check(self.table.copy(self.handle, to, source, size, after(events), byref(done)))
        return Event(self.driver, done)

    def launch(
        self, kernel: c_void_p, groups: int, size: int, arguments: Sequence[int], events: Iterable[Event] = ()
    ) -> Event:
        done = c_void_p()
        call = self.table.launch
        listed = pointers(arguments)
        self.check(call(self.handle, kernel, groups, size, listed, len(arguments), after(events), byref(done)))
        return Event(self.driver, done)

    def join(self, events: Iterable[Event]) -> Event:
        done = c_void_p()
        self.check(self.table.join(self.handle, after(events), byref(done)))
        return Event(self.driver, done)

    def load(self, code: bytes) -> c_void_p:
        module = c_void_p()
        self.check(self.table.load(self.handle, code, len(code), byref(module)))
        return module

    def kernel(self, module: c_void_p, name: str) -> c_void_p:
        kernel = c_void_p()
        self.check(self.table.kernel(module, name.encode(), byref(kernel)))
        return kernel

    def put(self, array: np.ndarray) -> int:
        """Device memory with the array's contents."""
        array = np.ascontiguousarray(array)
        data = self.allocate(max(array.nbytes, 1))
        self.copy(data, array.ctypes.data, array.nbytes).wait()
        return data

    def get(self, data: int, like: np.ndarray, events: Iterable[Event] = ()) -> np.ndarray:
        out = np.empty_like(like, order="C")
        self.copy(out.ctypes.data, data, out.nbytes, events).wait()
        return out

    def prepare(
        self,
        target: str,
        operands: Sequence[tuple[int, Sequence[int]]],
        results: Sequence[tuple[int, Sequence[int]]],
        attributes: dict[str, Any],
    ) -> Call:
        """`operands` and `results` are (PJRT_Buffer_Type, dims)."""
        keep: list[Any] = []

        def shapes(given: Sequence[tuple[int, Sequence[int]]]) -> Any:
            listed = [Shape(dtype, len(dims), (c_int64 * len(dims))(*dims)) for dtype, dims in given]
            return (Shape * len(listed))(*listed)

        def attribute(name: str, value: Any) -> Attribute:
            if isinstance(value, str):
                return Attribute(name.encode(), 2, None, 0, 0.0, value.encode())
            if isinstance(value, float):
                return Attribute(name.encode(), 1, None, 0, value, None)
            ints = [value] if isinstance(value, int) else list(value)
            keep.append((c_int64 * len(ints))(*ints))
            return Attribute(name.encode(), 0, keep[-1], len(ints), 0.0, None)

        listed = [attribute(*item) for item in attributes.items()]
        desc = CallDesc(
            target.encode(),
            *(shapes(operands), len(operands)),
            *(shapes(results), len(results)),
            *((Attribute * len(listed))(*listed), len(listed)),
        )
        call, scratch = c_void_p(), c_int64()
        self.check(self.table.prepare(self.handle, byref(desc), byref(call), byref(scratch)))
        return Call(self, call, scratch.value)

"""What libferrule.so calls in Python (see native/python.h): start, compile, and callbacks of programs into Python."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from math import prod

import numpy as np

from ferrule import callbacks
from ferrule.errors import InvalidArgument
from ferrule.ir.types import BY_PJRT

# A buffer of the program: its bytes (writable for a result), its PJRT_Buffer_Type, its dimensions.
RawBuffer = tuple[memoryview, int, Sequence[int]]

_library = ""  # the path of the libferrule.so that this process loaded


def initialize(library_path: str) -> None:
    """Runs once when a framework initializes the plugin, before it makes a client."""
    from ferrule import libraries

    global _library
    _library = library_path
    library = ctypes.CDLL(library_path)
    libraries.hand_over(library)
    # Its files are part of the platform's version, hence of the frameworks' compile-cache keys.
    library.ferrule_set_path(b"path.package", os.path.dirname(__file__).encode())
    # For compiles in a process of their own (ferrule.compile_process).
    library.ferrule_set_path(b"python.executable", (sys.executable or "").encode())
    library.ferrule_set_path(b"python.path", os.pathsep.join(p for p in sys.path if p).encode())
    if "jax" in sys.modules:
        # With a path alone (PJRT_NAMES_AND_LIBRARY_PATHS) nobody else tells JAX what the platform needs.
        from ferrule.frameworks.jax import attach_listed

        attach_listed(library_path)


def compile(code: bytes, format: str, options: bytes, target: str) -> bytes:
    """Compiles a program as PJRT hands it over; returns the serialized program."""
    from ferrule.cache import compile_cached

    return compile_cached(code, format, options, target)


def device_libraries(target: bytes) -> bytes:
    """Where the libraries of a device's driver are, as `name=value` lines (see targets/xpu.py).

    The runtime asks when a device of the target is first wanted, before it opens the driver.
    """
    from ferrule.native import library_path
    from ferrule.targets import xpu

    if target != b"xpu":
        raise InvalidArgument(f"the target {target.decode(errors='replace')!r} has no driver library")
    return xpu.find(_library or library_path()).lines().encode()


def host_callback(id: int, operands: Sequence[RawBuffer], results: Sequence[RawBuffer]) -> None:
    """Runs a registered Python function on the program's buffers."""
    callbacks.run(id, [_view(o) for o in operands], [_view(r) for r in results])


def retain_callback(id: int) -> None:
    """A program that calls function `id` has been loaded."""
    callbacks.retain(id)


def release_callback(id: int) -> None:
    """A program that calls function `id` is gone."""
    callbacks.release(id)


def _view(buffer: RawBuffer) -> np.ndarray:
    memory, number, dims = buffer
    dtype = BY_PJRT[number].numpy
    size = prod(dims) * dtype.itemsize
    if not size:
        return np.empty(tuple(dims), dtype)
    return np.frombuffer(memory, np.uint8, size).view(dtype).reshape(tuple(dims))

"""DLPack for arrays on Ferrule's cpu devices. JAX's own methods take the platforms cpu and gpu only."""

from __future__ import annotations

import ctypes
from collections.abc import Set
from typing import Any

import numpy as np

_CPU = 1  # kDLCPU
# DLDataTypeCode
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


# Exported tensors by the address of their struct: what must live until the consumer calls the deleter.
_alive: dict[int, tuple[Any, ...]] = {}


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _delete(address: int) -> None:
    _alive.pop(address, None)


_capsule_destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@_capsule_destructor
def _destroy_capsule(capsule: int) -> None:
    # A consumer renames the capsule; one with the old name was never consumed.
    api = ctypes.PyDLL(None)
    api.PyCapsule_IsValid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    if api.PyCapsule_IsValid(capsule, b"dltensor"):
        api.PyCapsule_GetPointer.restype = ctypes.c_void_p
        api.PyCapsule_GetPointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        _delete(api.PyCapsule_GetPointer(capsule, b"dltensor"))


def export(host: np.ndarray) -> Any:
    """A DLPack capsule that shares the memory of a host array. As JAX's own, it cannot say that it is read-only."""
    kind = host.dtype.kind
    code = _CODES.get(kind)
    if host.dtype.name == "bfloat16":
        code = 4
    elif code is None or host.dtype.itemsize * 8 not in (8, 16, 32, 64, 128):
        raise BufferError(f"DLPack has no name for the dtype {host.dtype}")
    host = np.ascontiguousarray(host).reshape(host.shape)
    shape = (ctypes.c_int64 * max(1, host.ndim))(*host.shape)
    managed = _Managed()
    tensor = managed.tensor
    tensor.data, tensor.device_type, tensor.device_id = host.__array_interface__["data"][0], _CPU, 0
    tensor.ndim, tensor.code, tensor.bits, tensor.lanes = host.ndim, code, host.dtype.itemsize * 8, 1
    tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = ctypes.cast(_delete, ctypes.c_void_p).value
    address = ctypes.addressof(managed)
    _alive[address] = (managed, shape, host)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, _capsule_destructor]
    return new(address, b"dltensor", _destroy_capsule)


def patch(names: Set[str]) -> None:
    """Lets `Array.__dlpack__` and `__dlpack_device__` serve the platforms in `names` (a live set)."""
    from jax._src import array

    cls = array.ArrayImpl
    if hasattr(cls.__dlpack__, "_ferrule"):
        return
    jax_export, jax_device = cls.__dlpack__, cls.__dlpack_device__

    def __dlpack_device__(self: Any) -> tuple[Any, int]:
        if _is_ours(self, names):
            from jax._src.dlpack import DLDeviceType

            return DLDeviceType.kDLCPU, 0
        return jax_device(self)

    def __dlpack__(
        self: Any, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        if not _is_ours(self, names):
            return jax_export(self, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)
        if stream is not None:
            raise BufferError(f"arrays in host memory have no streams; got stream={stream!r}")
        if dl_device is not None and int(dl_device[0]) != _CPU:
            raise BufferError(f"the array is in host memory and cannot be exported to the DLPack device {dl_device}")
        # No copy where the runtime lends its buffer to the host.
        host = np.asarray(self)
        return export(host.copy() if copy else host)

    __dlpack__._ferrule = True  # type: ignore[attr-defined]
    cls.__dlpack__, cls.__dlpack_device__ = __dlpack__, __dlpack_device__


def _is_ours(array: Any, names: Set[str]) -> bool:
    if len(array._arrays) != 1 or array.is_deleted():
        return False  # JAX's own error
    return array.platform() in names

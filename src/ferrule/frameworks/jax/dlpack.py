"""DLPack for arrays in host memory: those of the cpu target and of the CPU device that stands in for a GPU.

JAX's own methods take the platforms cpu and gpu only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Set
from typing import Any

import numpy as np

_CPU = 1  # kDLCPU
_BFLOAT = 4  # kDLBfloat


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


def export(host: np.ndarray) -> Any:
    """A DLPack capsule that shares the memory of a host array. As JAX's own, it cannot say that it is read-only.

    NumPy makes the capsule, because its deleter is C code: consumers call deleters at any time, even while an exception
    is on its way, when a deleter written in Python would crash. NumPy refuses read-only arrays and does not know
    bfloat16, so it gets a writable view of the same memory, with integers in place of bfloat16.
    """
    host = np.ascontiguousarray(host).reshape(host.shape)
    bfloat16 = host.dtype.name == "bfloat16"
    if not bfloat16 and (host.dtype.kind not in "iufcb" or host.dtype.isbuiltin != 1):
        raise BufferError(f"DLPack has no name for the dtype {host.dtype}")
    plain = host.view(np.int16) if bfloat16 else host
    if host.size:
        memory: Any = (ctypes.c_char * host.nbytes).from_address(host.__array_interface__["data"][0])
        memory.owner = host  # the view keeps `memory` alive, and that the array
        plain = np.frombuffer(memory, plain.dtype).reshape(host.shape)
    capsule = plain.__dlpack__() if plain.flags.writeable else plain.copy().__dlpack__()
    if bfloat16:
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        _Tensor.from_address(pointer(capsule, b"dltensor")).code = _BFLOAT
    return capsule


def patch(names: Set[str]) -> None:
    """Lets `Array.__dlpack__` and `__dlpack_device__` serve the platforms in `names` (a live set)."""
    from jax._src import array

    cls = array.ArrayImpl
    if hasattr(cls.__dlpack__, "_ferrule"):
        return
    jax_export, jax_device = cls.__dlpack__, cls.__dlpack_device__

    def __dlpack_device__(self: Any) -> tuple[Any, int]:
        if _is_ours(self, names):
            _check_host_memory(self)
            from jax._src.dlpack import DLDeviceType

            return DLDeviceType.kDLCPU, 0
        return jax_device(self)

    def __dlpack__(
        self: Any, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        if not _is_ours(self, names):
            return jax_export(self, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)
        _check_host_memory(self)
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


def _check_host_memory(array: Any) -> None:
    """A consumer would take the host's view of a GPU's memory for the array itself."""
    (device,) = array.devices()
    if not getattr(device, "host_access", True):
        raise BufferError(
            f"the array is in the memory of {device}, for which Ferrule has no DLPack; "
            "copy it first: numpy.asarray(x), or jax.device_put(x, jax.devices('cpu')[0])"
        )

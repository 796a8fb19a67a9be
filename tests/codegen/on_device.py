"""Runs device code without Ferrule's runtime: kernels and whole programs on a SYCL device through dpctl."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from ferrule.codegen.kernel import Kernel
from ferrule.codegen.object import compile_module
from ferrule.ir.types import DType
from ferrule.program import ARENA, CONSTANT, OUTPUT, PARAM, Call, Case, Copy, Launch, Program, Step, While
from ferrule.targets import xpu
from ferrule.targets.gpu import Gpu, find

# The kind of device that stands in for a GPU, with loads as narrow and as wide as GPUs want them.
NARROW = "xpu:kind=cpu,units=2,group=1024,local=65536,f16=1,f64=1"
# Kernels as GPUs get them, which the device that stands in runs as well.
GPU = NARROW.replace("kind=cpu", "kind=gpu")
# The same without f16 and f64, as some GPUs are.
LACKING = NARROW.replace("f16=1,f64=1", "f16=0,f64=0")


def machine(target: str = NARROW) -> Gpu:
    return find(target)


@cache
def queue() -> Any:
    """A queue on the first device; skips the test when oneAPI is not installed."""
    icd = xpu.locate("intel-opencl-rt", "libintelocl.so")
    if icd and icd not in os.environ.get("OCL_ICD_FILENAMES", ""):
        os.environ["OCL_ICD_FILENAMES"] = icd
    for package in xpu.PACKAGES:
        for name in package.libraries:
            path = xpu.locate(package.name, name)
            if path:
                ctypes.CDLL(path)
    dpctl = pytest.importorskip("dpctl", reason="dpctl is not installed (pip install dpctl intel-opencl-rt)")
    try:
        return dpctl.SyclQueue(property="in_order")
    except dpctl.SyclQueueCreationError as error:
        pytest.skip(f"no SYCL device: {error}")


def validate(code: bytes) -> None:
    """Asks spirv-val, where it is installed; drivers take more than is valid."""
    if judge := shutil.which("spirv-val"):
        done = subprocess.run([judge, "-"], input=code, capture_output=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr).decode()


class Device:
    """One module of kernels on the device."""

    def __init__(self, code: bytes) -> None:
        import dpctl.program as programs

        validate(code)
        self.queue = queue()
        self.bundle = programs.create_program_from_spirv(self.queue, code, "")

    def launch(self, symbol: str, groups: int, size: int, pointers: Sequence[Any]) -> None:
        kernel = self.bundle.get_sycl_kernel(symbol)
        self.queue.submit(kernel, list(pointers), [groups * size], [size])


def upload(array: np.ndarray) -> Any:
    """The array's bytes in device memory."""
    import dpctl.memory as memory

    place = memory.MemoryUSMShared(max(array.nbytes, 64), queue=queue())
    if array.nbytes:
        place.copy_from_host(np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8))
    return place


def download(place: Any, dtype: DType, shape: Sequence[int]) -> np.ndarray:
    queue().wait()
    raw = np.empty(place.nbytes, np.uint8)
    place.copy_to_host(raw)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return raw[:size].view(dtype.numpy).reshape(tuple(shape)).copy()


class LinkedDevice:
    """Kernels in one module; `run` as tests/codegen/fused.py's Linked."""

    def __init__(self, kernels: Sequence[Kernel], machine: Gpu) -> None:
        declares: dict[str, str] = {}
        constants: dict[str, str] = {}
        for k in kernels:
            declares.update(k.declares)
            constants.update(k.globals)
        self.device = Device(compile_module([k.text for k in kernels], declares, constants, machine))

    def run(self, kernel: Kernel, buffers: Sequence[np.ndarray]) -> None:
        """Runs on copies; arrays that were changed are written back."""
        places: dict[int, Any] = {}
        for b in buffers:
            places.setdefault(id(b), upload(b))
        if kernel.grid:
            self.device.launch(kernel.symbol, kernel.grid, kernel.grain, [places[id(b)] for b in buffers])
        queue().wait()
        for b in buffers:
            raw = np.empty(places[id(b)].nbytes, np.uint8)
            places[id(b)].copy_to_host(raw)
            b.reshape(-1).view(np.uint8)[:] = raw[: b.nbytes]


class Runner:
    """Interprets a program's steps as the runtime does; library calls are given as functions of arrays."""

    def __init__(self, program: Program, calls: dict[str, Any] | None = None) -> None:
        self.program, self.calls = program, calls or {}
        self.device = Device(program.objects[0]) if program.objects else None
        self.constants = upload(np.frombuffer(program.constants, np.uint8))
        self.launches = 0

    def __call__(self, *arrays: np.ndarray) -> list[np.ndarray]:
        p = self.program
        params = [upload(np.asarray(a)) for a in arrays]
        outputs = [upload(np.full(o.type.nbytes, 0xCD, np.uint8)) for o in p.outputs]
        arena = upload(np.full(p.arena_bytes, 0xCD, np.uint8))
        bases = {CONSTANT: self.constants, ARENA: arena}
        self.places = []
        for slot in p.slots:
            if slot.kind in (PARAM, OUTPUT):
                self.places.append((params if slot.kind == PARAM else outputs)[slot.where])
            else:
                self.places.append(_part(bases[slot.kind], slot.where, slot.size))
        self._block(0)
        return [download(place, o.type.dtype, o.type.shape) for place, o in zip(outputs, p.outputs, strict=True)]

    def _block(self, number: int) -> None:
        for step in self.program.blocks[number]:
            self._step(step)

    def _read(self, slot: int, size: int) -> bytes:
        queue().wait()
        place = self.places[slot]
        return ctypes.string_at(place._pointer, size)

    def _step(self, step: Step) -> None:
        match step:
            case Launch(function, grid, grain, slots):
                assert self.device is not None
                self.launches += 1
                places = [self.places[s] for s in slots]
                self.device.launch(self.program.functions[function].symbol, grid, grain, places)
            case Copy(dst, src, size):
                queue().wait()
                ctypes.memmove(self.places[dst]._pointer, self.places[src]._pointer, size)
            case While(_, _, body, trips) if trips >= 0:
                for _ in range(trips):
                    self._block(body)
            case While(cond, predicate, body, _):
                while True:
                    self._block(cond)
                    if not self._read(predicate, 1)[0]:
                        return
                    self._block(body)
            case Case(index, is_bool, branches):
                if is_bool:
                    which = 0 if self._read(index, 1)[0] else 1
                else:
                    which = int.from_bytes(self._read(index, 4), "little", signed=True)
                self._block(branches[which if 0 <= which < len(branches) else -1])
            case Call(target, _, operands, results, attrs):
                queue().wait()
                views = [
                    [self._array(slot, type.dtype, type.shape) for slot, type in side] for side in (operands, results)
                ]
                for view, array in zip(views[1], self.calls[target](attrs, *views[0]), strict=True):
                    view[...] = array

    def _array(self, slot: int, dtype: DType, shape: Sequence[int]) -> np.ndarray:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        raw = (ctypes.c_uint8 * size).from_address(self.places[slot]._pointer)
        return np.frombuffer(raw, np.uint8).view(dtype.numpy).reshape(tuple(shape))


class _Part:
    """A part of an allocation, as dpctl takes it."""

    def __init__(self, base: Any, offset: int, size: int) -> None:
        self.base = base
        self.__sycl_usm_array_interface__ = {
            "data": (base._pointer, False),
            "shape": (max(size, 1),),
            "strides": None,
            "typestr": "|u1",
            "offset": offset,
            "version": 1,
            "syclobj": queue(),
        }


def _part(base: Any, offset: int, size: int) -> Any:
    import dpctl.memory as memory

    return memory.MemoryUSMShared(_Part(base, offset, size)) if size else base

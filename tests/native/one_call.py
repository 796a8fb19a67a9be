"""Runs a library call of native/ on NumPy arrays: a program of one CALL step, through libferrule.so's C functions."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ferrule.ir.types import BY_NUMPY, Tensor
from ferrule.native import library_path
from ferrule.program import OUTPUT, PARAM, Call, Output, Param, Program, Slot


@functools.cache
def native() -> ctypes.CDLL:
    lib = ctypes.CDLL(library_path())
    lib.ferrule_last_error.restype = ctypes.c_char_p
    lib.ferrule_program_load.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p]
    lib.ferrule_program_run.argtypes = [ctypes.c_void_p] * 3
    lib.ferrule_program_free.argtypes = [ctypes.c_void_p]
    lib.ferrule_program_free.restype = None
    if not os.environ.get("FERRULE_TEST_WITHOUT_LIBRARIES"):
        from ferrule import libraries

        libraries.hand_over(lib)
    return lib


def aligned(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """An array as the runtime allocates buffers: 64-byte aligned."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


class OneCall:
    """A loaded program whose only step is the call."""

    def __init__(
        self, target: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], attrs: dict[str, Any], **extra: Any
    ) -> None:
        slots = [Slot(PARAM, i, t.nbytes) for i, t in enumerate(inputs)]
        slots += [Slot(OUTPUT, i, t.nbytes) for i, t in enumerate(outputs)]
        n = len(inputs)
        step = Call(target, False, tuple(enumerate(inputs)), tuple((n + i, t) for i, t in enumerate(outputs)), attrs)
        program = Program(target, params=[Param(t) for t in inputs], outputs=[Output(t) for t in outputs], **extra)
        program.slots, program.blocks = slots, [[step]]
        data, self.handle = program.serialize(), ctypes.c_void_p()
        if native().ferrule_program_load(data, len(data), ctypes.byref(self.handle)):
            raise RuntimeError(native().ferrule_last_error().decode())

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        tables = [(ctypes.c_void_p * max(1, len(s)))(*[x.ctypes.data for x in s]) for s in (inputs, outputs)]
        if native().ferrule_program_run(self.handle, *tables):
            raise RuntimeError(native().ferrule_last_error().decode())

    def __del__(self) -> None:
        if self.handle:
            native().ferrule_program_free(self.handle)


def tensor(shape: Sequence[int], dtype: Any) -> Tensor:
    return Tensor(tuple(int(d) for d in shape), BY_NUMPY[np.dtype(dtype)])


def call(
    target: str,
    operands: Sequence[np.ndarray],
    results: Sequence[tuple[Sequence[int], Any]],
    attrs: dict[str, Any],
    **extra: Any,
) -> list[np.ndarray]:
    """Runs the call once; operands are passed as dense row-major data, `extra` are further fields of the program."""
    inputs = []
    for x in operands:
        buffer = aligned(x.shape, x.dtype)
        buffer[...] = x
        inputs.append(buffer)
    outputs = [aligned(shape, dtype) for shape, dtype in results]
    for x in outputs:
        x.view(np.uint8)[...] = 0x5A if x.ndim and x.size else 0  # what is not written shows
    program = OneCall(target, [tensor(x.shape, x.dtype) for x in inputs], [tensor(*r) for r in results], attrs, **extra)
    program.run(inputs, outputs)
    return outputs


def elsewhere(code: str, **environment: str) -> str:
    """What Python code prints in a process of its own, which finds this folder's modules."""
    found = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, sys.argv[1])\n{code}", str(Path(__file__).parent)],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=240,
    )
    return found.stdout

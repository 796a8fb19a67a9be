"""The built native library, reached through ctypes without PJRT."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from ferrule.native import library_path
from ferrule.program import Program


class Native:
    """libferrule.so's C functions; failures raise RuntimeError with the library's message."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lib = lib = ctypes.CDLL(str(path))
        lib.ferrule_last_error.restype = ctypes.c_char_p
        lib.ferrule_object_symbol.restype = ctypes.c_void_p
        lib.ferrule_object_symbol.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        lib.ferrule_link_object.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)]
        lib.ferrule_program_load.argtypes = lib.ferrule_link_object.argtypes
        lib.ferrule_program_run.argtypes = [ctypes.c_void_p] * 3
        lib.ferrule_ffi_register.argtypes = [
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_uint32,
            *[ctypes.c_void_p] * 4,
        ]
        for free in (lib.ferrule_object_free, lib.ferrule_program_free):
            free.argtypes = [ctypes.c_void_p]
            free.restype = None

    def check(self, code: int) -> None:
        if code:
            raise RuntimeError(f"[{code}] {self.lib.ferrule_last_error().decode(errors='replace')}")

    def link(self, data: bytes) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self.check(self.lib.ferrule_link_object(data, len(data), ctypes.byref(handle)))
        return handle

    def load(self, program: Program | bytes) -> Loaded:
        data = program if isinstance(program, bytes) else program.serialize()
        handle = ctypes.c_void_p()
        self.check(self.lib.ferrule_program_load(data, len(data), ctypes.byref(handle)))
        return Loaded(self, handle)


class Loaded:
    """A loaded program."""

    def __init__(self, native: Native, handle: ctypes.c_void_p) -> None:
        self.native, self.handle = native, handle

    def run(self, params: list[np.ndarray], outputs: list[np.ndarray]) -> list[np.ndarray]:
        table = [(ctypes.c_void_p * max(1, len(side)))(*(a.ctypes.data for a in side)) for side in (params, outputs)]
        self.native.check(self.native.lib.ferrule_program_run(self.handle, *table))
        return outputs

    def free(self) -> None:
        self.native.lib.ferrule_program_free(self.handle)


@pytest.fixture(scope="session")
def native() -> Native:
    return Native(Path(library_path()))


@pytest.fixture(scope="session")
def assemble() -> Callable[..., bytes]:
    """LLVM IR text → object file."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()

    def build(text: str, reloc: str = "pic", codemodel: str = "default") -> bytes:
        module = llvm.parse_assembly(text)
        module.verify()
        target = llvm.Target.from_default_triple()
        return target.create_target_machine(opt=2, reloc=reloc, codemodel=codemodel).emit_object(module)

    return build

"""Builds blocks by hand, compiles them as kernels, runs them, and compares with the ops' NumPy meaning."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from ferrule.codegen.kernel import Kernel, emit_kernel
from ferrule.codegen.object import compile_module
from ferrule.ir import Block, Op, Tensor, Type, Value, tensor
from ferrule.ir.types import BY_NUMPY, DTYPES, DType
from ferrule.native import library_path
from ferrule.ops import OPS
from ferrule.targets.cpu import Machine, host


class Graph:
    """A block under construction: `g.add(x, y)`, `g("reduce", x, init, dimensions=(0,), region=body)`."""

    def __init__(self, *types: Type) -> None:
        self.block = Block(types)
        self.args = self.block.args

    def __call__(
        self, name: str, *operands: Value, regions: Sequence[Block] = (), result: Any = None, **attrs: Any
    ) -> Any:
        probe = Op(name, operands, [result] if isinstance(result, Type) else (result or []), attrs, regions)
        infer = OPS[name].infer
        assert infer is not None
        op = self.block.add(name, operands, infer(probe), attrs, regions)
        return op.results[0] if len(op.results) == 1 else tuple(op.results)

    def const(self, value: Any, dtype: str, shape: tuple[int, ...] = ()) -> Value:
        array = np.broadcast_to(np.asarray(value).astype(DTYPES[dtype].numpy), shape or np.shape(value))
        return self("constant", value=array)

    def done(self, *results: Value) -> Block:
        self.block.results = list(results)
        return self.block


def body(dtypes: Sequence[str], build: Callable[..., Any]) -> Block:
    """A region of scalars."""
    g = Graph(*(Tensor((), DTYPES[d]) for d in dtypes))
    results = build(g, *g.args)
    return g.done(*(results if isinstance(results, tuple) else (results,)))


def monoid(name: str, dtype: str) -> Block:
    return body([dtype, dtype], lambda g, a, b: g(name, a, b))


def evaluate(block: Block, args: Sequence[np.ndarray], outer: dict[Value, Any] | None = None) -> list[np.ndarray]:
    """The NumPy meaning of a block."""
    env: dict[Value, Any] = {**(outer or {}), **dict(zip(block.args, args, strict=True))}
    for op in block.ops:
        rule = OPS[op.name].evaluate
        assert rule is not None, op.name
        found = rule(op, [env[v] for v in op.operands], lambda inner, xs: evaluate(inner, xs, env))
        env.update(zip(op.results, found, strict=True))
    return [np.asarray(env[v]) for v in block.results]


def registers(*sizes: int) -> list[Any]:
    """Sizes of vector registers in bytes, to run kernels with: those that this processor has not are skipped."""
    has = host().vector_bytes
    marks = {n: pytest.mark.skipif(n > has, reason=f"this processor has no registers of {n} bytes") for n in sizes}
    return [pytest.param(n, marks=mark) for n, mark in marks.items()]


_random = np.random.default_rng(0)


def sample(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Values that sums and products of stay finite."""
    d: DType = DTYPES[dtype]
    if d.kind == "bool":
        return _random.integers(0, 2, shape).astype(np.bool_)
    if d.is_int:
        low = -(1 << (d.bits - 1)) if d.kind == "int" else 0
        high = (1 << (d.bits - (d.kind == "int"))) - 1
        return _random.integers(max(low, -100), min(high, 100), shape, endpoint=True).astype(d.numpy)
    if d.is_complex:
        return (_random.normal(size=shape) + 1j * _random.normal(size=shape)).astype(d.numpy)
    return np.asarray(_random.normal(size=shape)).astype(d.numpy)


@dataclass
class Case:
    """A kernel and its input; `inplace` operands lie in the memory of the results with the same number."""

    name: str
    block: Block
    args: list[np.ndarray] = field(default_factory=list)
    tolerance: float = 0.0
    inplace: int = 0


def case(name: str, types: Sequence[tuple[tuple[int, ...], str]], build: Callable[..., Any], **more: Any) -> Case:
    """A case with random input of these shapes and dtypes."""
    g = Graph(*(Tensor(shape, DTYPES[d]) for shape, d in types))
    results = build(g, *g.args)
    block = g.done(*(results if isinstance(results, tuple) else (results,)))
    args = more.pop("args", None) or [sample(shape, d) for shape, d in types]
    return Case(name, block, args, **more)


class Linked:
    """Kernels in one object, linked into this process."""

    def __init__(self, kernels: Sequence[Kernel], machine: Machine) -> None:
        declares: dict[str, str] = {}
        constants: dict[str, str] = {}
        for k in kernels:
            declares.update(k.declares)
            constants.update(k.globals)
        code = compile_module([k.text for k in kernels], declares, constants, machine)
        find = self._link(code)
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self.functions = {k.symbol: kind(find(k.symbol)) for k in kernels}

    def _link(self, code: bytes) -> Callable[[str], int]:
        """Ferrule's own linker."""
        library = ctypes.CDLL(library_path())
        library.ferrule_link_object.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p))
        library.ferrule_object_symbol.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
        library.ferrule_object_symbol.restype = ctypes.c_void_p
        library.ferrule_last_error.restype = ctypes.c_char_p
        handle = ctypes.c_void_p()
        if library.ferrule_link_object(code, len(code), ctypes.byref(handle)):
            raise AssertionError(library.ferrule_last_error().decode())
        return lambda symbol: library.ferrule_object_symbol(handle, symbol.encode())

    def run(self, kernel: Kernel, buffers: Sequence[np.ndarray], pieces: int = 1) -> None:
        pointers = (ctypes.c_void_p * len(buffers))(*(b.ctypes.data for b in buffers))
        ends = [kernel.grid * i // pieces for i in range(pieces + 1)]
        for begin, end in reversed(list(zip(ends, ends[1:], strict=False))):
            if begin < end:
                self.functions[kernel.symbol](ctypes.addressof(pointers), begin, end)


# After a result there are so many bytes that hold this, before the kernel has run and after it.
BEYOND, UNTOUCHED = 64, 0x5A


def guarded(array: np.ndarray) -> np.ndarray:
    """A copy with no room after its end that would hide a read past it (as far as NumPy can do that)."""
    return np.array(array, order="C", copy=True)


@contextmanager
def nothing_beside(array: np.ndarray) -> Iterator[np.ndarray]:
    """A copy up to a page that nobody may read; one that fills its own pages begins behind such a page, too."""
    page = mmap.PAGESIZE
    pages = -(-array.nbytes // page)
    memory = mmap.mmap(-1, (pages + 2) * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    copy = np.frombuffer(memory, array.dtype, array.size, (pages + 1) * page - array.nbytes).reshape(array.shape)
    copy[...] = array

    def protect(rights: int) -> None:
        for at in (start, start + (pages + 1) * page):
            assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(at), ctypes.c_size_t(page), rights) == 0

    protect(0)
    try:
        yield copy
    finally:
        protect(mmap.PROT_READ | mmap.PROT_WRITE)


def check(cases: Sequence[Case], machine: Machine | None = None) -> None:
    """Compiles all cases into one object and runs each in one piece and in three."""
    machine = machine or host()
    kernels = [emit_kernel(c.block, f"k{i}", machine) for i, c in enumerate(cases)]
    linked = Linked(kernels, machine)
    wrong = []
    for c, kernel in zip(cases, kernels, strict=True):
        expected = evaluate(c.block, c.args)
        for pieces in (1, 3):
            args = [guarded(a) for a in c.args]
            whole = [np.full(tensor(r).nbytes + BEYOND, UNTOUCHED, np.uint8) for r in c.block.results]
            outs = [w[:-BEYOND].view(r.dtype.numpy).reshape(r.shape) for w, r in zip(whole, c.block.results)]
            for i in range(c.inplace):
                outs[i] = args[i]
            linked.run(kernel, [*args, *outs], pieces)
            if any((w[-BEYOND:] != UNTOUCHED).any() for w in whole):
                wrong.append(f"{c.name} ({pieces} pieces): writes past the end")
            for got, want, value in zip(outs, expected, c.block.results, strict=True):
                message = difference(got, want, value.dtype, c.tolerance)
                if message:
                    wrong.append(f"{c.name} ({pieces} pieces): {message}")
    assert not wrong, "\n".join(wrong)


def difference(got: np.ndarray, want: np.ndarray, dtype: DType, tolerance: float) -> str:
    """What differs, or nothing."""
    assert got.shape == want.shape and want.dtype == dtype.numpy == BY_NUMPY[got.dtype].numpy, (got.dtype, want.dtype)
    wide = np.complex128 if dtype.is_complex else np.float64
    a, b = got.astype(wide), want.astype(wide)
    scale = np.maximum(1.0, np.abs(b))
    with np.errstate(invalid="ignore"):
        bad = ~((a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= tolerance * scale))
    if not bad.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"{int(bad.sum())} of {bad.size} differ; at {at}: {got[at]} instead of {want[at]}"

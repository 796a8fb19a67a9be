"""Small typed cases for each op, made from a seed: the tests run them through NumPy, XLA and every target.

An op's file attaches its cases with `@samples("name", …)`; a case builds the block that holds just that op.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from ferrule.ir import Block, Op, Tensor, Type
from ferrule.ir import types as t
from ferrule.ir.types import BY_NUMPY, DTYPES, DType
from ferrule.ops.definition import OPS

INTS = (t.i8, t.i16, t.i32, t.i64)
UINTS = (t.ui8, t.ui16, t.ui32, t.ui64)
FLOATS = (t.f16, t.bf16, t.f32, t.f64)
COMPLEX = (t.c64, t.c128)
SMALL_INTS = (t.i4, t.ui4)
SMALL_FLOATS = (t.f8E5M2, t.f8E4M3FN, t.f8E4M3B11FNUZ)
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (7,), (3, 5), (2, 0, 3), (37,))
Region = Callable[[], Block]


@dataclass(frozen=True)
class Sample:
    """One case. The tolerance is `ulps` of the result's type plus `spread` × its epsilon × the largest result."""

    op: str
    label: str
    arrays: tuple[np.ndarray, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    results: tuple[Type, ...] = ()
    regions: tuple[Region, ...] = ()
    ulps: float = 0
    spread: float = 0

    def __str__(self) -> str:
        return f"{self.op}-{self.label}"

    def block(self) -> Block:
        """A block whose arguments are the operands and whose results are the op's."""
        types = [Tensor(a.shape, BY_NUMPY[a.dtype]) for a in self.arrays]
        block = Block(types)
        regions = [make() for make in self.regions]
        stated = self.results or inferred(Op(self.op, block.args, (), self.attrs, regions))
        op = block.add(self.op, block.args, stated, self.attrs, regions)
        block.results = list(op.results)
        return block


def inferred(op: Op) -> Sequence[Type]:
    """The result types by the op's own rule."""
    infer = OPS[op.name].infer
    assert infer is not None
    return infer(op)


def samples(*names: str) -> Callable[[Callable[[str], Iterable[Sample]]], Callable[[str], Iterable[Sample]]]:
    """Attaches a generator of cases, called with the op's name, to ops that are already defined."""

    def attach(make: Callable[[str], Iterable[Sample]]) -> Callable[[str], Iterable[Sample]]:
        for name in names:
            OPS[name].samples = lambda name=name: make(name)  # type: ignore[misc]
        return make

    return attach


def random(*key: object) -> np.random.Generator:
    """A generator that depends on the key alone."""
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def data(dtype: DType, shape: Sequence[int], *key: object, low: float = -4, high: float = 4) -> np.ndarray:
    """Plain values: floats in [low, high), integers mostly small with some of full range, random bools."""
    rng = random(dtype.name, tuple(shape), *key)
    if dtype.kind == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.is_complex:
        parts = rng.uniform(low, high, (2, *shape))
        return np.asarray(parts[0] + 1j * parts[1]).astype(dtype.numpy)
    if dtype.is_float:
        return (
            np.asarray(rng.uniform(low, high, shape))
            .astype(np.float32 if dtype.bits < 32 else dtype.numpy)
            .astype(dtype.numpy)
        )
    lowest = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
    highest = (1 << (dtype.bits - (dtype.kind == "int"))) - 1
    wide = np.int64 if dtype.kind == "int" else np.uint64
    full = rng.integers(lowest, highest, shape, wide, endpoint=True)
    small = rng.integers(max(lowest, -9), min(highest, 9), shape, wide, endpoint=True)
    return np.asarray(np.where(rng.random(shape) < 0.6, small, full)).astype(dtype.numpy)


def corners(dtype: DType) -> np.ndarray:
    """The values at which implementations go wrong."""
    if dtype.kind == "bool":
        return np.array([False, True])
    if dtype.is_int:
        lowest = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
        highest = (1 << (dtype.bits - (dtype.kind == "int"))) - 1
        whole = [0, 1, 2, 3, highest, highest - 1, lowest, lowest + 1, highest // 2, -1 if dtype.kind == "int" else 5]
        return np.array(whole, np.int64 if dtype.kind == "int" else np.uint64).astype(dtype.numpy)
    info = ml_dtypes.finfo(dtype.part.numpy)
    edge: list[float] = [0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 0.49, float(info.max), -float(info.max)]
    edge += [np.inf, -np.inf, np.nan, 3.25]
    with np.errstate(all="ignore"):
        line = np.array(edge).astype(np.float32 if dtype.bits < 32 else dtype.part.numpy).astype(dtype.part.numpy)
    if dtype.is_complex:
        finite = line[np.isfinite(line) & (np.abs(line) < 1e3)]
        return (finite[:, None] + 1j * finite[None, :]).reshape(-1).astype(dtype.numpy)
    return line


def pairs(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """Every corner against every corner."""
    line = corners(dtype)
    line = line[:: max(1, len(line) // 16)]
    a, b = np.meshgrid(np.arange(len(line)), np.arange(len(line)))
    return line[a.reshape(-1)], line[b.reshape(-1)]


def dtypes(letters: str) -> Iterator[DType]:
    """The element types of these kinds (see ops/checks.py) that the cases cover."""
    table = {"b": (t.i1,), "i": (*INTS, t.i4), "u": (*UINTS, t.ui4), "f": (*FLOATS, *SMALL_FLOATS), "c": COMPLEX}
    for letter in letters:
        yield from table[letter]


def scalar_body(name: str, dtype: DType, count: int = 1) -> Region:
    """A region that combines `count` pairs of scalars by one op: (a…, b…) → (op(a, b)…)."""

    def make() -> Block:
        scalar = Tensor((), dtype)
        block = Block([scalar] * (2 * count))
        ops = [block.add(name, [block.args[i], block.args[count + i]], scalar) for i in range(count)]
        block.results = [op.result for op in ops]
        return block

    return make


def compare_body(direction: str, types: Sequence[DType], kind: str = "NOTYPE", key: int = 0) -> Region:
    """A comparator of pairs (a0, b0, a1, b1, …) by operand `key`."""

    def make() -> Block:
        block = Block([Tensor((), d) for d in types for _ in range(2)])
        attrs = {"comparison_direction": direction, "compare_type": kind}
        left, right = block.args[2 * key], block.args[2 * key + 1]
        block.results = [block.add("compare", [left, right], Tensor((), DTYPES["i1"]), attrs).result]
        return block

    return make


def second_body(dtype: DType) -> Region:
    """A region that returns its second argument: scatter's "replace"."""

    def make() -> Block:
        block = Block([Tensor((), dtype)] * 2)
        block.results = [block.args[1]]
        return block

    return make

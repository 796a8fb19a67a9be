"""Reductions of bf16 arrays take their elements in pairs.

A bf16 is the upper half of an f32. Where the order of a vector's elements does not matter, 32 bits of memory hold two
that a shift and a mask make f32; in order, each half of a register has to be spread out over a whole one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ferrule.codegen.emitter import Family
from ferrule.codegen.llvm import Builder, V
from ferrule.ir import Op, Value, tensor
from ferrule.ir.types import bf16
from ferrule.ops import OPS

Path = tuple[tuple[int, ...], ...]


def apply(op: Op, family: Family) -> bool:
    """Do all elements that this reduction reads along its innermost dimension come from bf16 arrays, in one order?"""
    if family.kept:  # what is written to memory on the way must be in order
        return False
    found: set[Path | None] = set()
    seen: set[tuple[Value, Path]] = set()
    stack: list[tuple[Value, Path]] = [(value, ()) for value in op.operands[: len(op.operands) // 2]]
    while stack:
        value, path = stack.pop()
        if (value, path) not in seen:
            seen.add((value, path))
            _step(value, path, family, found, stack)
    return len(found) == 1 and None not in found


def _step(value: Value, path: Path, family: Family, found: set[Path | None], stack: list[tuple[Value, Path]]) -> None:
    """Adds the shapes that an index goes through on its way to an array, or None for what is not such an array."""
    op = value.op
    if op is None or value in family.pointers:
        found.add((*path, value.shape) if tensor(value).dtype == bf16 else None)
    elif op.name == "reshape":
        stack.append((op.operands[0], (*path, value.shape)))
    elif op.name == "constant":
        if not _splat(op):
            found.add(None)
    elif op.name == "broadcast_in_dim":  # of what is the same in all lanes
        if path or len(value.shape) - 1 in op.attrs["broadcast_dimensions"]:
            found.add(None)
    elif not OPS[op.name].elementwise or op.regions or any(v.shape not in ((), value.shape) for v in op.operands):
        found.add(None)
    else:
        stack += [(operand, path) for operand in op.operands if operand.shape == value.shape]


def _splat(op: Op) -> bool:
    value = op.attrs["value"]
    return bool(value.size == 1 or (value.strides and not any(value.strides)))


@contextmanager
def reading(family: Family, width: int) -> Iterator[None]:
    """Within, vectors of so many bf16 are read in pairs (0: none)."""
    before, family.paired = family.paired, width
    try:
        yield
    finally:
        family.paired = before


def load(b: Builder, pointer: V, offset: V, width: int) -> V:
    """The elements at an offset as f32: those at even places, then those at odd ones."""
    half = width // 2
    both = b.load(f"<{half} x i32>", b.offset(pointer, "i16", offset), 2)
    parts: Sequence[V] = [
        b.cast("bitcast", b.binary(name, both, V(both.type, f"splat (i32 {number})")), f"<{half} x float>")
        for name, number in (("shl", 16), ("and", -65536))
    ]
    picks = ", ".join(f"i32 {lane}" for lane in range(width))
    return b.emit(f"<{width} x float>", f"shufflevector {parts[0]}, {parts[1]}, <{width} x i32> <{picks}>")

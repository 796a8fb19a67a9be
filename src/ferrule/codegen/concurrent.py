"""Scatters whose places may repeat, on devices.

Where the order of the updates does not matter to the result (integers, bits) or only to its last digit (sums of f32),
each is an atomic operation of a work-item of its own. Else one work-item per element of the window goes through the
updates in order, when different elements of the window have different places; else one work-item does everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ferrule.codegen.emitter import Emitter, Family, Lanes
from ferrule.codegen.index import Component, Index
from ferrule.codegen.items import dialect, each
from ferrule.codegen.llvm import V, i64
from ferrule.codegen.scalar import memory_type
from ferrule.ir import Op, ScatterDims
from ferrule.ir.types import DType
from ferrule.ops.bodies import monoid, returned_argument
from ferrule.targets.machine import Machine

# The body's op → LLVM's operation on signed integers, unsigned ones, and f32.
_ATOMIC = {
    "add": ("add", "add", "fadd"),
    "maximum": ("max", "umax", ""),
    "minimum": ("min", "umin", ""),
    "and": ("and", "and", ""),
    "or": ("or", "or", ""),
    "xor": ("xor", "xor", ""),
}
STORE = "store"
# So many work-items keep a compute unit at work.
ITEMS_PER_UNIT = 64


def operation(root: Op, machine: Machine) -> str | None:
    """What each update does by itself, when their order may be any: an atomic operation, or a plain store where the
    body takes the update (which of several is taken is open). None when the order matters, or when there are enough
    elements in a window that each can have its updates in order."""
    shape, apart = root.operands[-1].shape, _apart(root)
    if len(root.results) != 1 or prod(shape[d] for d in apart) >= ITEMS_PER_UNIT * getattr(machine, "compute_units", 1):
        return None
    dtype = root.result.dtype
    if returned_argument(root.regions[0]) == 1 and not dtype.is_complex:
        return STORE
    names = _ATOMIC.get(monoid(root.regions[0]) or "")
    if names is None:
        return None
    if dtype.is_float:
        return names[2] or None if dtype.name == "f32" else None
    if not dtype.is_int or dtype.bits < 32 or (dtype.bits == 64 and not getattr(machine, "atomic64", True)):
        return None
    return names[dtype.kind == "uint"]


def apply(em: Emitter, operation: str, pointer: V, dtype: DType, offset: Index, value: Lanes) -> None:
    """One update."""
    if operation == STORE:
        em.store(pointer, dtype, offset, value)
        return
    place = em.ix.address(pointer, memory_type(dtype), offset.base)
    dialect(em.family).atomic(em.b, operation, place, em.s.to_memory(dtype, value))


def _apart(root: Op) -> list[int]:
    """The dimensions of the updates along which different elements have different places, whatever the indices."""
    dims: ScatterDims = root.attrs["scatter_dimension_numbers"]
    gone = (*dims.inserted_window_dims, *dims.input_batching_dims)
    whole, shape = root.operands[0].shape, root.operands[-1].shape
    kept = [d for d in range(len(whole)) if d not in gone]
    pairs = zip(kept, dims.update_window_dims, strict=True)
    return [u for d, u in pairs if d not in dims.scatter_dims_to_operand_dims or shape[u] == whole[d]]


def by_window(
    family: Family, root: Op, shape: Sequence[int], element: Callable[[Emitter, Sequence[Component]], None]
) -> int:
    """All updates in order, by one work-item per element of the window where those never meet; gives the number of
    work-items. `element` does one element of `updates`, whose shape is given."""
    apart = _apart(root)
    together = [d for d in range(len(shape)) if d not in apart]
    count = prod(shape[d] for d in together)

    def one(em: Emitter, at: Sequence[Component]) -> None:
        def step(i: V, _: list[V]) -> list[V]:
            with em.scope():
                inner = em.ix.split(Index(i, 0, 0, count), [shape[d] for d in together])
                index = dict(zip((*apart, *together), (*at[: len(apart)], *inner), strict=True))
                element(em, [index[d] for d in range(len(shape))] if shape else [em.ix.zero])
            return []

        em.b.loop(i64(0), i64(count), 1, [], step, "updates")

    return each(family, [shape[d] for d in apart] or [1], 1, one)

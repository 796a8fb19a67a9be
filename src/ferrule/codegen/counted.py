"""Indices that a kernel knows without memory: sums and multiples of `iota`.

What `x[arange(n)[:, None] + arange(k)]` reads lies side by side, so that vectors are loaded, not gathered; nor are such
indices compared with zero, for which JAX adds the length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ferrule.codegen.index import ZERO, Component, Index
from ferrule.ir import Op, Value, tensor

if TYPE_CHECKING:
    from ferrule.codegen.emitter import Emitter


def counted(em: Emitter, value: Value, index: Sequence[Component]) -> Index | None:
    """An integer at `index`; None unless it advances evenly from lane to lane, and within what its type holds."""
    dtype = tensor(value).dtype
    if value.op is None or value in em.family.pointers or em.family.varying or dtype.kind not in ("int", "uint"):
        return None
    found = _of(em, value.op, tuple(index))
    if found is None or found.step is None:
        return None
    top = 1 << (dtype.bits - (dtype.kind == "int"))
    return found if (-top if dtype.kind == "int" else 0) <= found.low and found.high <= top else None


def _of(em: Emitter, op: Op, index: tuple[Component, ...]) -> Index | None:
    ix = em.ix
    if op.name == "iota":
        return ix.force(index[op.attrs["iota_dimension"]])
    if op.name == "constant":
        return ix.number(number) if (number := _splat(op)) is not None else None
    if op.name == "broadcast_in_dim":
        (x,) = op.operands
        places = zip(op.attrs["broadcast_dimensions"], x.shape, strict=True)
        return counted(em, x, [index[d] if size > 1 else ZERO for d, size in places])
    if op.name == "reshape" and _long(op.operands[0].shape) == _long(op.result.shape):
        (x,) = op.operands
        rest = [c for c, size in zip(index, op.result.shape, strict=True) if size != 1]
        return counted(em, x, [ZERO if size == 1 else rest.pop(0) for size in x.shape])
    if op.name == "convert":
        return counted(em, op.operands[0], index)
    if op.name == "concatenate":
        return _part(em, op, index)
    if op.name == "select":
        chosen = _chosen(em, op.operands[0], index)
        return None if chosen is None else counted(em, op.operands[1 if chosen else 2], index)
    if op.name not in ("add", "subtract", "multiply"):
        return None
    a = counted(em, op.operands[0], index)
    b = counted(em, op.operands[1], index) if a is not None else None
    if a is None or b is None:
        return None
    if op.name == "multiply":
        a, b = (b, a) if a.constant is not None else (a, b)
        return ix.mul(a, b.constant) if b.constant is not None else None
    return ix.add(a, b if op.name == "add" else ix.mul(b, -1))


def _splat(op: Op) -> int | None:
    array = np.asarray(op.attrs["value"])
    return int(array.flat[0]) if array.size and (array == array.flat[0]).all() else None


def _long(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]


def _part(em: Emitter, op: Op, index: tuple[Component, ...]) -> Index | None:
    """Of joined arrays the one that a known place is in."""
    d = op.attrs["dimension"]
    place = em.ix.force(index[d]).constant
    if place is None:
        return None
    for x in op.operands:
        if place < x.shape[d]:
            return counted(em, x, [*index[:d], em.ix.number(place), *index[d + 1 :]])
        place -= x.shape[d]
    return None


def _chosen(em: Emitter, flag: Value, index: tuple[Component, ...]) -> bool | None:
    """What a comparison of a known index with a number comes to, if that is the same for all."""
    op = flag.op
    if op is None or op.name != "compare" or flag in em.family.pointers:
        return None
    a = counted(em, op.operands[0], index)
    b = counted(em, op.operands[1], index) if a is not None else None
    if a is None or b is None:
        return None
    direction = op.attrs["comparison_direction"]
    if direction in ("GT", "LE"):
        a, b, direction = b, a, {"GT": "LT", "LE": "GE"}[direction]
    if direction not in ("LT", "GE"):
        return None
    less = a.high <= b.low
    return less == (direction == "LT") if less or a.low >= b.high - 1 else None

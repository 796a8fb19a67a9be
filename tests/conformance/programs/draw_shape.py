"""Makers of ops that move elements: broadcasts, transposes, slices, pads, concatenations and the like."""

from __future__ import annotations

from math import prod

import numpy as np
from draw import Draw, maker

from ferrule.ir import Tensor, Value
from ferrule.ir.types import DTYPES, DType

INDEX_TYPES = ("i32", "i32", "i64", "ui32", "i8", "ui8", "i16")


@maker("broadcast_in_dim", group="shape", weight=3.0)
def broadcast_in_dim(g: Draw) -> Value:
    """New dimensions, and dimensions of size 1 made larger; the kept ones in any order."""
    x = g.operand(low=0, high=3)
    rank = g.int(len(x.shape), min(5, len(x.shape) + 2))
    dims = g.sample(range(rank), len(x.shape))
    if g.chance(0.75):
        dims.sort()
    shape = [0] * rank
    left = g.most // max(1, prod(s for s in x.shape if s))
    for d in range(rank):
        if d in dims:
            size = x.shape[dims.index(d)]
            shape[d] = g.dim(left) if size == 1 and g.chance(0.5) else size
            left //= max(1, shape[d]) if size == 1 else 1
        else:
            shape[d] = g.dim(left)
            left //= max(1, shape[d])
        left = max(left, 1)
    return g.broadcast_kept(x, tuple(shape), dims)


@maker("broadcast", group="shape", weight=0.3)
def broadcast(g: Draw) -> Value:
    """The old spelling: new leading dimensions."""
    x = g.operand(high=3)
    sizes = g.shape(0, 2, max(1, g.most // max(1, x.type.size)))
    return g.add("broadcast", [x], Tensor((*sizes, *x.shape), x.dtype), {"broadcast_sizes": sizes})


def factored(g: Draw, size: int, rank: int) -> tuple[int, ...]:
    """A random shape with this many elements."""
    dims = [1] * rank
    if not size:
        dims = [g.dim(g.most, zero=0) for _ in range(rank)]
        dims[g.int(0, rank - 1)] = 0
        return tuple(dims)
    factor = 2
    while size > 1:
        while size % factor:
            factor += 1
        dims[g.int(0, rank - 1)] *= factor
        size //= factor
    return tuple(dims)


@maker("reshape", group="shape", weight=3.0)
def reshape(g: Draw) -> Value:
    """To other factors of the size, or with dimensions of size 1 more or less."""
    x = g.operand()
    if g.chance(0.4):
        shape = [s for s in x.shape if s != 1 or g.chance(0.3)]
        for _ in range(g.int(0, max(0, min(2, 5 - len(shape))))):
            shape.insert(g.int(0, len(shape)), 1)
        out = tuple(shape)
    else:
        size = prod(x.shape)
        out = factored(g, size, g.int(0 if size == 1 else 1, 5)) if size != 1 or g.chance(0.8) else ()
        out = out if prod(out) == size else x.shape
    return g.add("reshape", [x], Tensor(out, x.dtype))


@maker("transpose", group="shape", weight=3.0)
def transpose(g: Draw) -> Value:
    """Any permutation."""
    x = g.operand(low=0 if g.chance(0.05) else 2)
    order = tuple(g.shuffled(range(len(x.shape))))
    return g.add("transpose", [x], Tensor(tuple(x.shape[d] for d in order), x.dtype), {"permutation": order})


@maker("reverse", group="shape", weight=1.0)
def reverse(g: Draw) -> Value:
    """Some dimensions."""
    x = g.operand(low=0 if g.chance(0.05) else 1)
    dims = tuple(sorted(g.sample(range(len(x.shape)), g.int(0, len(x.shape)))))
    return g.add("reverse", [x], x.type, {"dimensions": dims})


@maker("slice", group="shape", weight=3.0)
def slice_(g: Draw) -> Value:
    """With strides; empty at times."""
    x = g.operand(low=0 if g.chance(0.05) else 1)
    start, limit, strides, shape = [], [], [], []
    for size in x.shape:
        a = g.int(0, size) if g.chance(0.03) else 0 if g.chance(0.3) else g.int(0, max(0, size - 1))
        b = size if g.chance(0.4) else g.int(min(a + 1, size), size)
        step = g.int(1, 4) if g.chance(0.3) else 1
        start.append(a)
        limit.append(b)
        strides.append(step)
        shape.append(-(-(b - a) // step))
    attrs = {"start_indices": tuple(start), "limit_indices": tuple(limit), "strides": tuple(strides)}
    return g.add("slice", [x], Tensor(tuple(shape), x.dtype), attrs)


@maker("pad", group="shape", weight=2.5)
def pad(g: Draw) -> Value:
    """Outside, between, and negative, which crops."""
    x = g.operand(low=0 if g.chance(0.05) else 1)
    low, high, inner, shape = [], [], [], []
    left = g.most // max(1, x.type.size)
    for size in x.shape:
        between = g.int(0, 2) if g.chance(0.2) else 0
        full = size + max(0, size - 1) * between
        before, after = (g.int(-min(2, full // 2), 3) if g.chance(0.5) else 0 for _ in range(2))
        if full + before + after < 0 or (full + before + after) > max(1, size) * max(2, left):
            between, before, after = 0, 0, 0
        total = size + max(0, size - 1) * between + before + after
        left = max(1, left * max(1, size) // max(1, total))
        low.append(before)
        high.append(after)
        inner.append(between)
        shape.append(total)
    value = g.like(Tensor((), x.dtype))
    attrs = {"edge_padding_low": tuple(low), "edge_padding_high": tuple(high), "interior_padding": tuple(inner)}
    return g.add("pad", [x, value], Tensor(tuple(shape), x.dtype), attrs)


@maker("concatenate", group="shape", weight=2.5)
def concatenate(g: Draw) -> Value:
    """Of one to five parts, some empty."""
    x = g.operand(low=1)
    d = g.int(0, len(x.shape) - 1)
    parts = [x]
    for _ in range(g.int(0, 4)):
        same = [v for v in g.pool if v.dtype == x.dtype and len(v.shape) == len(x.shape)
                and all(a == b for i, (a, b) in enumerate(zip(v.shape, x.shape, strict=True)) if i != d)]  # fmt: skip
        if same and g.chance(0.6):
            parts.append(g.pick(same))
        else:
            shape = tuple(g.dim(40) if i == d else s for i, s in enumerate(x.shape))
            parts.append(g.new(Tensor(shape, x.dtype)))
        if sum(p.type.size for p in parts) > 2 * g.most:
            break
    parts = g.shuffled(parts)
    shape = tuple(sum(p.shape[d] for p in parts) if i == d else s for i, s in enumerate(x.shape))
    return g.add("concatenate", parts, Tensor(shape, x.dtype), {"dimension": d})


@maker("iota", group="shape", weight=0.8)
def iota(g: Draw) -> Value:
    """Counting along one dimension; not beyond what the element type holds."""
    dtype: DType = g.dtype("iufc")
    shape = g.shape(1, 4)
    d = g.int(0, len(shape) - 1)
    if shape[d] > _exact_up_to(dtype):
        shape = tuple(min(s, _exact_up_to(dtype)) if i == d else s for i, s in enumerate(shape))
    return g.add("iota", [], Tensor(shape, dtype), {"iota_dimension": d})


def _exact_up_to(dtype: DType) -> int:
    if dtype.is_int:
        return 1 << (dtype.bits - (dtype.kind == "int"))
    return {8: 8, 16: 128}.get(dtype.bits, 4096)


@maker("constant", group="shape", weight=0.6)
def constant(g: Draw) -> Value:
    """A dense constant, a splat, or one of a pattern."""
    kind = Tensor(g.shape(), g.dtype())
    found = g.array(kind)
    if kind.size and g.chance(0.4):
        found = np.broadcast_to(found.reshape(-1)[0], kind.shape)
    return g.keep(g.constant(found))


def start_indices(g: Draw, shape: tuple[int, ...]) -> list[Value]:
    """One scalar per dimension; they may lie outside."""
    dtype = DTYPES[g.pick(INDEX_TYPES)]
    return [g.like(Tensor((), dtype), old=0.3, low=-3, high=size + 3, bounded=True) for size in shape]


def window(g: Draw, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of a part of any of the dimensions, or of whole ones in front and one place behind: columns of each."""
    if g.profile == "matrices" and len(shape) > 1 and g.chance(0.7):
        at = g.int(1, len(shape) - 1)
        return *shape[:at], g.int(min(1, shape[at]), shape[at]), *(min(1, s) for s in shape[at + 1 :])
    return tuple(s if g.chance(0.3) else g.int(min(1, s), s) for s in shape)


@maker("dynamic_slice", group="index", weight=2.0)
def dynamic_slice(g: Draw) -> Value:
    """At indices from data, clamped where they lie outside."""
    x = g.operand(low=0 if g.chance(0.05) else 1)
    sizes = window(g, x.shape)
    return g.add("dynamic_slice", [x, *start_indices(g, x.shape)], Tensor(sizes, x.dtype), {"slice_sizes": sizes})


@maker("dynamic_update_slice", group="index", weight=2.0)
def dynamic_update_slice(g: Draw) -> Value:
    """At indices from data, clamped where they lie outside."""
    x = g.operand(low=0 if g.chance(0.05) else 1)
    sizes = window(g, x.shape)
    return g.add("dynamic_update_slice", [x, g.like(Tensor(sizes, x.dtype)), *start_indices(g, x.shape)], x.type)


@maker("get_dimension_size", group="shape", weight=0.1)
def get_dimension_size(g: Draw) -> Value:
    """A size as a number."""
    x = g.operand(low=1)
    return g.add("get_dimension_size", [x], Tensor((), DTYPES["i32"]), {"dimension": g.int(0, len(x.shape) - 1)})


@maker("torch_index_select", group="index", weight=0.3)
def torch_index_select(g: Draw) -> Value:
    """Whole slices by index; the indices lie inside."""
    x = g.operand(low=1, high=3, zero=0)
    d = g.int(0, len(x.shape) - 1)
    count = g.int(1, 6)
    index = g.new(Tensor((count,), DTYPES["i32"]), low=0, high=x.shape[d] - 1, bounded=True)
    shape = (*x.shape[:d], count, *x.shape[d + 1 :])
    return g.add("torch_index_select", [x, index], Tensor(shape, x.dtype), {"dim": d, "batch_dims": 0})


@maker("optimization_barrier", group="shape", weight=0.4)
def barrier(g: Draw) -> list[Value]:
    """Of several values."""
    values = [g.operand() for _ in range(g.int(1, 3))]
    return g.add("optimization_barrier", values, [v.type for v in values])

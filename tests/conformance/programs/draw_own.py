"""Makers of updates that read the array which they overwrite: as what is written, as the indices, or as both.

They are drawn with the profile `places` only.
"""

from __future__ import annotations

from math import gcd

from draw import Draw, maker

from ferrule.ir import Block, ScatterDims, Tensor, Value
from ferrule.ir.types import DTYPES

INDEX = ("i32", "ui32", "i64", "i8")


def _seen(g: Draw, x: Value) -> Value:
    """The array itself, or itself seen another way, of the same type."""
    roll = g.rng.random()
    if roll < 0.4:
        return x
    if roll < 0.6:
        return g.add("reverse", [x], x.type, {"dimensions": (g.int(0, len(x.shape) - 1),)}, keep=g.chance(0.3))
    if roll < 0.75:
        cut = g.int(0, x.shape[0])
        parts = [_rows(g, x, a, b) for a, b in ((cut, x.shape[0]), (0, cut))]
        return g.add("concatenate", parts, x.type, {"dimension": 0}, keep=g.chance(0.3))
    if roll < 0.9 and len(x.shape) > 1 and x.shape[0] == x.shape[1]:
        order = (1, 0, *range(2, len(x.shape)))
        return g.add("transpose", [x], x.type, {"permutation": order}, keep=g.chance(0.3))
    return g.add("add", [x, g.like(x.type)], x.type, keep=g.chance(0.3))  # type: ignore[arg-type]


def _target(g: Draw, x: Value) -> Value:
    """The array, or mostly one made for this update, whose memory nobody else needs."""
    if g.chance(0.3):
        return x
    return g.add("or" if x.dtype.kind == "bool" else "add", [x, g.like(x.type)], x.type, keep=False)  # type: ignore[arg-type]


def _rows(g: Draw, x: Value, start: int, stop: int) -> Value:
    bounds = {
        "start_indices": (start, *(0 for _ in x.shape[1:])),
        "limit_indices": (stop, *x.shape[1:]),
        "strides": tuple(1 for _ in x.shape),
    }
    return g.add("slice", [x], Tensor((stop - start, *x.shape[1:]), x.dtype), bounds, keep=False)


def _order(g: Draw, count: int) -> Value:
    """Each index once: a constant, or computed as (a * i + b) mod count."""
    kind = DTYPES["i8" if count <= 9 and g.chance(0.2) else g.pick(("i32", "i64", "ui32"))]
    if g.chance(0.4):
        return g.constant(g.numpy.permutation(count).astype(kind.numpy)[:, None])
    shape = Tensor((count, 1), kind)
    step = g.pick([a for a in range(1, count + 1) if gcd(a, count) == 1])
    found = g.add("iota", [], shape, {"iota_dimension": 0}, keep=False)
    for name, number in (("multiply", step), ("add", g.int(0, count)), ("remainder", count)):
        found = g.add(name, [found, g.scalar_like(found, number)], shape, keep=False)
    return found


def _scattered(g: Draw, x: Value, indices: Value, updates: Value, name: str) -> Value:
    """Along the first dimension, a row for each index."""
    rows = tuple(range(1, len(x.shape)))
    numbers = ScatterDims(rows, (0,), (), (), (0,), 1)
    attrs = {"scatter_dimension_numbers": numbers, "indices_are_sorted": False, "unique_indices": g.chance(0.3)}
    if name == "set":
        body = Block([Tensor((), x.dtype)] * 2)
        body.results = [body.args[1]]
    else:
        attrs["unique_indices"] = False
        body = g.body_of(name, x.dtype)
    return g.add("scatter", [x, indices, updates], [x.type], attrs, [body])[0]


@maker("own_rows", group="own", weight=1.0)
def own_rows(g: Draw) -> Value:
    """`x.at[order].set(x)`, and what else may be written."""
    x = _target(g, g.operand("biufc", 1, 3, zero=0))
    name = "set" if x.dtype.kind in ("bool", "complex") or g.chance(0.6) else g.pick(("add", "maximum"))
    return _scattered(g, x, _order(g, x.shape[0]), _seen(g, x), name)


@maker("own_indices", group="own", weight=1.0)
def own_indices(g: Draw) -> Value:
    """`x.at[x].max(…)`: whatever order the updates come in, the result is the same."""
    kind = DTYPES[g.pick(INDEX)]
    count = g.int(1, 40)
    x = g.like(Tensor((count,), kind), low=0, high=count, bounded=True)
    if g.chance(0.6):
        bound = g.broadcast(g.scalar(kind, g.int(1, count)), (count,), ())
        x = g.add(g.pick(("maximum", "minimum")), [x, bound], x.type, keep=False)
    at = _seen(g, x)
    column = g.add("reshape", [at], Tensor((count, 1), kind), keep=False)
    if g.chance(0.4):  # all are one number
        row = g.broadcast(g.scalar(kind, g.int(0, count)), (count,), ())
        return _scattered(g, x, column, row, "set")
    return _scattered(g, x, column, _seen(g, x), g.pick(("add", "maximum", "minimum")))


@maker("own_slice", group="own", weight=1.0)
def own_slice(g: Draw) -> Value:
    """A part of an array written elsewhere in it, at a place that it may hold itself."""
    x = _target(g, g.operand("biufc", 1, 3, zero=0))
    sizes = tuple(g.int(1, s) for s in x.shape)
    number = DTYPES[g.pick(("i32", "i64", "ui32"))]

    def place() -> list[Value]:
        if x.dtype.kind != "int" or g.chance(0.5):
            return [g.like(Tensor((), number), low=0, high=max(x.shape), bounded=True) for _ in x.shape]
        zeros = [g.scalar(number, 0)] * len(x.shape)
        one = g.add(
            "dynamic_slice", [x, *zeros], Tensor((1,) * len(x.shape), x.dtype), {"slice_sizes": (1,) * len(x.shape)}
        )
        return [g.add("reshape", [one], Tensor((), x.dtype))] * len(x.shape)

    part = g.add("dynamic_slice", [x, *place()], Tensor(sizes, x.dtype), {"slice_sizes": sizes}, keep=g.chance(0.3))
    if g.chance(0.3):
        part = g.add("reverse", [part], part.type, {"dimensions": (0,)}, keep=False)
    return g.add("dynamic_update_slice", [x, part, *place()], x.type)

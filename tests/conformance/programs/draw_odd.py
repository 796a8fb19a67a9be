"""Makers of what frameworks seldom write: old spellings, tuples, collectives of one device, shapes given as values.

They are drawn with the profile `odd` only.
"""

from __future__ import annotations

from math import prod

import numpy as np
from draw import Draw, maker
from draw_elementwise import second
from draw_shape import factored

from ferrule.ir import Block, Tensor, Tuple, Value
from ferrule.ir.types import DTYPES

I64 = DTYPES["i64"]
ONE_DEVICE = np.zeros((1, 1), np.int64)


@maker("einsum", group="odd", weight=1.0)
def einsum(g: Draw) -> Value:
    """A product by letters: batch, contracted and free ones in any order."""
    letters = "abcd"[: g.int(2, 4)]
    sizes = {c: g.int(1, 6) for c in letters}
    left = g.shuffled(letters)[: g.int(1, len(letters))]
    shared = [c for c in left if g.chance(0.6)] or left[:1]
    right = g.shuffled([*shared, *(c for c in letters if c not in left)])
    out = [c for c in dict.fromkeys([*left, *right]) if not (c in left and c in right) or g.chance(0.4)]
    out = g.shuffled(out)
    dtype = DTYPES[g.pick(("f32", "f32", "i32", "f64", "complex<f32>"))]
    x, y = (g.like(Tensor(tuple(sizes[c] for c in part), dtype)) for part in (left, right))
    config = f"{''.join(left)},{''.join(right)}->{''.join(out)}"
    return g.add("einsum", [x, y], Tensor(tuple(sizes[c] for c in out), dtype), {"einsum_config": config})


@maker("tuple", group="odd", weight=1.0)
def tuple_(g: Draw) -> Value:
    """Values put together and one of them taken out again, perhaps out of a tuple in a tuple."""
    values = [g.operand() for _ in range(g.int(1, 3))]
    whole = g.block.add("tuple", values, Tuple(tuple(v.type for v in values))).result
    which = g.int(0, len(values) - 1)
    if g.chance(0.3):
        other = g.operand()
        outer = g.block.add("tuple", [whole, other], Tuple((whole.type, other.type)))
        whole = g.block.add("get_tuple_element", [outer.result], whole.type, {"index": 0}).result
    return g.add("get_tuple_element", [whole], values[which].type, {"index": which})


@maker("partition_id", "replica_id", group="odd", weight=0.5)
def device_number(g: Draw, name: str) -> Value:
    """Zero, on one device."""
    return g.add(name, [], Tensor((), DTYPES["ui32"]))


@maker("all_reduce", "cross-replica-sum", group="odd", weight=0.5)
def all_reduce(g: Draw, name: str) -> Value:
    """Over one device: the value itself."""
    x = g.operand("iuf")
    attrs = {"replica_groups": ONE_DEVICE}
    if name != "all_reduce":
        return g.add(name, [x], x.type, attrs)
    return g.add(name, [x], [x.type], attrs, [g.body_of("add", x.dtype)])[0]


@maker("all_gather", "all_to_all", "reduce_scatter", group="odd", weight=0.5)
def redistributed(g: Draw, name: str) -> Value:
    """Over one device: the value itself."""
    x = g.operand("iuf", 1, zero=0)
    d = g.int(0, len(x.shape) - 1)
    attrs = {"replica_groups": ONE_DEVICE}
    if name == "all_gather":
        return g.add(name, [x], [x.type], {**attrs, "all_gather_dim": d})[0]
    if name == "reduce_scatter":
        return g.add(name, [x], x.type, {**attrs, "scatter_dimension": d}, [g.body_of("add", x.dtype)])
    attrs |= {"split_dimension": d, "concat_dimension": g.int(0, len(x.shape) - 1), "split_count": 1}
    return g.add(name, [x], [x.type], attrs)[0]


@maker("collective_permute", "collective_broadcast", group="odd", weight=0.5)
def permuted(g: Draw, name: str) -> Value:
    """From the only device to itself."""
    x = g.operand()
    key = "source_target_pairs" if name == "collective_permute" else "replica_groups"
    return g.add(name, [x], x.type, {key: ONE_DEVICE if key == "replica_groups" else np.zeros((1, 2), np.int64)})


@maker("composite", group="odd", weight=1.0)
def composite(g: Draw) -> Value:
    """An op with a name of its own and a function that says what it is."""
    x = g.operand("iuf")
    y = g.like(x.type)  # type: ignore[arg-type]
    name = f"c{len(g.functions)}"
    body = Block([x.type, y.type])
    total = body.add(g.pick(("add", "multiply", "subtract")), body.args, x.type).result
    body.results = [body.add("negate", [total], x.type).result]
    g.functions[name] = body
    return g.add("composite", [x, y], x.type, {"name": f"my.{name}", "decomposition": name})


@maker("division_edges", group="odd", weight=1.0)
def division_edges(g: Draw) -> Value:
    """Division by zero and of the lowest value by -1, as XLA has them."""
    x = g.operand("iu")
    if x.dtype.bits < 8:
        x = g.convert(x, DTYPES["i32"])
    y = second(g, x)
    return g.add(g.pick(("divide", "remainder")), [x, y], x.type)


@maker("dynamic_broadcast_in_dim", group="odd", weight=0.7)
def dynamic_broadcast(g: Draw) -> Value:
    """To a shape that is a constant."""
    x = g.operand(high=3)
    shape = (*g.shape(0, 1, 20), *x.shape)
    dims = tuple(range(len(shape) - len(x.shape), len(shape)))
    sizes = g.constant(np.array(shape, np.int64))
    return g.add("dynamic_broadcast_in_dim", [x, sizes], Tensor(shape, x.dtype), {"broadcast_dimensions": dims})


@maker("dynamic_reshape", group="odd", weight=0.7)
def dynamic_reshape(g: Draw) -> Value:
    """To a shape that is a constant."""
    x = g.operand(zero=0)
    out = factored(g, prod(x.shape), g.int(1, 4))
    out = out if prod(out) == prod(x.shape) else x.shape
    return g.add("dynamic_reshape", [x, g.constant(np.array(out, np.int32))], Tensor(out, x.dtype))


@maker("real_dynamic_slice", group="odd", weight=0.7)
def real_dynamic_slice(g: Draw) -> Value:
    """With constants for its bounds."""
    x = g.operand(low=1, zero=0)
    start = [g.int(0, s - 1) for s in x.shape]
    stop = [g.int(a + 1, s) for a, s in zip(start, x.shape, strict=True)]
    step = [g.int(1, 3) for _ in x.shape]
    shape = tuple(-(-(b - a) // s) for a, b, s in zip(start, stop, step, strict=True))
    bounds = [g.constant(np.array(v, np.int64)) for v in (start, stop, step)]
    return g.add("real_dynamic_slice", [x, *bounds], Tensor(shape, x.dtype))


@maker("dynamic_pad", group="odd", weight=0.7)
def dynamic_pad(g: Draw) -> Value:
    """With constants for its widths."""
    x = g.operand(low=1, zero=0)
    low, high, inner = ([g.int(0, 2) for _ in x.shape] for _ in range(3))
    shape = tuple(s + (s - 1) * i + a + b for s, a, b, i in zip(x.shape, low, high, inner, strict=True))
    widths = [g.constant(np.array(v, np.int64)) for v in (low, high, inner)]
    return g.add("dynamic_pad", [x, g.like(Tensor((), x.dtype)), *widths], Tensor(shape, x.dtype))


@maker("dynamic_iota", group="odd", weight=0.4)
def dynamic_iota(g: Draw) -> Value:
    """Of a shape that is a constant."""
    shape = g.shape(1, 3)
    sizes = g.constant(np.array(shape, np.int64))
    kind = Tensor(shape, DTYPES[g.pick(("i32", "f32", "i64"))])
    return g.add("dynamic_iota", [sizes], kind, {"iota_dimension": g.int(0, len(shape) - 1)})


@maker("nothing", group="odd", weight=0.3)
def nothing(g: Draw) -> Value:
    """An argument that is only handed back."""
    return g.operand()

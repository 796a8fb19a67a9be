"""Ops that move elements without computing: constants, broadcasting, slicing, padding, joining."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ferrule.codegen.index import ZERO, Component, Cond, constant
from ferrule.ir import Op, Tensor, Type, Value
from ferrule.ir.types import BY_NUMPY, bf16, c64, c128, f32, f64, i1, i8, i32, i64
from ferrule.ops import numerics as n
from ferrule.ops.checks import attr, axes, declared, expect, kinds, operand, operands, per_axis, reject
from ferrule.ops.definition import Factors, Run, alike, define, element, factors
from ferrule.ops.samples import FLOATS, INTS, UINTS, Sample, data, dtypes, samples

if TYPE_CHECKING:
    from ferrule.codegen.emitter import Emitter, Key, Lanes

Arrays = Sequence[np.ndarray]


# ---- constant, iota ----------------------------------------------------------------------------------------------


def _infer_constant(op: Op) -> Sequence[Type]:
    value = attr(op, "value")
    expect(op, isinstance(value, np.ndarray), f"the value is a {type(value).__name__}, not an array")
    return [Tensor(tuple(value.shape), BY_NUMPY[value.dtype])]


def _infer_iota(op: Op) -> Sequence[Type]:
    t = declared(op)
    kinds(op, "iufc", t)
    axes(op, "iota_dimension", (attr(op, "iota_dimension"),), t.rank)
    return [t]


def _iota(op: Op, xs: Arrays, run: Run) -> Arrays:
    t, axis = declared(op), attr(op, "iota_dimension")
    line = np.arange(t.shape[axis], dtype=np.int64)
    values = n.convert(line, t.dtype)
    return [np.broadcast_to(values.reshape([-1 if i == axis else 1 for i in range(t.rank)]), t.shape).copy()]


# ---- broadcasting and reshaping ----------------------------------------------------------------------------------


def _infer_broadcast_in_dim(op: Op) -> Sequence[Type]:
    (t,) = operands(op, 1)
    out = declared(op)
    dims = axes(op, "broadcast_dimensions", attr(op, "broadcast_dimensions", ()), out.rank)
    expect(op, len(dims) == t.rank, f"broadcast_dimensions = {dims} has {len(dims)} entries for {t}")
    for i, d in enumerate(dims):
        if t.shape[i] not in (1, out.shape[d]):
            reject(op, f"dimension {i} of {t} is {t.shape[i]}", f"it must be 1 or {out.shape[d]} to become {out}")
    return [Tensor(out.shape, t.dtype)]


def _broadcast_in_dim(op: Op, xs: Arrays, run: Run) -> Arrays:
    shape = declared(op).shape
    middle = [1] * len(shape)
    dims = attr(op, "broadcast_dimensions", ())
    x = xs[0].transpose([int(i) for i in np.argsort(dims)]) if len(dims) else xs[0]
    for d, size in zip(sorted(dims), x.shape, strict=True):
        middle[d] = size
    return [np.broadcast_to(x.reshape(middle), shape)]


def _infer_broadcast(op: Op) -> Sequence[Type]:
    (t,) = operands(op, 1)
    return [Tensor((*attr(op, "broadcast_sizes"), *t.shape), t.dtype)]


def _infer_reshape(op: Op) -> Sequence[Type]:
    (t,) = operands(op, 1)
    out = declared(op)
    expect(op, prod(t.shape) == prod(out.shape), f"{t} has {prod(t.shape)} elements and {out} {prod(out.shape)}")
    return [Tensor(out.shape, t.dtype)]


def _infer_transpose(op: Op) -> Sequence[Type]:
    (t,) = operands(op, 1)
    order = axes(op, "permutation", attr(op, "permutation", ()), t.rank)
    expect(op, len(order) == t.rank, f"permutation = {order} does not fit {t}")
    return [Tensor(tuple(t.shape[i] for i in order), t.dtype)]


def _infer_reverse(op: Op) -> Sequence[Type]:
    (t,) = operands(op, 1)
    axes(op, "dimensions", attr(op, "dimensions", ()), t.rank)
    return [t]


# ---- slicing, padding, joining -----------------------------------------------------------------------------------


def _infer_slice(op: Op) -> Sequence[Type]:
    (t,) = operands(op, 1)
    starts, limits = per_axis(op, "start_indices", t.rank), per_axis(op, "limit_indices", t.rank)
    strides = per_axis(op, "strides", t.rank, 1)
    for i, (low, high, step) in enumerate(zip(starts, limits, strides, strict=True)):
        if not (0 <= low <= high <= t.shape[i] and step >= 1):
            reject(op, f"[{low}:{high}:{step}] does not fit dimension {i} of {t}")
    return [Tensor(tuple(max(0, -(-(h - s) // d)) for s, h, d in zip(starts, limits, strides, strict=True)), t.dtype)]


def _slice(op: Op, xs: Arrays, run: Run) -> Arrays:
    rank = xs[0].ndim
    bounds = zip(op.attrs["start_indices"], op.attrs["limit_indices"], per_axis(op, "strides", rank, 1), strict=True)
    return [np.asarray(xs[0][tuple(slice(*b) for b in bounds)])]


def _infer_pad(op: Op) -> Sequence[Type]:
    t, value = operands(op, 2)
    expect(op, value == Tensor((), t.dtype), f"the padding value is {value}, not a scalar {t.dtype}")
    low, high = per_axis(op, "edge_padding_low", t.rank), per_axis(op, "edge_padding_high", t.rank)
    inner = per_axis(op, "interior_padding", t.rank, 0)
    expect(op, all(i >= 0 for i in inner), f"interior_padding = {inner} must not be negative")
    shape = tuple(a + s + max(s - 1, 0) * i + b for a, s, i, b in zip(low, t.shape, inner, high, strict=True))
    expect(op, all(s >= 0 for s in shape), f"the padding of {t} leaves the negative shape {shape}")
    return [Tensor(shape, t.dtype)]


def pad(x: np.ndarray, value: np.ndarray, low: Sequence[int], high: Sequence[int], inner: Sequence[int]) -> np.ndarray:
    """Pads (or with negative edges crops) every dimension, with `inner` values between neighbours."""
    spread = [s + max(s - 1, 0) * i for s, i in zip(x.shape, inner, strict=True)]
    full = [max(a, 0) + s + max(b, 0) for a, s, b in zip(low, spread, high, strict=True)]
    out = np.empty(full, x.dtype)
    out[...] = value
    place = (slice(max(a, 0), max(a, 0) + s, i + 1) for a, s, i in zip(low, spread, inner, strict=True))
    out[tuple(place)] = x
    crop = (slice(max(-a, 0), f - max(-b, 0)) for a, b, f in zip(low, high, full, strict=True))
    return np.asarray(out[tuple(crop)])


def _pad(op: Op, xs: Arrays, run: Run) -> Arrays:
    inner = per_axis(op, "interior_padding", xs[0].ndim, 0)
    return [pad(xs[0], xs[1], op.attrs["edge_padding_low"], op.attrs["edge_padding_high"], inner)]


def _infer_concatenate(op: Op) -> Sequence[Type]:
    types = operands(op)
    expect(op, bool(types), "needs at least one operand")
    (axis,) = axes(op, "dimension", (attr(op, "dimension"),), types[0].rank)
    for i, t in enumerate(types):
        rest = [(a, b) for d, (a, b) in enumerate(zip(t.shape, types[0].shape, strict=False)) if d != axis]
        if t.dtype != types[0].dtype or t.rank != types[0].rank or any(a != b for a, b in rest):
            reject(op, f"operand {i} is {t} and operand 0 {types[0]}", f"they may differ in dimension {axis} only")
    shape = list(types[0].shape)
    shape[axis] = sum(t.shape[axis] for t in types)
    return [Tensor(tuple(shape), types[0].dtype)]


# ---- dynamic slices ----------------------------------------------------------------------------------------------


def _starts(op: Op, t: Tensor, first: int) -> None:
    indices = [operand(op, i) for i in range(first, len(op.operands))]
    expect(op, len(indices) == t.rank, f"{len(indices)} start indices for {t}")
    for i in indices:
        expect(op, i.rank == 0 and i.dtype.is_int, f"a start index is {i}, not an integer scalar")


def _infer_dynamic_slice(op: Op) -> Sequence[Type]:
    t = operand(op, 0)
    _starts(op, t, 1)
    sizes = per_axis(op, "slice_sizes", t.rank)
    expect(op, all(0 <= s <= d for s, d in zip(sizes, t.shape, strict=True)), f"slice_sizes = {sizes} exceed {t}")
    return [Tensor(sizes, t.dtype)]


def _infer_dynamic_update_slice(op: Op) -> Sequence[Type]:
    t, update = operand(op, 0), operand(op, 1)
    _starts(op, t, 2)
    fits = update.rank == t.rank and all(u <= d for u, d in zip(update.shape, t.shape, strict=True))
    expect(op, update.dtype == t.dtype and fits, f"the update {update} does not fit into {t}")
    return [t]


def _window(starts: Arrays, shape: Sequence[int], sizes: Sequence[int]) -> tuple[slice, ...]:
    """The slice at `starts`, moved inside the bounds as XLA does."""
    at = [min(max(int(s), 0), d - k) for s, d, k in zip(starts, shape, sizes, strict=True)]
    return tuple(slice(a, a + k) for a, k in zip(at, sizes, strict=True))


def _dynamic_slice(op: Op, xs: Arrays, run: Run) -> Arrays:
    return [np.array(xs[0][_window(xs[1:], xs[0].shape, op.attrs["slice_sizes"])])]


def _dynamic_update_slice(op: Op, xs: Arrays, run: Run) -> Arrays:
    out = xs[0].copy()
    out[_window(xs[2:], out.shape, xs[1].shape)] = xs[1]
    return [out]


def _infer_get_dimension_size(op: Op) -> Sequence[Type]:
    (t,) = operands(op, 1)
    axes(op, "dimension", (attr(op, "dimension"),), t.rank)
    return [Tensor((), i32)]


define("constant", infer=_infer_constant, evaluate=lambda op, xs, run: [op.attrs["value"]], flops=0)
define("iota", infer=_infer_iota, evaluate=_iota, flops=0)
define("broadcast_in_dim", infer=_infer_broadcast_in_dim, evaluate=_broadcast_in_dim, flops=0)
define(
    "broadcast",
    infer=_infer_broadcast,
    evaluate=lambda op, xs, run: [np.broadcast_to(xs[0], (*op.attrs["broadcast_sizes"], *xs[0].shape))],
    flops=0,
)
define("reshape", infer=_infer_reshape, evaluate=lambda op, xs, run: [xs[0].reshape(declared(op).shape)], flops=0)
define(
    "transpose",
    infer=_infer_transpose,
    evaluate=lambda op, xs, run: [np.asarray(xs[0].transpose(attr(op, "permutation", ())))],
    flops=0,
)
define(
    "reverse",
    infer=_infer_reverse,
    evaluate=lambda op, xs, run: [np.flip(xs[0], tuple(attr(op, "dimensions", ())))],
    flops=0,
)
define("slice", infer=_infer_slice, evaluate=_slice, flops=0)
define("pad", infer=_infer_pad, evaluate=_pad, flops=0)
define(
    "concatenate",
    infer=_infer_concatenate,
    evaluate=lambda op, xs, run: [np.concatenate(xs, axis=op.attrs["dimension"])],
    flops=0,
)
define("dynamic_slice", infer=_infer_dynamic_slice, evaluate=_dynamic_slice, flops=0)
define("dynamic_update_slice", infer=_infer_dynamic_update_slice, evaluate=_dynamic_update_slice, flops=0)
define(
    "get_dimension_size",
    infer=_infer_get_dimension_size,
    evaluate=lambda op, xs, run: [np.array(xs[0].shape[op.attrs["dimension"]], np.int32)],
    flops=0,
)


# ---- factors -----------------------------------------------------------------------------------------------------


@factors("iota")
def _iota_factors(op: Op) -> Factors:
    return Factors([], [alike(len(op.result.shape))])


@factors("broadcast_in_dim")
def _broadcast_factors(op: Op) -> Factors:
    shape, out, places = op.operands[0].shape, op.result.shape, attr(op, "broadcast_dimensions", ())
    dims = tuple(d if size == out[d] else None for size, d in zip(shape, places, strict=True))
    return Factors([dims], [alike(len(out))])


def regrouped(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The dimensions of a reshape that become each other, as few as can be at a time, but for those of size 1.

    Both shapes have equally many elements, and some.
    """
    left = [d for d, n in enumerate(before) if n > 1]
    right = [d for d, n in enumerate(after) if n > 1]
    found = []
    while left:
        ours, theirs = [left.pop(0)], [right.pop(0)]
        have, want = before[ours[0]], after[theirs[0]]
        while have != want:
            if have < want:
                ours.append(left.pop(0))
                have *= before[ours[-1]]
            else:
                theirs.append(right.pop(0))
                want *= after[theirs[-1]]
        found.append((ours, theirs))
    return found


@factors("reshape")
def _reshape_factors(op: Op) -> Factors:
    """Of dimensions that become others together, the first of each side: its parts are parts of memory."""
    before, after = op.operands[0].shape, op.result.shape
    left: list[int | None] = [None] * len(before)
    right: list[int | None] = [None] * len(after)
    for ours, theirs in regrouped(before, after) if 0 not in before else ():
        left[ours[0]] = right[theirs[0]] = ours[0]
    return Factors([tuple(left)], [tuple(right)])


@factors("transpose")
def _transpose_factors(op: Op) -> Factors:
    return Factors([alike(len(op.result.shape))], [tuple(attr(op, "permutation", ()))])


@factors("reverse")
def _reverse_factors(op: Op) -> Factors:
    dims = alike(len(op.result.shape), attr(op, "dimensions", ()))
    return Factors([dims], [dims])


@factors("slice")
def _slice_factors(op: Op) -> Factors:
    shape, limits = op.operands[0].shape, tuple(op.attrs["limit_indices"])
    bounds = zip(op.attrs["start_indices"], limits, per_axis(op, "strides", len(shape), 1), shape, strict=True)
    # All of a dimension, or one of every so many elements.
    cut = [
        d
        for d, (start, limit, step, size) in enumerate(bounds)
        if start >= step or size % step or limit <= size - step + start
    ]
    dims = alike(len(shape), cut)
    return Factors([dims], [dims], attrs=lambda parts, _: {
        "limit_indices": tuple(limits[d] if d in cut else size for d, size in enumerate(parts[0]))
    })  # fmt: skip


@factors("pad")
def _pad_factors(op: Op) -> Factors:
    rank = len(op.result.shape)
    edges = zip(op.attrs["edge_padding_low"], op.attrs["edge_padding_high"], per_axis(op, "interior_padding", rank, 0),
                strict=True)  # fmt: skip
    dims = alike(rank, [d for d, edge in enumerate(edges) if any(edge)])
    return Factors([dims, ()], [dims])


@factors("concatenate")
def _concatenate_factors(op: Op) -> Factors:
    dims = alike(len(op.result.shape), (op.attrs["dimension"],))
    return Factors([dims] * len(op.operands), [dims])


@factors("dynamic_slice")
def _dynamic_slice_factors(op: Op) -> Factors:
    shape, sizes = op.operands[0].shape, op.attrs["slice_sizes"]
    dims = alike(len(shape), [d for d, size in enumerate(shape) if sizes[d] != size])
    starts = [()] * (len(op.operands) - 1)
    return Factors([dims, *starts], [dims], attrs=lambda _, parts: {"slice_sizes": parts[0]})


@factors("dynamic_update_slice")
def _update_factors(op: Op) -> Factors:
    shape, part = op.operands[0].shape, op.operands[1].shape
    dims = alike(len(shape), [d for d, size in enumerate(shape) if part[d] != size])
    return Factors([dims, dims, *[()] * (len(op.operands) - 2)], [dims])


# ---- elements ----------------------------------------------------------------------------------------------------
# What element `index` of the result is. Lanes that lie outside an operand are never read: `em.choose` masks them.


@element("constant")
def _constant_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    value, dtype = op.attrs["value"], op.result.dtype
    if value.size == 1 or not any(value.strides):
        return em.s.const(dtype, value[(0,) * value.ndim])
    return em.table(value, dtype, index)


@element("iota")
def _iota_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    return em.s.convert(i64, op.result.dtype, em.ix.lanes(index[op.attrs["iota_dimension"]]))


@element("broadcast_in_dim")
def _broadcast_in_dim_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    dims = op.attrs.get("broadcast_dimensions", ())
    return em.operand(op, 0, [ZERO if op.operands[0].shape[i] == 1 else index[d] for i, d in enumerate(dims)])


@element("broadcast")
def _broadcast_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    return em.operand(op, 0, index[len(op.attrs["broadcast_sizes"]) :])


@element("reshape")
def _reshape_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    return em.operand(op, 0, em.ix.reshape(index, op.result.shape, op.operands[0].shape))


@element("transpose")
def _transpose_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    source: list[Component] = [ZERO] * len(index)
    for d, axis in enumerate(op.attrs.get("permutation", ())):
        source[axis] = index[d]
    return em.operand(op, 0, source)


@element("reverse")
def _reverse_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    shape, flipped = op.result.shape, op.attrs.get("dimensions", ())
    return em.operand(op, 0, [em.ix.sub(constant(shape[d] - 1), c) if d in flipped else c for d, c in enumerate(index)])


@element("slice")
def _slice_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    starts, steps = op.attrs["start_indices"], per_axis(op, "strides", len(index), 1)
    return em.operand(op, 0, [em.ix.affine(c, s, a) for c, s, a in zip(index, steps, starts, strict=True)])


@element("pad")
def _pad_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    from ferrule.codegen.spread import padded

    return padded(em, op, index)


@element("concatenate")
def _concatenate_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    axis = op.attrs["dimension"]
    pieces, start = [], 0
    for i, operand_i in enumerate(op.operands):
        size = operand_i.shape[axis]
        if size:
            pieces.append((i, start, size))
        start += size
    source = one_source(op)
    at = em.ix.force(index[axis])
    if source is not None and at.step == 0:  # one place is chosen instead of one of two values
        begins = [first[axis] - start for first, (_, start, _) in zip(source[1], pieces, strict=True)]
        place = em.ix.shifted(at, [start + size for _, start, size in pieces], begins)
        starts = source[1][0]
        moved = [em.ix.plus(c, em.ix.number(start)) for c, start in zip(index, starts, strict=True)]
        moved[axis] = place
        return em.value(source[0], moved)

    def pick(rest: list[tuple[int, int, int]]) -> Lanes:
        i, start, size = rest[0]

        def this() -> Lanes:
            at = em.ix.within(em.ix.sub(index[axis], start), 0, size)
            return em.operand(op, i, [at if d == axis else c for d, c in enumerate(index)])

        if len(rest) == 1:
            return this()
        before = em.ix.less(index[axis], start + size)
        return em.choose(before, op.result.dtype, this, lambda: pick(rest[1:]))

    return pick(pieces)


def one_source(op: Op) -> tuple[Value, list[Sequence[int]]] | None:
    """What all parts of a concatenation, but empty ones, are slices of, and where each begins; they are equal in the
    other dimensions. Rotated arrays are joined so."""
    axis, found, source = op.attrs["dimension"], list[Sequence[int]](), None
    for part in op.operands:
        if not part.shape[axis]:
            continue
        inner, starts = part, [0] * len(part.shape)
        if part.op is not None and part.op.name == "slice" and all(s == 1 for s in part.op.attrs.get("strides") or ()):
            inner, starts = part.op.operands[0], list(part.op.attrs["start_indices"])
        if found and (inner is not source or any(starts[d] != found[0][d] for d in range(len(starts)) if d != axis)):
            return None
        source = inner
        found.append(starts)
    return None if source is None else (source, found)


@element("dynamic_slice")
def _dynamic_slice_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    shape, sizes = op.operands[0].shape, op.attrs["slice_sizes"]
    starts = [em.index_of(op, 1 + d, (), 0, shape[d] - sizes[d]) for d in range(len(shape))]
    return em.operand(op, 0, [em.ix.plus(c, s) for c, s in zip(index, starts, strict=True)])


@element("dynamic_update_slice")
def _dynamic_update_slice_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    shape, sizes = op.operands[0].shape, op.operands[1].shape
    inside: Cond = 0 not in sizes
    source: list[Component] = []
    for d, c in enumerate(index):
        start = em.index_of(op, 2 + d, (), 0, shape[d] - sizes[d])
        if sizes[d] == shape[d]:
            source.append(c)
            continue
        at = em.ix.sub(c, start)
        inside = em.ix.both(inside, em.ix.inside(at, 0, sizes[d]))
        source.append(em.ix.within(at, 0, sizes[d]))
    return em.choose(inside, op.result.dtype, lambda: em.operand(op, 1, source), lambda: em.operand(op, 0, index))


@element("get_dimension_size")
def _get_dimension_size_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    return em.s.const(i32, op.operands[0].shape[op.attrs["dimension"]])


# ---- samples -----------------------------------------------------------------------------------------------------
# Moving elements does not depend on the type, so most cases use one type of each width.

_WIDTHS = (i1, i8, bf16, f32, f64, c64, c128)


@samples("constant")
def _constant_samples(name: str) -> Iterable[Sample]:
    for d in dtypes("biufc"):
        yield Sample(name, f"{d}", (), {"value": data(d, (3, 5), name)})
        yield Sample(name, f"{d}-splat", (), {"value": np.broadcast_to(data(d, (), name), (2, 3))})
    yield Sample(name, "empty", (), {"value": data(f32, (0, 3), name)})


@samples("iota")
def _iota_samples(name: str) -> Iterable[Sample]:
    for d in (*INTS, *UINTS, *FLOATS, c64):
        for axis in range(2):
            yield Sample(name, f"{d}-{axis}", (), {"iota_dimension": axis}, (Tensor((3, 7), d),))


@samples("broadcast_in_dim")
def _broadcast_in_dim_samples(name: str) -> Iterable[Sample]:
    for d in _WIDTHS:
        forms = (((), (3,), ()), ((5,), (3, 5), (1,)), ((1, 5), (4, 5), (0, 1)), ((5, 3), (3, 5), (1, 0)))
        for shape, out, dims in forms:
            attrs = {"broadcast_dimensions": dims}
            yield Sample(name, f"{d}{list(shape)}", (data(d, shape, name),), attrs, (Tensor(out, d),))
    yield Sample(name, "empty", (data(f32, (1,), name),), {"broadcast_dimensions": (1,)}, (Tensor((0, 3), f32),))


@samples("broadcast")
def _broadcast_samples(name: str) -> Iterable[Sample]:
    for d in (i8, f32, c64):
        for shape, sizes in (((), (3,)), ((5,), (2, 3)), ((3, 5), ()), ((5,), (0,))):
            yield Sample(name, f"{d}{list(shape)}{list(sizes)}", (data(d, shape, name),), {"broadcast_sizes": sizes})


@samples("get_dimension_size")
def _get_dimension_size_samples(name: str) -> Iterable[Sample]:
    for axis in range(3):
        yield Sample(name, f"{axis}", (data(f32, (3, 0, 7), name),), {"dimension": axis})


@samples("reshape")
def _reshape_samples(name: str) -> Iterable[Sample]:
    for d in _WIDTHS:
        for shape, out in (((3, 10), (5, 6)), ((1,), ()), ((7, 1, 2), (14,)), ((0, 3), (7, 0))):
            yield Sample(name, f"{d}{list(shape)}{list(out)}", (data(d, shape, name),), {}, (Tensor(out, d),))


@samples("transpose")
def _transpose_samples(name: str) -> Iterable[Sample]:
    for d in _WIDTHS:
        orders = (((3, 5), (1, 0)), ((2, 3, 5), (2, 0, 1)), ((), ()), ((17, 33), (1, 0)), ((0, 3), (1, 0)))
        for shape, order in orders:
            yield Sample(name, f"{d}{list(shape)}{list(order)}", (data(d, shape, name),), {"permutation": order})


@samples("reverse")
def _reverse_samples(name: str) -> Iterable[Sample]:
    for d in _WIDTHS:
        for dims in ((0,), (0, 1), ()):
            yield Sample(name, f"{d}{list(dims)}", (data(d, (3, 7), name),), {"dimensions": dims})


@samples("slice")
def _slice_samples(name: str) -> Iterable[Sample]:
    for d in _WIDTHS:
        for low, high, step in (((0, 0), (3, 7), (1, 1)), ((1, 2), (3, 7), (1, 2)), ((1, 3), (1, 7), (1, 3))):
            attrs = {"start_indices": low, "limit_indices": high, "strides": step}
            yield Sample(name, f"{d}{list(low)}", (data(d, (3, 7), name),), attrs)


@samples("pad")
def _pad_samples(name: str) -> Iterable[Sample]:
    for d in _WIDTHS:
        for low, high, inner in (((1, 0), (0, 2), (0, 1)), ((-1, 2), (1, -2), (2, 0)), ((0, -3), (0, -4), (0, 0))):
            attrs = {"edge_padding_low": low, "edge_padding_high": high, "interior_padding": inner}
            yield Sample(name, f"{d}{list(low)}", (data(d, (3, 7), name), data(d, (), "value")), attrs)
    line = {"edge_padding_low": (2,), "edge_padding_high": (1,), "interior_padding": (1,)}
    yield Sample(name, "empty", (data(f32, (0,), name), data(f32, (), "value")), line)


@samples("concatenate")
def _concatenate_samples(name: str) -> Iterable[Sample]:
    for d in _WIDTHS:
        parts = tuple(data(d, (2, k), name) for k in (3, 0, 1, 5))
        yield Sample(name, f"{d}", parts, {"dimension": 1})
        yield Sample(name, f"{d}-one", parts[:1], {"dimension": 0})


@samples("dynamic_slice", "dynamic_update_slice")
def _dynamic_samples(name: str) -> Iterable[Sample]:
    for d in _WIDTHS:
        for at in ((0, 0), (1, 3), (9, -4)):
            starts = tuple(np.array(v, np.int32) for v in at)
            x, update = data(d, (4, 7), name), data(d, (2, 3), "update")
            if name == "dynamic_slice":
                yield Sample(name, f"{d}{list(at)}", (x, *starts), {"slice_sizes": (2, 3)})
            else:
                yield Sample(name, f"{d}{list(at)}", (x, update, *starts))

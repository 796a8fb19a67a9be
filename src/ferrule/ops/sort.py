"""sort with any comparator, and top_k."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ferrule.ir import Op, Tensor, Type
from ferrule.ir.types import f32, i1, i32
from ferrule.ops import numerics as n
from ferrule.ops.bodies import Combine, check_body, vectorized
from ferrule.ops.checks import attr, axes, expect, kinds, operands, regions
from ferrule.ops.definition import Run, define
from ferrule.ops.samples import FLOATS, INTS, UINTS, Sample, compare_body, corners, data, dtypes, samples

Arrays = Sequence[np.ndarray]


def _infer_sort(op: Op) -> Sequence[Type]:
    types = operands(op)
    expect(op, bool(types), "needs at least one operand")
    rank = types[0].rank
    axis = attr(op, "dimension", -1)
    axes(op, "dimension", (axis + rank if axis < 0 else axis,), rank)
    for i, t in enumerate(types):
        expect(op, t.shape == types[0].shape, f"operand {i} is {t} and operand 0 {types[0]}", "shapes must be equal")
    (body,) = regions(op, 1)
    scalars = [Tensor((), t.dtype) for t in types for _ in range(2)]
    check_body(op, body, scalars, [Tensor((), i1)], "comparator")
    return types


def merge_sort(keys: Arrays, less: Combine) -> np.ndarray:
    """Stable order of each row of `keys` (rows, n) under a comparator on arrays of pairs.

    Bottom-up merging: an element's place is its own rank plus the number of elements of the other run that come
    before it, found for all elements at once by binary search.
    """
    rows, size = keys[0].shape
    order = np.broadcast_to(np.arange(size), (rows, size)).copy()
    row = np.arange(rows)[:, None]
    here = np.arange(size)

    def before(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Whether the element with the original index a comes strictly before b."""
        pairs = [v for k in keys for v in (k[row, a], k[row, b])]
        return np.asarray(less(pairs)[0], bool)

    width = 1
    while width < size:
        block = here // (2 * width) * (2 * width)
        left = here - block < width
        other = np.where(left, block + width, block)
        low = np.broadcast_to(np.minimum(other, size), (rows, size)).copy()
        stop = np.minimum(np.where(left, block + 2 * width, block + width), size)
        high = np.broadcast_to(np.maximum(stop, np.minimum(other, size)), (rows, size)).copy()
        base = np.minimum(other, size)
        while (low < high).any():
            middle = (low + high) // 2
            candidate = order[row, np.minimum(middle, size - 1)]
            # elements of the left run are followed by equal ones of the right run
            first = np.where(left, before(candidate, order), ~before(order, candidate))
            active = low < high
            low = np.where(active & first, middle + 1, low)
            high = np.where(active & ~first, middle, high)
        place = block + (here - np.where(left, block, block + width)) + (low - base)
        merged = np.empty_like(order)
        merged[row, place] = order
        order = merged
        width *= 2
    return order


def _sort(op: Op, xs: Arrays, run: Run) -> Arrays:
    axis = attr(op, "dimension", -1)
    moved = [np.moveaxis(x, axis, -1) for x in xs]
    shape = moved[0].shape
    if 0 in shape:
        return list(xs)
    rows = [m.reshape(-1, shape[-1]) for m in moved]
    order = merge_sort(rows, vectorized(op.regions[0], run))
    return [np.moveaxis(np.take_along_axis(r, order, 1).reshape(shape), -1, axis) for r in rows]


def _infer_top_k(op: Op) -> Sequence[Type]:
    (t,) = operands(op, 1)
    kinds(op, "iuf", t)
    k = attr(op, "k")
    expect(op, t.rank >= 1 and 0 <= k <= t.shape[-1], f"k = {k} of {t}")
    shape = (*t.shape[:-1], k)
    return [Tensor(shape, t.dtype), Tensor(shape, i32)]


def _top_k(op: Op, xs: Arrays, run: Run) -> Arrays:
    (x,) = xs
    d = n.dtype_of(x)
    key = n.total_order_key(x) if d.is_float else n.widen(x)
    order = np.argsort(~key, axis=-1, kind="stable")  # ~ reverses the order of integers without overflow
    order = order[..., : op.attrs["k"]]
    return [np.take_along_axis(x, order, -1), order.astype(np.int32)]


define("sort", infer=_infer_sort, evaluate=_sort)
define("top_k", infer=_infer_top_k, evaluate=_top_k)


# ---- samples -----------------------------------------------------------------------------------------------------


@samples("sort")
def _sort_samples(name: str) -> Iterable[Sample]:
    for d in dtypes("biuf"):
        kind = "TOTALORDER" if d.is_float else "NOTYPE"
        for direction in ("LT", "GT"):
            edge = np.concatenate([corners(d), data(d, (20,), name)])
            yield Sample(name, f"{direction}-{d}", (edge,), {"dimension": 0, "is_stable": True},
                         regions=(compare_body(direction, (d,), kind),))  # fmt: skip
    for shape, axis in (((3, 7), 1), ((7, 3), 0), ((2, 0), 1), ((1, 1), 0), ((2, 33, 2), 1), ((5, 257), 1)):
        keys = data(i32, shape, name) % 5
        attrs = {"dimension": axis, "is_stable": True}
        body = compare_body("LT", (i32, f32))
        yield Sample(name, f"pairs{list(shape)}{axis}", (keys, data(f32, shape, 2)), attrs, regions=(body,))
        body = compare_body("GE" if shape == (1, 1) else "GT", (f32,))
        yield Sample(name, f"falling{list(shape)}{axis}", (data(f32, shape, 2),), attrs, regions=(body,))


@samples("top_k")
def _top_k_samples(name: str) -> Iterable[Sample]:
    for d in (*INTS, *UINTS, *FLOATS):
        for shape, k in (((7,), 3), ((3, 37), 5), ((2, 4), 4), ((2, 3), 0)):
            yield Sample(name, f"{d}{list(shape)}-{k}", (data(d, shape, name),), {"k": k})
        yield Sample(name, f"{d}-corners", (corners(d),), {"k": 4})

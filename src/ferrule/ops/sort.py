"""sort with any comparator, top_k, and the step of a merge sort that devices do as a kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ferrule.ir import Op, Tensor, Type, tensor
from ferrule.ir.types import f32, i1, i32, i64
from ferrule.ops import numerics as n
from ferrule.ops.bodies import Combine, check_body, vectorized
from ferrule.ops.checks import attr, axes, expect, kinds, operands, regions
from ferrule.ops.definition import Factors, Run, alike, define, element, factors
from ferrule.ops.samples import FLOATS, INTS, UINTS, Sample, compare_body, corners, data, dtypes, samples

if TYPE_CHECKING:
    from ferrule.codegen.emitter import Emitter, Key, Lanes

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


def _merge(op: Op, xs: Arrays, run: Run) -> Arrays:
    """Along `dimension`, each pair of neighbouring sorted runs of `run` elements becomes one sorted run."""
    axis, length = op.attrs["dimension"], 2 * op.attrs["run"]
    parts = []
    for at in range(0, xs[0].shape[axis], length):
        block = [np.take(x, range(at, min(at + length, x.shape[axis])), axis) for x in xs]
        parts.append(_sort(op, block, run))  # a stable sort of two sorted runs is their merge
    return [np.concatenate(column, axis) for column in zip(*parts, strict=True)] if parts else list(xs)


define("sort", infer=_infer_sort, evaluate=_sort)
define("merge_runs", infer=_infer_sort, evaluate=_merge, flops=32, internal=True)
define("top_k", infer=_infer_top_k, evaluate=_top_k)


@factors("sort")
def _sort_factors(op: Op) -> Factors:
    rank = len(op.results[0].shape)
    dims = alike(rank, (attr(op, "dimension", -1) % max(rank, 1),))
    return Factors([dims] * len(op.operands), [dims] * len(op.results))


@factors("top_k")
def _top_k_factors(op: Op) -> Factors:
    dims = alike(len(op.results[0].shape), (len(op.results[0].shape) - 1,))
    return Factors([dims], [dims] * len(op.results))


# ---- elements ----------------------------------------------------------------------------------------------------


@element("merge_runs")
def _merge_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    """Element j of two merged runs: how many of the j elements before it come from the left run is found by bisection
    (the "merge path" of Odeh et al., 2012), then the next one of either run is chosen. Equal elements keep their order.
    """
    from ferrule.codegen.index import Component, Index

    axis, run, size = op.attrs["dimension"], op.attrs["run"], tensor(op.results[0]).shape[op.attrs["dimension"]]
    s, count = em.s, len(op.operands)

    def number(value: int) -> Lanes:
        return s.const(i64, value)

    def read(i: int, at: Lanes) -> Lanes:
        spot = s.clamp(i64, number(0), at, number(size - 1))
        place: list[Component] = list(index)
        place[axis] = Index(spot, 0 if em.width == 1 else None, 0, size)  # type: ignore[arg-type]
        return em.operand(op, i, place)

    def before(a: Lanes, b: Lanes) -> Lanes:
        """Does the element at a come strictly before the one at b?"""
        (less,) = em.inline(op.regions[0], [v for i in range(count) for v in (read(i, a), read(i, b))])
        return less

    both, local = em.ix.divmod(index[axis], 2 * run)
    left = em.ix.lanes(em.ix.mul(both, 2 * run))
    j = em.ix.lanes(local)
    right = s.add(i64, left, number(run))
    lefts = s.min(i64, s.sub(i64, number(size), left), number(run))
    rights = s.clamp(i64, number(0), s.sub(i64, number(size), right), number(run))

    def halve(_: Index, bounds: list[Lanes]) -> Sequence[Lanes]:
        low, high = bounds
        middle = s.shift("logical", i64, s.add(i64, low, high), number(1))  # type: ignore[arg-type]
        other = s.sub(i64, s.add(i64, right, s.sub(i64, j, middle)), number(1))
        behind = before(other, s.add(i64, left, middle))  # the right run's element goes first: fewer of the left
        active = s.compare("LT", i64, low, high)
        more = s.and_(i1, active, s.not_(i1, behind))
        less = s.and_(i1, active, behind)
        return s.select(more, s.add(i64, middle, number(1)), low), s.select(less, middle, high)  # type: ignore

    low = s.max(i64, number(0), s.sub(i64, j, rights))
    high = s.min(i64, j, lefts)
    taken = em.loop(run.bit_length(), [low, high], halve, [i64, i64])[0]
    of_left, of_right = s.add(i64, left, taken), s.add(i64, right, s.sub(i64, j, taken))
    has_left = s.compare("LT", i64, taken, lefts)
    has_right = s.compare("LT", i64, s.sub(i64, j, taken), rights)
    right_first = s.and_(i1, has_right, before(of_right, of_left))
    chosen = s.select(s.and_(i1, has_left, s.not_(i1, right_first)), of_left, of_right)  # type: ignore[arg-type]
    for i, value in enumerate(op.results):
        em.remember(value, index, read(i, chosen))
    return em.value(op.results[k], index)


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


@samples("merge_runs")
def _merge_samples(name: str) -> Iterable[Sample]:
    for shape, axis, run in (((8,), 0, 2), ((3, 13), 1, 4), ((13, 3), 0, 8), ((2, 5), 1, 8), ((4, 7), 1, 1)):
        keys = data(i32, shape, name) % 5
        for at in range(0, shape[axis], run):
            part = (slice(None),) * axis + (slice(at, at + run),)
            keys[part] = np.sort(keys[part], axis)
        attrs = {"dimension": axis, "run": run}
        body = compare_body("LT", (i32, f32))
        yield Sample(name, f"{list(shape)}{axis}-{run}", (keys, data(f32, shape, 2)), attrs, regions=(body,))

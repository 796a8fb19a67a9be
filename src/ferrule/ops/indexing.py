"""gather and scatter: reads and writes at computed indices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ferrule.ir import GatherDims, Op, ScatterDims, Tensor, Type
from ferrule.ir.types import bf16, c64, f32, f64, i1, i8, i32
from ferrule.ops import numerics as n
from ferrule.ops.bodies import monoid, returned_argument, starts_with_identity, vectorized
from ferrule.ops.checks import attr, axes, expect, operand, operands, per_axis, regions
from ferrule.ops.definition import Dims, Factors, Run, alike, define, element, factors
from ferrule.ops.reduction import apply_in_rounds
from ferrule.ops.samples import Sample, data, samples, scalar_body, second_body

if TYPE_CHECKING:
    from ferrule.codegen.emitter import Emitter, Key, Lanes
    from ferrule.codegen.index import Component

Arrays = Sequence[np.ndarray]


def _batch_shape(op: Op, indices: Tensor, vector_dim: int, length: int) -> tuple[int, ...]:
    """The indices' shape without the dimension that holds an index vector."""
    expect(op, indices.dtype.is_int, f"the indices are {indices}, not integers")
    expect(op, 0 <= vector_dim <= indices.rank, f"index_vector_dim = {vector_dim} of {indices}")
    found = indices.shape[vector_dim] if vector_dim < indices.rank else 1
    expect(op, found == length, f"index vectors of {indices} have {found} entries, the map has {length}")
    return tuple(s for i, s in enumerate(indices.shape) if i != vector_dim)


def _infer_gather(op: Op) -> Sequence[Type]:
    t, indices = operands(op, 2)
    dims: GatherDims = attr(op, "dimension_numbers")
    sizes = per_axis(op, "slice_sizes", t.rank)
    batch = list(_batch_shape(op, indices, dims.index_vector_dim, len(dims.start_index_map)))
    axes(op, "start_index_map", dims.start_index_map, t.rank)
    gone = axes(op, "collapsed_slice_dims + operand_batching_dims",
                (*dims.collapsed_slice_dims, *dims.operand_batching_dims), t.rank)  # fmt: skip
    expect(op, all(0 <= s <= d for s, d in zip(sizes, t.shape, strict=True)), f"slice_sizes = {sizes} exceed {t}")
    expect(op, all(sizes[d] <= 1 for d in gone), f"slice_sizes = {sizes} must be 1 in the dimensions {gone}")
    window = [s for d, s in enumerate(sizes) if d not in gone]
    expect(op, len(window) == len(dims.offset_dims), f"offset_dims = {dims.offset_dims} for slices {window}")
    rank = len(batch) + len(window)
    axes(op, "offset_dims", dims.offset_dims, rank)
    shape = [window.pop(0) if d in dims.offset_dims else batch.pop(0) for d in range(rank)]
    return [Tensor(tuple(shape), t.dtype)]


def index_vectors(indices: np.ndarray, vector_dim: int) -> np.ndarray:
    """Index vectors along the last dimension, as int64 (values beyond its range become its largest)."""
    wide = n.widen(indices)
    if wide.dtype == np.uint64:
        wide = np.minimum(wide, np.uint64(np.iinfo(np.int64).max))
    wide = wide.astype(np.int64)
    return np.moveaxis(wide, vector_dim, -1) if vector_dim < wide.ndim else wide[..., None]


def _along(values: np.ndarray, places: Sequence[int], rank: int) -> np.ndarray:
    """`values` with its dimensions at `places` of `rank` dimensions, ready to broadcast."""
    shape = [1] * rank
    for place, size in zip(places, values.shape, strict=True):
        shape[place] = size
    return values.reshape(shape)


def _batch_places(rank: int, window_dims: Sequence[int]) -> list[int]:
    return [d for d in range(rank) if d not in window_dims]


def _gather(op: Op, xs: Arrays, run: Run) -> Arrays:
    x, dims, sizes = xs[0], attr(op, "dimension_numbers"), op.attrs["slice_sizes"]
    vectors = index_vectors(xs[1], dims.index_vector_dim)
    batch = vectors.shape[:-1]
    rank = len(batch) + len(dims.offset_dims)
    places = _batch_places(rank, dims.offset_dims)
    gone = (*dims.collapsed_slice_dims, *dims.operand_batching_dims)
    offsets = iter(dims.offset_dims)
    index = []
    for d in range(x.ndim):
        at: np.ndarray = np.zeros((1,) * rank, np.int64)
        if d in dims.start_index_map:
            start = vectors[..., dims.start_index_map.index(d)]
            at = at + _along(np.clip(start, 0, x.shape[d] - sizes[d]), places, rank)
        if d in dims.operand_batching_dims:
            at = at + _batch_coordinate(dims, dims.operand_batching_dims.index(d), batch, places, rank,
                                        dims.start_indices_batching_dims)  # fmt: skip
        if d not in gone:
            at = at + _along(np.arange(sizes[d]), [next(offsets)], rank)
        index.append(at)
    shape = op.results[0].shape
    if not index:
        return [np.broadcast_to(x.reshape((1,) * rank), shape)]
    if 0 in shape:
        return [np.empty(shape, x.dtype)]
    return [np.broadcast_to(x[tuple(index)], shape)]


def _batch_coordinate(
    dims: GatherDims | ScatterDims,
    which: int,
    batch: tuple[int, ...],
    places: list[int],
    rank: int,
    index_dims: Sequence[int],
) -> np.ndarray:
    """The coordinate of a batching dimension of the indices, as it runs over the result."""
    d = index_dims[which]
    d -= d > dims.index_vector_dim
    return _along(np.arange(batch[d]), [places[d]], rank)


# ---- scatter -----------------------------------------------------------------------------------------------------


def _scatter_parts(op: Op, items: Sequence[Any]) -> tuple[Sequence[Any], Any, Sequence[Any]]:
    count = (len(items) - 1) // 2
    return items[:count], items[count], items[count + 1 :]


def _infer_scatter(op: Op) -> Sequence[Type]:
    types = operands(op)
    expect(
        op, len(types) >= 3 and len(types) % 2 == 1, f"takes N inputs, indices, N updates; got {len(types)} operands"
    )
    inputs, indices, updates = _scatter_parts(op, types)
    dims: ScatterDims = attr(op, "scatter_dimension_numbers")
    t: Tensor = inputs[0]
    batch = list(
        _batch_shape(op, operand(op, len(inputs)), dims.index_vector_dim, len(dims.scatter_dims_to_operand_dims))
    )
    axes(op, "scatter_dims_to_operand_dims", dims.scatter_dims_to_operand_dims, t.rank)
    gone = axes(op, "inserted_window_dims + input_batching_dims",
                (*dims.inserted_window_dims, *dims.input_batching_dims), t.rank)  # fmt: skip
    kept = [d for d in range(t.rank) if d not in gone]
    expect(op, len(kept) == len(dims.update_window_dims),
           f"update_window_dims = {dims.update_window_dims} for the dimensions {kept} of {t}")  # fmt: skip
    for u, i in zip(updates, inputs, strict=True):
        expect(op, i.shape == t.shape, f"the inputs differ in shape: {i} and {t}")
        expect(op, u.rank == len(batch) + len(kept), f"the updates {u} do not fit {t} and {indices}")
        places = _batch_places(u.rank, dims.update_window_dims)
        expect(op, [u.shape[d] for d in places] == batch, f"the updates {u} do not fit the indices {indices}")
        for w, d in zip(dims.update_window_dims, kept, strict=True):
            expect(op, u.shape[w] <= t.shape[d], f"dimension {w} of the updates {u} exceeds dimension {d} of {t}")
    (body,) = regions(op, 1)
    expect(op, len(body.args) == 2 * len(inputs) and len(body.results) == len(inputs), "the region does not fit")
    return [Tensor(t.shape, r.type.dtype) for r in body.results]  # type: ignore[union-attr]


def _scatter(op: Op, xs: Arrays, run: Run) -> Arrays:
    inputs, indices, updates = _scatter_parts(op, xs)
    dims: ScatterDims = op.attrs["scatter_dimension_numbers"]
    shape, update_shape = inputs[0].shape, updates[0].shape
    body = op.regions[0]
    types = [r.type.dtype for r in body.results]  # type: ignore[union-attr]
    outs = [n.convert(x, d).reshape(-1).copy() for x, d in zip(inputs, types, strict=True)]
    news = [n.convert(u, d) for u, d in zip(updates, types, strict=True)]
    if 0 in update_shape or 0 in shape:
        return [o.reshape(shape) for o in outs]
    target, inside = targets(dims, shape, update_shape, index_vectors(indices, dims.index_vector_dim))
    keep = inside.reshape(-1)
    where, values = target.reshape(-1)[keep], [u.reshape(-1)[keep] for u in news]
    if len(outs) == 1 and returned_argument(body) == 1:
        outs[0][where] = values[0]
    elif len(outs) == 1 and (ufunc := _at(monoid(body), outs[0])) is not None:
        with n.silent():
            ufunc.at(outs[0], where, values[0])
    else:
        apply_in_rounds(outs, where, values, vectorized(body, run))
    return [o.reshape(shape) for o in outs]


def _at(kind: str | None, x: np.ndarray) -> np.ufunc | None:
    """The ufunc whose `.at` means the body exactly; narrow types and NaN rules go the general way."""
    d = n.dtype_of(x)
    if kind not in ("add", "multiply") or d.kind == "bool" or d.bits < 32 and d.is_float or d.bits < 8:
        return None
    return np.add if kind == "add" else np.multiply


def targets(
    dims: ScatterDims, shape: tuple[int, ...], update_shape: tuple[int, ...], vectors: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each update element its flat place, and whether its whole window lies inside."""
    rank = len(update_shape)
    places = _batch_places(rank, dims.update_window_dims)
    gone = (*dims.inserted_window_dims, *dims.input_batching_dims)
    windows = iter(dims.update_window_dims)
    flat: np.ndarray = np.zeros((1,) * rank, np.int64)
    inside: np.ndarray = np.ones((1,) * rank, bool)
    for d, size in enumerate(shape):
        at: np.ndarray = np.zeros((1,) * rank, np.int64)
        place = next(windows) if d not in gone else -1
        extent = update_shape[place] if place >= 0 else 1
        if d in dims.scatter_dims_to_operand_dims:
            start = _along(vectors[..., dims.scatter_dims_to_operand_dims.index(d)], places, rank)
            fits = (start >= 0) & (start <= size - extent)
            inside = inside & fits
            at = at + np.where(fits, start, 0)
        if d in dims.input_batching_dims:
            at = at + _batch_coordinate(dims, dims.input_batching_dims.index(d), vectors.shape[:-1], places, rank,
                                        dims.scatter_indices_batching_dims)  # fmt: skip
        if place >= 0:
            at = at + _along(np.arange(extent), [place], rank)
        flat = flat * size + at
    return np.broadcast_to(flat, update_shape), np.broadcast_to(inside, update_shape)


define("gather", infer=_infer_gather, evaluate=_gather, flops=0)
define("scatter", infer=_infer_scatter, evaluate=_scatter)


# Factors of gathers and scatters: below `_PLACES` dimensions of the operand, from there on those of the indices.
_PLACES = 100


def _places(dims: GatherDims | ScatterDims, rank: int, batching: Sequence[int], own: Sequence[int]) -> Dims:
    """The factors of the indices: dimensions that the operand has, too, places, and None for a vector's elements."""
    shared = dict(zip(own, batching, strict=True))
    return tuple(None if d == dims.index_vector_dim else shared.get(d, _PLACES + d) for d in range(rank))


def _spread(dims: Dims, gone: Sequence[int], places: Dims, vector: int, windows: Sequence[int], rank: int) -> Dims:
    """The factors of a gather's result or of a scatter's updates: dimensions of windows, and places between them."""
    inner = iter([f for d, f in enumerate(dims) if d not in gone])
    outer = iter([f for d, f in enumerate(places) if d != vector])
    return tuple(next(inner) if d in windows else next(outer) for d in range(rank))


@factors("gather")
def _gather_factors(op: Op) -> Factors:
    dims: GatherDims = op.attrs["dimension_numbers"]
    shape, sizes = op.operands[0].shape, tuple(op.attrs["slice_sizes"])
    gone = (*dims.collapsed_slice_dims, *dims.operand_batching_dims)
    full = [d for d, size in enumerate(shape) if sizes[d] == size and d not in gone]
    picked = {d: (1, i) for i, d in enumerate(dims.start_index_map) if d in dims.collapsed_slice_dims}
    known = (*full, *picked, *dims.operand_batching_dims)
    operand = alike(len(shape), [d for d in range(len(shape)) if d not in known])
    places = _places(dims, len(op.operands[1].shape), dims.operand_batching_dims, dims.start_indices_batching_dims)
    out = _spread(operand, gone, places, dims.index_vector_dim, dims.offset_dims, len(op.result.shape))
    return Factors([operand, places], [out], dict.fromkeys(picked, "add"), attrs=lambda parts, _: {
        "slice_sizes": tuple(parts[0][d] if d in full else size for d, size in enumerate(sizes))
    }, picked=picked)  # fmt: skip


@factors("scatter")
def _scatter_factors(op: Op) -> Factors:
    """Places are split where the operand is all identity: what the devices have scattered is combined."""
    count = len(op.results)
    dims: ScatterDims = op.attrs["scatter_dimension_numbers"]
    shape, updates = op.operands[0].shape, op.operands[count + 1].shape
    gone = (*dims.inserted_window_dims, *dims.input_batching_dims)
    sizes = dict(zip([d for d in range(len(shape)) if d not in gone], (updates[d] for d in dims.update_window_dims),
                     strict=True))  # fmt: skip
    picked = {d: (count, i) for i, d in enumerate(dims.scatter_dims_to_operand_dims) if d in dims.inserted_window_dims}
    known = [d for d in range(len(shape)) if sizes.get(d) == shape[d] or d in (*picked, *dims.input_batching_dims)]
    operand = alike(len(shape), [d for d in range(len(shape)) if d not in known])
    places = _places(dims, len(op.operands[count].shape), dims.input_batching_dims,
                     dims.scatter_indices_batching_dims)  # fmt: skip
    sums: dict[int, str] = {}
    if count == 1 and starts_with_identity(op.regions[0], op.operands[0]):
        sums = {f: str(monoid(op.regions[0])) for f in places if f is not None and f >= _PLACES}
    else:
        places = tuple(f if f is not None and f < _PLACES else None for f in places)
    moved = _spread(operand, gone, places, dims.index_vector_dim, dims.update_window_dims, len(updates))
    return Factors([*[operand] * count, places, *[moved] * count], [operand] * count, sums, picked=picked)


# ---- elements ----------------------------------------------------------------------------------------------------


@element("gather")
def _gather_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    dims: GatherDims = op.attrs["dimension_numbers"]
    shape, sizes = op.operands[0].shape, op.attrs["slice_sizes"]
    batch = [c for d, c in enumerate(index) if d not in dims.offset_dims]
    offsets = iter(index[d] for d in dims.offset_dims)
    place: list[Component] = []
    for d, size in enumerate(shape):
        at: Component = em.ix.zero
        if d in dims.start_index_map:
            row = list(batch)
            if dims.index_vector_dim < len(op.operands[1].shape):
                row.insert(dims.index_vector_dim, em.ix.number(dims.start_index_map.index(d)))
            at = em.index_of(op, 1, row, 0, size - sizes[d])
        if d in dims.operand_batching_dims:
            which = dims.start_indices_batching_dims[dims.operand_batching_dims.index(d)]
            at = em.ix.plus(batch[which - (which > dims.index_vector_dim)], at)
        if d not in dims.collapsed_slice_dims and d not in dims.operand_batching_dims:
            at = em.ix.plus(next(offsets), at)
        place.append(at)
    return em.operand(op, 0, place)


# ---- samples -----------------------------------------------------------------------------------------------------

_INDEXED = (i1, i8, i32, bf16, f32, f64, c64)


@samples("gather")
def _gather_samples(name: str) -> Iterable[Sample]:
    rows = GatherDims((1,), (0,), (), (), (0,), 1)
    points = GatherDims((), (0, 1), (), (), (0, 1), 1)
    slices = GatherDims((1, 2), (), (), (), (1, 0), 1)
    batched = GatherDims((2,), (1,), (0,), (0,), (1,), 2)
    first = GatherDims((0,), (0,), (), (), (0,), 0)
    cases: tuple[tuple[str, GatherDims, tuple[int, ...], np.ndarray], ...] = (
        ("rows", rows, (1, 5), np.array([[1], [-1], [6], [99], [0]])),
        ("points", points, (1, 1), np.array([[1, 2], [-3, 9], [6, 4]])),
        ("slices", slices, (3, 2), np.array([[1, 2], [-3, 9], [4, 6]])),
        ("batched", batched, (1, 1, 1), np.array([[[1], [2]], [[0], [9]], [[-1], [3]]] + [[[0], [1]]] * 4)),
        ("vector-first", first, (1, 5), np.array([[1, 2, 3, 99]])),
        ("none", rows, (1, 5), np.zeros((0, 1), np.int64)),
    )
    for d in _INDEXED:
        for label, dims, sizes, indices in cases:
            for kind in (np.int32, np.int64) if d == f32 else (np.int32,):
                shape = (7, 5, 1) if label == "batched" else (7, 5)
                attrs = {"dimension_numbers": dims, "slice_sizes": sizes, "indices_are_sorted": False}
                yield Sample(name, f"{label}-{d}-{np.dtype(kind)}", (data(d, shape, name), indices.astype(kind)), attrs)


@samples("scatter")
def _scatter_samples(name: str) -> Iterable[Sample]:
    rows = ScatterDims((1,), (0,), (), (), (0,), 1)
    points = ScatterDims((), (0, 1), (), (), (0, 1), 1)
    slices = ScatterDims((1, 2), (), (), (), (1, 0), 1)
    batched = ScatterDims((2,), (1,), (0,), (0,), (1,), 2)
    cases = (
        ("rows", rows, (7, 5), (5, 5), np.array([[1], [-1], [6], [99], [1]])),
        ("points", points, (7, 5), (4,), np.array([[1, 2], [-3, 9], [6, 4], [1, 2]])),
        ("slices", slices, (7, 5), (3, 3, 2), np.array([[1, 2], [3, 5], [1, 3]])),
        ("batched", batched, (3, 5, 1), (3, 2, 1), np.array([[[1], [2]], [[0], [9]], [[-1], [3]]])),
        ("none", rows, (7, 5), (0, 5), np.zeros((0, 1), np.int64)),
    )
    for d in _INDEXED:
        for label, dims, shape, update, indices in cases:
            for kind in ("or",) if d == i1 else ("add", "multiply", "maximum", "minimum", "replace"):
                if d.is_complex and kind in ("maximum", "minimum"):
                    continue
                if kind == "replace":  # which of two writes stays is not promised
                    _, keep = np.unique(indices.reshape(-1, indices.shape[-1]), axis=0, return_index=True)
                    if label in ("slices", "batched") or len(keep) != len(indices):
                        continue
                body = second_body(d) if kind == "replace" else scalar_body(kind, d)
                attrs = {"scatter_dimension_numbers": dims, "indices_are_sorted": False, "unique_indices": False}
                arrays = (data(d, shape, name), indices.astype(np.int32), data(d, update, "update"))
                spread = 8.0 if d.is_float or d.is_complex else 0.0
                yield Sample(name, f"{label}-{kind}-{d}", arrays, attrs, regions=(body,), spread=spread)
    for d in (f32, i32):
        attrs = {"scatter_dimension_numbers": rows, "indices_are_sorted": True, "unique_indices": True}
        arrays = (data(d, (7, 5), name), np.array([[0], [2], [6]], np.int32), data(d, (3, 5), "update"))
        yield Sample(name, f"unique-replace-{d}", arrays, attrs, regions=(second_body(d),))

"""A few places that are known are slices side by side: rules of simplify.

`m[..., [0, 2, 1], [1, 1, 0]]`, as in products of quaternions or the six numbers of a symmetric matrix, looks up in a
table where each element lies, and its gradient where each is added. As parts of a concatenation they are computed like
any others: rows of it, which are turned into columns at the end, and only where somebody wants those.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np

from ferrule.ir import Block, GatherDims, Op, ScatterDims, Tensor, Value, tensor
from ferrule.ops.bodies import monoid

# More places are a table's.
MOST = 16
# Fewer elements are not worth so many ops.
LEAST = 4096


def of_gather(out: Block, op: Op, source: Value, indices: np.ndarray) -> Value | None:
    """The gather as a concatenation; None where places are many, or those of whole rows in memory."""
    dims: GatherDims = op.attrs["dimension_numbers"]
    shape, sizes = op.result.shape, tuple(op.attrs["slice_sizes"])
    rank = len(shape) - len(dims.offset_dims)
    kept = shape[: len(shape) - rank]
    if dims.operand_batching_dims or dims.offset_dims != tuple(range(len(kept))) or prod(shape) < LEAST:
        return None
    if not rank or not 1 < prod(shape[len(kept) :]) <= MOST:
        return None
    places = _places(indices, dims.index_vector_dim, dims.start_index_map, source.shape, sizes, clamped=True)
    parts = [_slice(out, op, source, place, sizes, kept) for place in places]
    return _columns(out, op, parts, kept, shape[len(kept) :])


def of_scatter(out: Block, op: Op, target: Value, filled: bool, indices: np.ndarray, update: Value) -> Value | None:
    """The scatter as a concatenation of all places, if these are few; it sets or adds up one element at each.

    `filled`: is the target a constant of equal elements?
    """
    dims: ScatterDims = op.attrs["scatter_dimension_numbers"]
    rank, shape = len(update.shape) - len(dims.update_window_dims), target.shape
    kept = update.shape[: len(update.shape) - rank]
    scattered = tuple(d for d in range(len(shape)) if d in dims.inserted_window_dims)
    last = scattered == tuple(range(len(kept), len(shape))) and set(scattered) == set(dims.scatter_dims_to_operand_dims)
    if dims.input_batching_dims or not last or not scattered or kept != shape[: len(kept)]:
        return None
    if dims.update_window_dims != tuple(range(len(kept))) or tensor(target).size < LEAST or not rank:
        return None
    body = op.regions[0]
    adds = monoid(body) == "add"
    if not adds and (body.ops or body.results != body.args[1:]) or prod(shape[d] for d in scattered) > MOST:
        return None
    ones = tuple(1 if d in scattered else size for d, size in enumerate(shape))
    if not 1 < prod(update.shape[len(kept) :]) <= MOST:
        return None
    places = _places(indices, dims.index_vector_dim, dims.scatter_dims_to_operand_dims, shape, ones, clamped=False)
    # Of an array that is there already a few columns are written in place.
    if not filled and 2 * len(set(places)) < prod(shape[d] for d in scattered):
        return None
    row = Tensor((1, *kept), target.dtype)
    written = {at[len(kept) :] for at in places}
    parts: list[Value] = []
    for place in product(*(range(shape[d]) for d in scattered)):
        terms = (
            [] if not adds and place in written else [_slice(out, op, target, (*[0] * len(kept), *place), ones, kept)]
        )
        for number, at in enumerate(places):
            if at[len(kept) :] == place:
                where = np.unravel_index(number, update.shape[len(kept) :])
                sizes = (*kept, *[1] * rank)
                terms.append(_slice(out, op, update, (*[0] * len(kept), *map(int, where)), sizes, kept))
        total = terms[0] if adds else terms[-1]
        for term in terms[1:] if adds else ():
            total = out.add("add", [total, term], [row], {}, (), op.loc).result
        parts.append(total)
    return _columns(out, op, parts, kept, tuple(shape[d] for d in scattered))


def _places(
    table: np.ndarray,
    vector_dim: int,
    mapped: Sequence[int],
    shape: Sequence[int],
    sizes: Sequence[int],
    clamped: bool,
) -> list[tuple[int, ...]]:
    """Where each slice of these sizes begins."""
    if vector_dim == table.ndim:
        table = table[..., None]
    found = []
    for numbers in np.moveaxis(table, vector_dim, -1).reshape(-1, table.shape[vector_dim]):
        place = [0] * len(shape)
        for d, number in zip(mapped, numbers, strict=True):
            place[d] = min(max(int(number), 0), shape[d] - sizes[d]) if clamped else int(number)
        found.append(tuple(place))
    return found


def _slice(out: Block, op: Op, source: Value, low: Sequence[int], sizes: Sequence[int], kept: Sequence[int]) -> Value:
    """A part as one row."""
    high = tuple(start + size for start, size in zip(low, sizes, strict=True))
    attrs = {"start_indices": tuple(low), "limit_indices": high, "strides": (1,) * len(low)}
    part = out.add("slice", [source], [Tensor(tuple(sizes), tensor(source).dtype)], attrs, (), op.loc).result
    return out.add("reshape", [part], [Tensor((1, *kept), part.dtype)], {}, (), op.loc).result


def _columns(out: Block, op: Op, rows: list[Value], kept: Sequence[int], others: Sequence[int]) -> Value:
    dtype, rank = op.result.dtype, len(others)
    joined = Tensor((len(rows), *kept), dtype)
    found = out.add("concatenate", rows, [joined], {"dimension": 0}, (), op.loc).result
    found = out.add("reshape", [found], [Tensor((*others, *kept), dtype)], {}, (), op.loc).result
    order = (*range(rank, rank + len(kept)), *range(rank))
    return out.add("transpose", [found], [op.result.type], {"permutation": order}, (), op.loc).result

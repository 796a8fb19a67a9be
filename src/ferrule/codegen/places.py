"""Where a scatter writes, the place of an element of its updates and whether that is inside the result, and what."""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.codegen.emitter import Emitter, Lanes
from ferrule.codegen.index import Component, Cond
from ferrule.ir import Op, ScatterDims
from ferrule.ops.bodies import monoid


def place_of(
    em: Emitter, op: Op, which: int, whole: Sequence[int], shape: Sequence[int], at: Sequence[Component]
) -> tuple[list[Component], Cond]:
    """Where element `at` of updates of this shape goes in the result, which has the shape `whole`, and whether its
    whole window is inside. Operand `which` is the indices."""
    dims: ScatterDims = op.attrs["scatter_dimension_numbers"]
    indices = op.operands[which]
    gone = (*dims.inserted_window_dims, *dims.input_batching_dims)
    kept = [d for d in range(len(whole)) if d not in gone]
    window_of = dict(zip(kept, dims.update_window_dims, strict=True))  # result dimension → update dimension
    index = at if shape else ()
    batch = [c for d, c in enumerate(index) if d not in dims.update_window_dims]
    inside: Cond = True
    place: list[Component] = []
    for d, size in enumerate(whole):
        spot: Component = em.ix.zero
        extent = shape[window_of[d]] if d in window_of else 1
        if d in dims.scatter_dims_to_operand_dims:
            row = list(batch)
            if dims.index_vector_dim < len(indices.shape):
                row.insert(dims.index_vector_dim, em.ix.number(dims.scatter_dims_to_operand_dims.index(d)))
            start = em.integer(op, which, row)
            inside = em.ix.both(inside, em.ix.inside(start, 0, size - extent + 1))
            spot = em.ix.within(start, 0, size - extent + 1)
        if d in dims.input_batching_dims:
            along = dims.scatter_indices_batching_dims[dims.input_batching_dims.index(d)]
            spot = em.ix.plus(batch[along - (along > dims.index_vector_dim)], spot)
        if d in window_of:
            spot = em.ix.plus(index[window_of[d]], spot)
        place.append(spot)
    return place, inside


def combined(em: Emitter, op: Op, old: Sequence[Lanes], new: Sequence[Lanes]) -> list[Lanes]:
    """What stands there after an update: of each result what stood there, then of each what comes."""
    kind = monoid(op.regions[0])
    if kind in ("maximum", "minimum") and op.results[0].dtype.is_float:
        return [em.s.extreme(old[0], new[0], kind == "maximum")]
    return em.inline(op.regions[0], [*old, *new])

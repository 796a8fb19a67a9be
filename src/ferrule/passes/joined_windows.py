"""Neighbouring dimensions that a scatter's windows cover whole are joined: a rule of simplify.

The loops of an update go over the dimensions of its windows. Those of `s.at[1, 1].multiply(-1)` for a state of many
dimensions of two elements would be as many loops of two iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ferrule.ir import Block, Op, Tensor, Value


def of_scatter(out: Block, op: Op, operands: Sequence[Value]) -> Value | None:
    """The scatter with fewer dimensions, between reshapes; None where there is nothing to join, or several results."""
    if len(operands) != 3:
        return None
    target, indices, update = operands
    dims = op.attrs["scatter_dimension_numbers"]
    bound = {*dims.inserted_window_dims, *dims.input_batching_dims}
    window = dict(zip((d for d in range(len(target.shape)) if d not in bound), dims.update_window_dims, strict=True))

    def joins(d: int) -> bool:
        """Is dimension d one with that before it?"""
        return all(
            e in window and e not in dims.scatter_dims_to_operand_dims and update.shape[window[e]] == target.shape[e]
            for e in (d - 1, d)
        ) and (window[d] == window[d - 1] + 1)

    kept = [d for d in range(len(target.shape)) if not (d and joins(d))]
    if len(kept) == len(target.shape):
        return None
    gone = {window[d] for d in range(len(target.shape)) if d not in kept}
    places = [d for d in range(len(update.shape)) if d not in gone]  # of the update
    new, moved = ({d: i for i, d in enumerate(group)} for group in (kept, places))
    joined = replace(
        dims,
        update_window_dims=tuple(moved[d] for d in dims.update_window_dims if d in moved),
        inserted_window_dims=tuple(new[d] for d in dims.inserted_window_dims),
        input_batching_dims=tuple(new[d] for d in dims.input_batching_dims),
        scatter_dims_to_operand_dims=tuple(new[d] for d in dims.scatter_dims_to_operand_dims),
    )
    attrs = op.attrs | {"scatter_dimension_numbers": joined}
    reads = [_reshaped(out, op, target, kept), indices, _reshaped(out, op, update, places)]
    found = out.add("scatter", reads, [reads[0].type], attrs, op.regions, op.loc).result
    return out.add("reshape", [found], [op.result.type], {}, (), op.loc).result


def _reshaped(out: Block, op: Op, value: Value, kept: Sequence[int]) -> Value:
    """The value with each dimension that is not kept joined to the one before it."""
    ends = [*kept[1:], len(value.shape)]
    shape = tuple(prod(value.shape[a:b]) for a, b in zip(kept, ends, strict=True))
    return out.add("reshape", [value], [Tensor(shape, value.dtype)], {}, (), op.loc).result

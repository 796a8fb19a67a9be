"""Products of groups of rows with a matrix each (`jax.lax.ragged_dot`), which JAX writes as one large product.

Each group is the rows from its start to its end, two numbers known at run time. JAX repeats the rows for each group,
puts zeros for the rows of the others, and multiplies all of it: as many times the work as there are groups. The call
`gemm.ragged` (native/gemm_ragged.cc) multiplies each row once. Two forms are known:

    rows     sum over g and k of where(start[g] <= m < end[g], x[m, k], 0) * w[g, k, n]
    sums     for each g the sum over m of where(…, x[m, i], 0) * where(…, y[m, j], 0): the gradient of w
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ferrule.ir import Block, DotDims, Op, Value, splat
from ferrule.ir import types as t

# Multiplications of all groups together up to which the product stays as it is.
SMALL = 1 << 17
FLOATS = (t.f32, t.f64, t.bf16, t.f16)
# Groups of short floats from which it pays to do without such instructions, which are several times as fast.
FEWEST_NARROW = 16


@dataclass
class Masked:
    """where(start[g] <= m < end[g], x, 0) along three dimensions, which x has but for that of the groups."""

    x: Value
    start: Value
    end: Value
    group: int
    row: int
    other: int
    strides: tuple[int, int]  # of x, along `row` and `other`


def ragged_dot(out: Block, op: Op, operands: Sequence[Value], multiplies_bf16: bool = False) -> Value | None:
    """The call for a product of groups of rows; None where it is none. `multiplies_bf16`: a library does so, with
    instructions that the own loops have not."""
    dims: DotDims = op.attrs["dot_dimension_numbers"]
    lhs, rhs = operands
    if any(v.dtype != lhs.dtype or len(v.shape) != 3 for v in operands):
        return None
    if lhs.dtype not in FLOATS or op.result.dtype not in ((lhs.dtype,) if lhs.dtype == t.f64 else (lhs.dtype, t.f32)):
        return None
    least = FEWEST_NARROW if lhs.dtype.itemsize == 2 and multiplies_bf16 else 2
    if (a := _masked(lhs)) is None or lhs.shape[a.group] < least:
        return None
    groups, rows, depth = (lhs.shape[d] for d in (a.group, a.row, a.other))
    left, right = dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions
    if not dims.lhs_batching_dimensions and sorted(left) == sorted((a.group, a.other)):
        pairs = dict(zip(left, right, strict=True))
        g, k = pairs[a.group], pairs[a.other]
        n = 3 - g - k
        steps = _strides(rhs.shape)
        form, sizes = "rows", (rows, rhs.shape[n], depth)
        strides = {"a_strides": a.strides, "b_strides": (steps[g], steps[k], steps[n])}
        reads = [a.x, rhs]
    elif dims.lhs_batching_dimensions == (a.group,) and tuple(left) == (a.row,):
        b = _masked(rhs)
        if b is None or (b.start, b.end) != (a.start, a.end):
            return None
        if dims.rhs_batching_dimensions != (b.group,) or tuple(right) != (b.row,):
            return None
        form, sizes = "sums", (depth, rhs.shape[b.other], rows)
        strides = {"a_strides": a.strides[::-1], "b_strides": (0, *b.strides)}
        reads = [a.x, b.x]
    else:
        return None
    if groups * prod(sizes) < SMALL:
        return None
    attrs = {"form": form, "groups": groups, "batch": 1, **dict(zip("mnk", sizes, strict=True)), **strides}
    about = {"target": "gemm.ragged", "ffi": False, "attrs": attrs}
    return out.add("library", [*reads, a.start, a.end], [op.result.type], about, (), op.loc).result


def _masked(value: Value) -> Masked | None:
    op = value.op
    if op is None or op.name != "select" or len(op.operands[0].shape) != 3:
        return None
    mask, x, zero = op.operands
    repeat, both = x.op, mask.op
    if splat(zero) != 0 or repeat is None or repeat.name != "broadcast_in_dim" or both is None or both.name != "and":
        return None
    x, places = repeat.operands[0], tuple(repeat.attrs["broadcast_dimensions"])
    if len(places) != 2 or x.shape != tuple(value.shape[d] for d in places):
        return None
    group = 3 - sum(places)
    found: dict[bool, tuple[Value, int]] = {}
    for part in both.operands:
        bound = _bound(part, group)
        if bound is None:
            return None
        found[bound[0]] = bound[1:]
    if len(found) != 2 or found[True][1] != found[False][1]:
        return None
    row = found[True][1]
    if row == group:
        return None
    other = 3 - group - row
    by_place = dict(zip(places, _strides(x.shape), strict=True))
    return Masked(x, found[True][0], found[False][0], group, row, other, (by_place[row], by_place[other]))


def _bound(test: Value, group: int) -> tuple[bool, Value, int] | None:
    """Whether `test` is `start <= place` (else it is `place < end`), the bounds of the groups, and whose place."""
    op = test.op
    if op is None or op.name != "compare":
        return None
    left, right = op.operands
    direction = op.attrs["comparison_direction"]
    if (place := _place(left)) is not None:
        direction, left, right = {"GE": "LE", "LT": "GT"}.get(direction, ""), right, left
    else:
        place = _place(right)
    bounds = left.op
    if place is None or direction not in ("LE", "GT") or bounds is None or bounds.name != "broadcast_in_dim":
        return None
    source = bounds.operands[0]
    if tuple(bounds.attrs["broadcast_dimensions"]) != (group,) or source.shape != (test.shape[group],):
        return None
    return (direction == "LE", source, place) if source.dtype == t.i32 else None


def _place(value: Value) -> int | None:
    """The dimension along which a value counts its elements."""
    op = value.op
    return op.attrs["iota_dimension"] if op is not None and op.name == "iota" else None


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    steps, step = [], 1
    for size in reversed(shape):
        steps.append(step)
        step *= size
    return tuple(reversed(steps))

"""Slices of arrays that were just put together, and arrays put together from neighbouring slices: rules of simplify.

`x[i]` of a stacked x is what was stacked, a slice of a slice one slice, a slice of a padded or broadcast array one of
what was padded or broadcast; two halves joined again are the whole, rows that are stacked and transposed are columns. A
slice of what is computed from a joined array element by element is computed from the part (both halves of
`jnp.mgrid[:n, :n] - n / 2` know their own indices).
"""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.ir import Block, Op, Tensor, Value
from ferrule.ops import OPS

# A slice goes before elementwise ops if so few operations per element are behind it in all: who reads the rest of the
# result computes the same anew.
BEFORE = 16.0
VIEWS = frozenset({"slice", "reshape", "broadcast_in_dim", "transpose"})


def of_slice(out: Block, op: Op, source: Value) -> Value | None:
    """Something simpler for a slice of `source`, or None."""
    inner = source.op
    if inner is None:
        return None
    starts, ends, steps = bounds(op)
    match inner.name:
        case "slice":
            first, _, stride = bounds(inner)
            begin = [f + a * s for f, a, s in zip(first, starts, stride, strict=True)]
            step = [a * s for a, s in zip(stride, steps, strict=True)]
            end = [b + (n - 1) * s + 1 for b, n, s in zip(begin, op.result.shape, step, strict=True)]
            return cut(out, inner.operands[0], begin, end, step, op)
        case "concatenate":
            return _of_joined(out, op, inner)
        case "pad":
            return _of_padded(out, op, inner)
        case "broadcast_in_dim":
            return _of_broadcast(out, op, inner)
    return _of_elementwise(out, op, inner)


def of_joined(out: Block, op: Op, parts: Sequence[Value]) -> Value | None:
    """A concatenation with fewer parts: those that are neighbouring slices of one array are one slice."""
    axis, found = op.attrs["dimension"], list[Value]()
    for part in parts:
        if found and (both := _neighbours(out, found[-1], part, axis, op)) is not None:
            found[-1] = both
        else:
            found.append(part)
    if len(found) == len(parts):
        return None
    return found[0] if len(found) == 1 else out.add("concatenate", found, [op.result.type], op.attrs, (), op.loc).result


def transposed(out: Block, op: Op, joined: Op) -> Value | None:
    """A transposed concatenation as one along another dimension, where each part alone keeps its order in memory:
    columns that were stacked as rows are joined as columns."""
    order = op.attrs["permutation"]
    for part in joined.operands:
        long = [d for d in order if part.shape[d] != 1]
        if long != sorted(long):
            return None
    types = [Tensor(tuple(v.shape[d] for d in order), v.dtype) for v in joined.operands]
    parts = [out.add("reshape", [v], [t], {}, (), op.loc).result for v, t in zip(joined.operands, types, strict=True)]
    attrs = {"dimension": tuple(order).index(joined.attrs["dimension"])}
    return out.add("concatenate", parts, [op.result.type], attrs, (), op.loc).result


def bounds(op: Op) -> tuple[list[int], list[int], list[int]]:
    """(starts, ends, steps) of a slice, per dimension."""
    starts = list(op.attrs["start_indices"])
    return starts, list(op.attrs["limit_indices"]), list(op.attrs.get("strides") or [1] * len(starts))


def cut(out: Block, x: Value, starts: Sequence[int], ends: Sequence[int], steps: Sequence[int], like: Op) -> Value:
    """A slice with the line of `like`; `x` itself when it is the whole."""
    attrs = {"start_indices": tuple(starts), "limit_indices": tuple(ends), "strides": tuple(steps)}
    shape = tuple(-(-(e - b) // s) for b, e, s in zip(starts, ends, steps, strict=True))
    if shape == x.shape:
        return x
    return out.add("slice", [x], [Tensor(shape, x.dtype)], attrs, (), like.loc).result


def _of_joined(out: Block, op: Op, joined: Op) -> Value | None:
    """Of the parts of a concatenation only those that the slice touches."""
    starts, ends, steps = bounds(op)
    axis, at, touched, before = joined.attrs["dimension"], 0, list[Value](), 0
    for part in joined.operands:
        size = part.shape[axis]
        if at + size > starts[axis] and at < ends[axis]:
            before = before if touched else at
            touched.append(part)
        at += size
    if not touched or len(touched) == len(joined.operands):
        return None
    starts[axis], ends[axis] = starts[axis] - before, ends[axis] - before
    if len(touched) == 1:
        return cut(out, touched[0], starts, ends, steps, op)
    shape = list(joined.result.shape)
    shape[axis] = sum(p.shape[axis] for p in touched)
    whole = Tensor(tuple(shape), joined.result.dtype)
    return cut(
        out, out.add("concatenate", touched, [whole], joined.attrs, (), joined.loc).result, starts, ends, steps, op
    )


def _of_padded(out: Block, op: Op, pad: Op) -> Value | None:
    """A slice that holds nothing of the padding."""
    source = pad.operands[0]
    low = pad.attrs["edge_padding_low"]
    starts, ends, steps = bounds(op)
    if any(pad.attrs["interior_padding"]):
        return None
    begin = [s - n for s, n in zip(starts, low, strict=True)]
    end = [b + (n - 1) * s + 1 for b, n, s in zip(begin, op.result.shape, steps, strict=True)]
    if any(b < 0 or e > n for b, e, n in zip(begin, end, source.shape, strict=True)):
        return None
    return cut(out, source, begin, end, steps, op)


def _of_broadcast(out: Block, op: Op, broadcast: Op) -> Value:
    """The broadcast of a slice."""
    source, dims = broadcast.operands[0], broadcast.attrs["broadcast_dimensions"]
    starts, ends, steps = bounds(op)
    moved = [(0, 1, 1) if n == 1 else (starts[d], ends[d], steps[d]) for n, d in zip(source.shape, dims, strict=True)]
    part = cut(out, source, [m[0] for m in moved], [m[1] for m in moved], [m[2] for m in moved], op)
    return out.add("broadcast_in_dim", [part], [op.result.type], broadcast.attrs, (), op.loc).result


def _of_elementwise(out: Block, op: Op, inner: Op) -> Value | None:
    """The elementwise op of slices, where that leaves out parts of a joined array."""
    if not elementwise(inner) or not _needs_less(op, inner):
        return None
    starts, ends, steps = bounds(op)
    whole = inner.result.shape
    parts = [cut(out, v, starts, ends, steps, op) if v.shape == whole else v for v in inner.operands]
    return out.add(inner.name, parts, [op.result.type], inner.attrs, (), inner.loc).result


def elementwise(op: Op) -> bool:
    """Is each element of its one result made of the same elements of its operands?"""
    return op.name in OPS and OPS[op.name].elementwise and not op.regions and len(op.results) == 1


def _needs_less(op: Op, inner: Op) -> bool:
    """Is the slice computed from parts of a joined array, and in all from little? Shared values count as often as they
    are read, since a slice of each reader may be another one."""
    less, cost = False, 0.0
    stack = [(inner, False)]  # (op, is it joined with others before the slice?)
    while stack and cost <= BEFORE:
        top, joined = stack.pop()
        if elementwise(top):
            cost += max(1.0, OPS[top.name].flops)
        elif top.name == "concatenate":
            less = less or (not joined and _leaves_parts_out(top, op))
            joined = True
        elif top.name in VIEWS:
            cost += 1.0
        elif top.name not in ("constant", "iota") and not joined:
            return False
        else:
            continue
        stack += [(v.op, joined) for v in top.operands if v.op is not None]
    return less and cost <= BEFORE


def _leaves_parts_out(joined: Op, op: Op) -> bool:
    if joined.result.shape != op.operands[0].shape:
        return False
    starts, ends, _ = bounds(op)
    axis, at = joined.attrs["dimension"], 0
    for part in joined.operands:
        if part.shape[axis] and (at + part.shape[axis] <= starts[axis] or at >= ends[axis]):
            return True
        at += part.shape[axis]
    return False


def _neighbours(out: Block, left: Value, right: Value, axis: int, op: Op) -> Value | None:
    """One slice for two that follow each other along the axis."""
    a, b = left.op, right.op
    if a is None or b is None or a.name != "slice" or b.name != "slice" or a.operands[0] is not b.operands[0]:
        return None
    first, second = bounds(a), bounds(b)
    for d, shape in enumerate(zip(left.shape, right.shape, strict=True)):
        if first[2][d] != second[2][d] or (d != axis and (first[0][d] != second[0][d] or shape[0] != shape[1])):
            return None
    step = first[2][axis]
    if first[0][axis] + left.shape[axis] * step != second[0][axis]:
        return None
    ends = [s + (n - 1) * t + 1 for s, n, t in zip(first[0], left.shape, first[2], strict=True)]
    ends[axis] = second[0][axis] + (right.shape[axis] - 1) * step + 1
    return cut(out, a.operands[0], first[0], ends, first[2], op)

"""Running totals of few long lines on processors: each line in parts, which threads, or the lanes of vectors, share.

The totals of the parts are formed first, and a running total of those is what each part starts with. Where a step takes
long, each part has its running total before it is known what it starts with, which joins it afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ferrule.codegen.scan import HEAVY, direction
from ferrule.ir import Block, Op, Tensor, Value, rewrite, tensor
from ferrule.ops import OPS
from ferrule.ops.bodies import monoid, total_type
from ferrule.passes.device_scan import along, body_of, padded
from ferrule.passes.slices import cut
from ferrule.targets.machine import Machine

# A line is read twice, which pays from so many threads for each line on.
THREADS_PER_LINE = 2
# Parts are of whole vectors, and of at least LEAST elements; so many of them are wanted for each thread.
LEAST, VECTORS, PARTS_PER_THREAD = 1 << 14, 64, 2
# Strips of at least LEAST_STRIP elements, so many lanes for each thread, and not fewer of them.
LEAST_STRIP, LANES, FEWEST = 32, 64, 8


def parallel_running_total(out: Block, op: Op, operands: list[Value], machine: Machine) -> Sequence[Value] | None:
    """The result of a reduce_window that is a running total of few long lines; None leaves it to one kernel."""
    found = direction(op)
    if found is None or len(operands) != 2:
        return None
    axis, backward = found
    (x, init), name = operands, monoid(op.regions[0])
    length, kind = x.shape[axis], Tensor(x.shape, op.result.dtype)
    lines = kind.size // length
    if name is None or kind.dtype.is_complex or kind.dtype != x.dtype:
        return None
    if lines * THREADS_PER_LINE > machine.threads:
        return None
    most = min(PARTS_PER_THREAD * machine.threads, kind.size // LEAST) // lines
    if most < 2:
        return None
    part = -(-length // most)
    part += -part % VECTORS
    count = length // part  # of whole parts; the last total is nobody's start
    wide = total_type(kind.dtype, name)

    def widened(value: Value) -> Value:
        if value.dtype == wide:
            return value
        return out.add("convert", [value], Tensor(value.shape, wide), {}, (), op.loc).result

    init, rest = widened(init), length - count * part
    begins, ends = [0] * len(x.shape), list(x.shape)
    begins[axis], ends[axis] = (rest, length) if backward else (0, length - rest)
    split = Tensor((*x.shape[:axis], count, part, *x.shape[axis + 1 :]), x.dtype)
    parts = out.add("reshape", [cut(out, x, begins, ends, [1] * len(ends), op)], split, {}, (), op.loc).result
    sums = Tensor((*x.shape[:axis], count, *x.shape[axis + 1 :]), wide)
    body = [body_of(name, wide)]
    each = out.add("reduce", [widened(parts), init], [sums], {"dimensions": (axis + 1,)}, body, op.loc).result
    line = Tensor((*x.shape[:axis], *x.shape[axis + 1 :]), wide)
    start = out.add("broadcast_in_dim", [init], line, {"broadcast_dimensions": ()}, (), op.loc).result
    before = along(out, op, each, start, name, axis, backward)
    edges = (0 if rest else -1, 1) if backward else (1, 0 if rest else -1)
    return [along(out, op, x, padded(out, op, before, init, axis, *edges), name, axis, backward, part)]


def running_in_lanes(out: Block, op: Op, operands: list[Value], machine: Machine) -> Sequence[Value] | None:
    """The result of a reduce_window that is a running total by an operation of many steps (`lax.cumlogsumexp`), of
    lines whose elements are neighbours in memory; None leaves it to one kernel: each step waits for the one before.

    Lines are made strips, a vector's lanes go along one each, and what is before a strip joins its totals at the end.
    """
    found = direction(op)
    if found is None or len(operands) != 2 or monoid(op.regions[0]) is not None:
        return None
    axis, backward = found
    (x, init), body = operands, op.regions[0]
    length = x.shape[axis]
    lines = tensor(x).size // length
    if prod(x.shape[axis + 1 :]) > 1 or x.dtype != op.result.dtype:
        return None
    known = [OPS.get(o.name) for o in body.ops]
    if not all(o and o.elementwise for o in known) or sum(o.flops for o in known if o) < HEAVY:
        return None
    strips = max(1, min(-(-LANES * machine.threads // lines), length // LEAST_STRIP))
    if strips * lines < FEWEST:
        return None
    part = -(-length // strips)
    strips = -(-length // part)
    spare = strips * part - length

    def put(name: str, source: Value, shape: Sequence[int], **attrs: Any) -> Value:
        return out.add(name, [source], Tensor(tuple(shape), x.dtype), attrs, (), op.loc).result

    def running(value: Value, along: int) -> Value:
        shape = tuple(n if d == along else 1 for d, n in enumerate(value.shape))
        reach = shape[along] - 1
        edges = tuple(((0, reach) if backward else (reach, 0)) if d == along else (0, 0) for d in range(len(shape)))
        ones = {name: (1,) * len(shape) for name in ("window_strides", "base_dilations", "window_dilations")}
        attrs = {"window_dimensions": shape, "padding": edges, **ones}
        again = rewrite(body, lambda *_: None, {})
        return out.add("reduce_window", [value, init], value.type, attrs, [again], op.loc).result

    value = put("reshape", x, (lines, length))
    if spare:
        value = padded(out, op, value, init, 1, spare if backward else 0, 0 if backward else spare)
    value = put("reshape", value, (lines, strips, part))
    value = running(put("transpose", value, (part, lines, strips), permutation=(2, 0, 1)), 0)
    if strips > 1:
        at = 0 if backward else part - 1
        row = {"start_indices": (at, 0, 0), "limit_indices": (at + 1, lines, strips), "strides": (1, 1, 1)}
        totals = put("reshape", put("slice", value, (1, lines, strips), **row), (lines, strips))
        shift = -1 if backward else 1
        before = padded(out, op, running(totals, 1), init, 1, shift, -shift)
        before = out.add("optimization_barrier", [before], [before.type], {}, (), op.loc).result
        before = put("broadcast_in_dim", before, (part, lines, strips), broadcast_dimensions=(1, 2))
        value = _of_each(out, body, [value, before] if backward else [before, value], tensor(value))
    value = put("transpose", value, (lines, strips, part), permutation=(1, 2, 0))
    value = put("reshape", value, (lines, strips * part))
    if spare:
        begin = spare if backward else 0
        bounds = {"start_indices": (0, begin), "limit_indices": (lines, begin + length), "strides": (1, 1)}
        value = put("slice", value, (lines, length), **bounds)
    return [put("reshape", value, x.shape)]


def _of_each(out: Block, body: Block, args: Sequence[Value], type: Tensor) -> Value:
    """The elementwise operations of a body, of arrays."""
    found = dict(zip(body.args, args, strict=True))
    for op in body.ops:
        types = [Tensor(type.shape, r.dtype) for r in op.results]
        made = out.add(op.name, [found[v] for v in op.operands], types, op.attrs, (), op.loc)
        found.update(zip(op.results, made.results, strict=True))
    return found[body.results[0]]

"""Sorts and running totals on devices: chains of ops that are one kernel each.

A sort is a merge sort from the bottom up: with n elements, ⌈log₂ n⌉ kernels, each element placed by a work-item of its
own. A running total (reduce_window over all elements up to here) of few long lines is made in ⌈log₂ n⌉ steps, each of
which adds what stands 1, 2, 4, … elements before (Hillis and Steele, 1986).
"""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.ir import Block, Op, Tensor, Value, rewrite
from ferrule.ir import types as t
from ferrule.ops.bodies import monoid
from ferrule.targets.gpu import Gpu

# Lines of running totals that one work-item each goes along; fewer of them leave most of the device without work.
LINES_PER_UNIT = 256
LONG_LINE = 256


def sort(out: Block, op: Op, operands: list[Value]) -> Sequence[Value]:
    """The results of a `sort`."""
    rank = len(operands[0].shape)
    if rank == 0 or 0 in operands[0].shape:
        return operands
    dimension = int(op.attrs.get("dimension", -1)) % rank
    return _merges(out, op, operands, dimension, op.regions[0])


def top_k(out: Block, op: Op, operands: list[Value]) -> Sequence[Value]:
    """The results of a `top_k`: the first k of the whole line, sorted with the places that its elements had."""
    (x,) = operands
    k = int(op.attrs.get("k", op.results[0].shape[-1]))
    last = len(x.shape) - 1
    place = out.add("iota", [], Tensor(x.shape, t.i32), {"iota_dimension": last}, (), op.loc).result
    values = [x, place] if 0 in x.shape else _merges(out, op, [x, place], last, _greater(x.dtype))
    bounds = {
        "start_indices": (0,) * (last + 1),
        "limit_indices": (*x.shape[:-1], k),
        "strides": (1,) * (last + 1),
    }
    types = [r.type for r in op.results]
    return [out.add("slice", [v], to, bounds, (), op.loc).result for v, to in zip(values, types, strict=True)]


def _greater(dtype: t.DType) -> Block:
    """The comparator of top_k: larger first, in the total order of floats."""
    body = Block([Tensor((), d) for d in (dtype, dtype, t.i32, t.i32)])
    kind = "TOTALORDER" if dtype.is_float else "UNSIGNED" if dtype.kind == "uint" else "SIGNED"
    attrs = {"comparison_direction": "GT", "compare_type": kind}
    body.results = [body.add("compare", body.args[:2], Tensor((), t.i1), attrs).result]
    return body


def _merges(out: Block, op: Op, values: Sequence[Value], dimension: int, body: Block) -> Sequence[Value]:
    run = 1
    while run < values[0].shape[dimension]:
        outside: dict[Value, Value] = {}
        copy = rewrite(body, lambda *_: None, outside)
        attrs = {"dimension": dimension, "run": run, "is_stable": True}
        values = out.add("merge_runs", values, [v.type for v in values], attrs, [copy], op.loc).results
        run *= 2
    return values


def running_total(out: Block, op: Op, operands: list[Value], machine: Gpu) -> Sequence[Value] | None:
    """The result of a reduce_window that is a running total of few long lines; None leaves it to one kernel."""
    from ferrule.codegen.scan import direction

    found = direction(op)
    if found is None or len(operands) != 2:
        return None
    axis, backward = found
    x = operands[0]
    length, kind = x.shape[axis], Tensor(x.shape, op.result.dtype)
    lines = kind.size // length
    if length < LONG_LINE or lines >= LINES_PER_UNIT * machine.compute_units:
        return None
    step, none = 1, (0,) * len(x.shape)
    name = monoid(op.regions[0])
    # Sums of narrow floats are rounded once, at the end.
    narrow = name in ("add", "multiply") and kind.dtype.is_float and kind.dtype.bits < 32
    work = Tensor(kind.shape, t.f32) if narrow else kind
    total = _convert(out, x, work, op)
    init = _convert(out, operands[1], Tensor((), work.dtype), op)
    while step < length:
        ahead = tuple((-step if backward else step) if d == axis else 0 for d in range(len(x.shape)))
        edges = {
            "edge_padding_low": ahead,
            "edge_padding_high": tuple(-a for a in ahead),
            "interior_padding": none,
        }
        shifted = out.add("pad", [total, init], work, edges, (), op.loc).result
        pair = [total, shifted] if backward else [shifted, total]
        # `map` is a kernel of its own; mere `add`s would be fused, each doing the work of those before it twice.
        body = _body(name or "", work.dtype) if narrow else rewrite(op.regions[0], lambda *_: None, {})
        total = out.add("map", pair, work, {"dimensions": tuple(range(len(x.shape)))}, [body], op.loc).result
        step *= 2
    return [_convert(out, total, kind, op)]


def _body(name: str, dtype: t.DType) -> Block:
    body = Block([Tensor((), dtype)] * 2)
    body.results = [body.add(name, body.args, Tensor((), dtype)).result]
    return body


def _convert(out: Block, value: Value, to: Tensor, op: Op) -> Value:
    return value if value.dtype == to.dtype else out.add("convert", [value], to, {}, (), op.loc).result

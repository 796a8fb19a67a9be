"""Running totals on devices (reduce_window over all elements up to here).

Few long lines are made in three steps, all of whose kernels have work for many work-items: the total of each part of a
line, a running total of those totals (by the same rule), and one along each part, which starts with the total of what
is before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.ir import Block, Op, Tensor, Value, rewrite
from ferrule.ir import types as t
from ferrule.ops.bodies import monoid
from ferrule.targets.gpu import Gpu

# Lines that one work-item each goes along; fewer of them leave most of the device without work.
LINES_PER_UNIT = 256
LONG_LINE, LONG_ON_PROCESSOR = 256, 4096
# The elements of a part. A processor wants few long ones: it goes along each at its full speed.
PART, PART_ON_PROCESSOR, PARTS_PER_UNIT = 64, 1024, 16


def running_total(out: Block, op: Op, operands: list[Value], machine: Gpu) -> Sequence[Value] | None:
    """The result of a reduce_window that is a running total of few long lines; None leaves it to one kernel."""
    from ferrule.codegen.scan import direction

    found = direction(op)
    if found is None or len(operands) != 2:
        return None
    axis, backward = found
    x = operands[0]
    length, kind = x.shape[axis], Tensor(x.shape, op.result.dtype)
    if length < _long(machine) or kind.size // length >= LINES_PER_UNIT * machine.compute_units:
        return None
    name = monoid(op.regions[0])
    # Sums of narrow floats are rounded once, at the end.
    narrow = name in ("add", "multiply") and kind.dtype.is_float and kind.dtype.bits < 32
    work = t.f32 if narrow else kind.dtype
    x, init = _convert(out, x, work, op), _convert(out, operands[1], work, op)
    if name is None:  # parts may only be added up in order
        total = _by_doubling(out, op, x, init, axis, backward)
    else:
        total = totals(out, op, x, init, name, axis, machine, backward)
    return [_convert(out, total, kind.dtype, op)]


def _long(machine: Gpu) -> int:
    return LONG_ON_PROCESSOR if machine.kind == "cpu" else LONG_LINE


def _part(machine: Gpu, elements: int, length: int) -> int:
    """How long the parts of a line are: up to twice what is wanted, where that divides the line."""
    least = PART
    if machine.kind == "cpu":
        least = max(PART_ON_PROCESSOR, elements // (PARTS_PER_UNIT * machine.compute_units))
    return next((p for p in range(min(2 * least, length), least - 1, -1) if length % p == 0), least)


def totals(
    out: Block, op: Op, x: Value, init: Value, name: str, axis: int, machine: Gpu, backward: bool = False
) -> Value:
    """Running totals of x along a dimension by a commutative operation; `init` is its identity."""
    shape, length = x.shape, x.shape[axis]
    part = _part(machine, x.type.size, length)  # type: ignore[union-attr]
    if length < _long(machine) or part >= length:
        rest = Tensor((*shape[:axis], *shape[axis + 1 :]), x.dtype)
        start = out.add("broadcast_in_dim", [init], rest, {"broadcast_dimensions": ()}, (), op.loc).result
        return along(out, op, x, start, name, axis, backward)
    count = -(-length // part)
    if count * part > length:
        x = padded(out, op, x, init, axis, 0, count * part - length)
    split = Tensor((*shape[:axis], count, part, *shape[axis + 1 :]), x.dtype)
    x = out.add("reshape", [x], split, {}, (), op.loc).result
    sums = Tensor((*shape[:axis], count, *shape[axis + 1 :]), x.dtype)
    body = [body_of(name, x.dtype)]
    each = out.add("reduce", [x, init], [sums], {"dimensions": (axis + 1,)}, body, op.loc).result
    before = totals(out, op, each, init, name, axis, machine, backward)
    before = padded(out, op, before, init, axis, -1 if backward else 1, 1 if backward else -1)
    total = along(out, op, x, before, name, axis + 1, backward)
    joined = Tensor((*shape[:axis], count * part, *shape[axis + 1 :]), x.dtype)
    total = out.add("reshape", [total], joined, {}, (), op.loc).result
    if joined.shape == shape:
        return total
    bounds = {"start_indices": (0,) * len(shape), "limit_indices": shape, "strides": (1,) * len(shape)}
    return out.add("slice", [total], Tensor(shape, x.dtype), bounds, (), op.loc).result


def along(out: Block, op: Op, x: Value, start: Value, name: str, axis: int, backward: bool, part: int = 0) -> Value:
    """The running total of each line, or of parts of so many elements, from values of their own."""
    attrs = {"dimension": axis, "backward": backward} | ({"part": part} if part else {})
    return out.add("running_total", [x, start], x.type, attrs, [body_of(name, x.dtype)], op.loc).result


def padded(out: Block, op: Op, x: Value, init: Value, axis: int, low: int, high: int) -> Value:
    shape = tuple(n + (low + high if d == axis else 0) for d, n in enumerate(x.shape))
    edges = {
        "edge_padding_low": tuple(low if d == axis else 0 for d in range(len(shape))),
        "edge_padding_high": tuple(high if d == axis else 0 for d in range(len(shape))),
        "interior_padding": (0,) * len(shape),
    }
    return out.add("pad", [x, init], Tensor(shape, x.dtype), edges, (), op.loc).result


def _by_doubling(out: Block, op: Op, x: Value, init: Value, axis: int, backward: bool) -> Value:
    """In ⌈log₂ n⌉ steps, each of which adds what stands 1, 2, 4, … elements before (Hillis and Steele, 1986)."""
    step, total = 1, x
    while step < x.shape[axis]:
        shifted = padded(out, op, total, init, axis, *((-step, step) if backward else (step, -step)))
        pair = [total, shifted] if backward else [shifted, total]
        # `map` is a kernel of its own; mere `add`s would be fused, each doing the work of those before it twice.
        body = rewrite(op.regions[0], lambda *_: None, {})
        total = out.add("map", pair, x.type, {"dimensions": tuple(range(len(x.shape)))}, [body], op.loc).result
        step *= 2
    return total


def body_of(name: str, dtype: t.DType) -> Block:
    body = Block([Tensor((), dtype)] * 2)
    body.results = [body.add(name, body.args, Tensor((), dtype)).result]
    return body


def _convert(out: Block, value: Value, dtype: t.DType, op: Op) -> Value:
    if value.dtype == dtype:
        return value
    return out.add("convert", [value], Tensor(value.shape, dtype), {}, (), op.loc).result

"""Running totals of few long lines on processors: each line in parts, which threads share.

The totals of the parts are formed first, and a running total of those is what each part starts with.
"""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.codegen.scan import direction
from ferrule.ir import Block, Op, Tensor, Value
from ferrule.ops.bodies import monoid, total_type
from ferrule.passes.device_scan import along, body_of, padded
from ferrule.targets.machine import Machine

# A line is read twice, which pays from so many threads for each line on.
THREADS_PER_LINE = 4
# Parts are of at least so many elements; so many of them are wanted for each thread, and so many at least.
LEAST, PARTS_PER_THREAD, FEWEST = 1 << 14, 2, 8


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
    count = next((n for n in range(most, max(2, FEWEST // lines) - 1, -1) if length % n == 0), None)
    if count is None:
        return None
    wide = total_type(kind.dtype, name)
    split = Tensor((*x.shape[:axis], count, length // count, *x.shape[axis + 1 :]), x.dtype)
    parts = out.add("reshape", [x], split, {}, (), op.loc).result

    def widened(value: Value) -> Value:
        if value.dtype == wide:
            return value
        return out.add("convert", [value], Tensor(value.shape, wide), {}, (), op.loc).result

    init = widened(init)
    sums = Tensor((*x.shape[:axis], count, *x.shape[axis + 1 :]), wide)
    body = [body_of(name, wide)]
    each = out.add("reduce", [widened(parts), init], [sums], {"dimensions": (axis + 1,)}, body, op.loc).result
    rest = Tensor((*x.shape[:axis], *x.shape[axis + 1 :]), wide)
    start = out.add("broadcast_in_dim", [init], rest, {"broadcast_dimensions": ()}, (), op.loc).result
    before = along(out, op, each, start, name, axis, backward)
    before = padded(out, op, before, init, axis, -1 if backward else 1, 1 if backward else -1)
    total = along(out, op, parts, before, name, axis + 1, backward)
    return [out.add("reshape", [total], kind, {}, (), op.loc).result]

"""Count: loops whose number of iterations is known get it as the attribute `trips`.

A carried integer starts as a constant, grows by a constant in each iteration, and the condition compares it with a
constant: the form of `lax.fori_loop` and `lax.scan`. Such a loop runs without its condition; on a device nobody waits
for it. (Partial evaluation would find more; this finds what frameworks write.)
"""

from __future__ import annotations

from ferrule.ir import Block, Op, Value, splat
from ferrule.passes.simplify import has_effects

_FLIPPED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}


def count(block: Block) -> Block:
    """Returns the block, its loops marked where that is possible."""
    for op in block.walk():
        if op.name == "while" and (trips := trips_of(op)) is not None:
            op.attrs = {**op.attrs, "trips": trips}
    return block


def trips_of(loop: Op) -> int | None:
    """How often the body runs; None when that is not certain."""
    cond, body = loop.regions
    if len(cond.results) != 1 or any(has_effects(op) for op in cond.ops):
        return None
    compare = cond.results[0].op
    if compare is None or compare.name != "compare":
        return None
    direction = compare.attrs["comparison_direction"]
    counter, bound = compare.operands
    if counter not in cond.args:
        counter, bound, direction = bound, counter, _FLIPPED.get(direction, "")
    if counter not in cond.args or counter.dtype.kind not in ("int", "uint"):
        return None
    i = cond.args.index(counter)
    limit, start, step = number(bound), number(loop.operands[i]), step_of(body, i)
    if limit is None or start is None or not step or direction not in _FLIPPED:
        return None
    return _trips(start, step, limit, direction, counter)


def number(value: Value) -> int | None:
    found = splat(value) if value.shape == () else None
    return None if found is None else int(found)


def step_of(body: Block, i: int) -> int | None:
    """What the body adds to its argument i; None when it does something else with it."""
    new = body.results[i].op
    if new is None or new.name not in ("add", "subtract"):
        return None
    left, right = new.operands
    if new.name == "add" and right is body.args[i]:
        left, right = right, left
    step = number(right) if left is body.args[i] else None
    return step if step is None or new.name == "add" else -step


def _trips(start: int, step: int, limit: int, direction: str, counter: Value) -> int | None:
    if direction == "NE":
        trips, rest = divmod(limit - start, step)
        return trips if trips >= 0 and not rest else None
    if direction in ("LT", "LE") and step > 0:
        end = limit + (direction == "LE")
        trips = max(0, -((start - end) // step))
    elif direction in ("GT", "GE") and step < 0:
        end = limit - (direction == "GE")
        trips = max(0, -((end - start) // -step))
    else:  # it runs once, never, or until the counter wraps around
        return 0 if not _holds(start, limit, direction) else None
    # The last value, which ends the loop, has to be a number of the type.
    bits, signed = counter.dtype.bits, counter.dtype.kind == "int"
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return trips if low <= start + trips * step <= high else None


def _holds(a: int, b: int, direction: str) -> bool:
    return {"LT": a < b, "LE": a <= b, "GT": a > b, "GE": a >= b}[direction]

"""What softmax and masks look like in a graph, for the passes that recognize attention."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ferrule.ir import Op, Value, constant, splat
from ferrule.ir.types import i32, i64
from ferrule.passes.axes import Axis, Labels, before, moves, same, split

# Further than any key is from any row.
FOREVER = 1 << 40


def source(op: Op) -> Value | None:
    """What the op gives in another arrangement or precision, or with 0 added; a broadcast repeats it, too."""
    match op.name:
        case "reshape" | "transpose" | "broadcast_in_dim":
            return op.operands[0]
        case "convert" if op.result.dtype.is_float and op.operands[0].dtype.is_float:
            return op.operands[0]
        case "add":  # what a sum along a dimension of size 1 has become: the gradient of a reshape by broadcast
            left = [v for v in op.operands if (known := splat(v)) is None or float(known) != 0]
            return left[0] if len(left) == 1 and op.result.dtype.is_float else None
    return None


def spread(value: Value, labels: Labels, seen: set[Op], repetitions: bool = True) -> tuple[Value, Labels] | None:
    """The value before all such ops, and its labels; without `repetitions` not before something is repeated."""
    while (op := value.op) is not None and (inner := source(op)) is not None:
        if not repetitions and op.name == "broadcast_in_dim" and not moves(op):
            break
        found = before(op, labels)
        if found is None:
            return None
        seen.add(op)
        value, labels = inner, found
    return value, labels


def plain(value: Value, labels: Labels, seen: set[Op]) -> tuple[Value, Labels] | None:
    """The same, but not before something is repeated."""
    return spread(value, labels, seen, repetitions=False)


def reduced(value: Value, labels: Labels, key: Axis, kind: str, seen: set[Op]) -> tuple[Value, Labels] | None:
    """The operand of a reduction along `key` by `kind` ("add" or "maximum") from its neutral element."""
    op = value.op
    if op is None or op.name != "reduce" or len(op.results) != 1:
        return None
    body, start = op.regions[0], splat(op.operands[1])
    inner = body.results[0].op
    if len(body.ops) != 1 or inner is None or inner.name != kind or set(inner.operands) != set(body.args):
        return None
    if start is None or float(start) != (0.0 if kind == "add" else -np.inf):
        return None
    whole, dims = op.operands[0], op.attrs["dimensions"]
    if [whole.shape[d] for d in dims if whole.shape[d] != 1] != [key.size]:
        return None
    rest = iter(labels)
    seen.add(op)
    found = tuple((() if whole.shape[d] == 1 else (key,)) if d in dims else next(rest) for d in range(len(whole.shape)))
    return plain(whole, found, seen)


@dataclass
class Softmax:
    """exp(x - max(x)) / sum(exp(x - max(x))) along an axis."""

    value: Value  # the division
    value_labels: Labels
    logits: Value
    labels: Labels
    exponential: Value
    exponential_labels: Labels
    total: Value  # the sum, as the reduction gives it
    total_labels: Labels
    seen: set[Op] = field(default_factory=set)


def is_divided(value: Value) -> bool:
    """May this be a softmax? Most operands of products are none."""
    while (op := value.op) is not None and (inner := source(op)) is not None:
        value = inner
    return op is not None and op.name == "divide"


def find_softmax(value: Value, labels: Labels, key: Axis) -> Softmax | None:
    """The softmax along `key` that gives the value, whose labels are given."""
    seen: set[Op] = set()
    found = plain(value, labels, seen)
    if found is None or (divide := found[0].op) is None or divide.name != "divide":
        return None
    seen.add(divide)
    value, labels = found
    numerator, denominator = (plain(divide.operands[0], found[1], seen), spread(divide.operands[1], found[1], seen))
    if numerator is None or denominator is None or (exp := numerator[0].op) is None or exp.name != "exponential":
        return None
    summed = reduced(*denominator, key, "add", seen)
    if summed is None or summed[0] is not exp.result or not same(summed[1], numerator[1]):
        return None
    seen.add(exp)
    found = plain(exp.operands[0], numerator[1], seen)
    if found is None or (less := found[0].op) is None or less.name != "subtract":
        return None
    seen.add(less)
    logits, most = plain(less.operands[0], found[1], seen), spread(less.operands[1], found[1], seen)
    if logits is None or most is None:
        return None
    if (op := most[0].op) is not None and op.name == "maximum":
        # jax.nn.softmax: the larger one of -infinity and the maximum
        other = [v for v in op.operands if (s := splat(v)) is None or float(s) != -np.inf]
        if len(other) != 1:
            return None
        seen.add(op)
        most = spread(other[0], most[1], seen)
    maximum = reduced(*most, key, "maximum", seen) if most is not None else None
    if maximum is None or maximum[0] is not logits[0] or not same(maximum[1], logits[1]):
        return None
    return Softmax(value, labels, *logits, *numerator, *denominator, seen)


@dataclass
class Band:
    """Kept where low <= key - row <= high."""

    row: Axis
    low: int
    high: int


@dataclass
class Mask:
    """Kept where the value is not `drop`."""

    value: Value
    labels: Labels
    drop: bool


def conditions(value: Value, labels: Labels, key: Axis, drop: bool) -> list[Band | Mask] | None:
    """What must hold together where a mask is not `drop`; None when it never holds."""
    inside, at = value, labels
    while (op := inside.op) is not None and op.name in ("reshape", "broadcast_in_dim", "transpose"):
        found = before(op, at)
        if found is None:
            return [Mask(value, labels, drop)]
        inside, at = op.operands[0], found
    if (known := splat(inside)) is not None:
        return [] if bool(known) != drop else None
    if (array := constant(inside)) is not None:
        band = _constant_band(array != drop, at, key)
        return [band] if band is not None else [Mask(value, labels, drop)]
    if op is None:
        return [Mask(value, labels, drop)]
    inner = op.operands
    if op.name == "not":
        return conditions(inner[0], at, key, not drop)
    if op.name == ("or" if drop else "and"):
        parts = [conditions(v, at, key, drop) for v in inner]
        return None if None in parts else [c for part in parts for c in part]  # type: ignore[union-attr]
    if op.name == "select" and inner[0].shape == op.result.shape:
        yes, no = splat(inner[1]), splat(inner[2])
        if yes is not None and no is not None and bool(yes) != bool(no):
            return conditions(inner[0], at, key, drop if bool(yes) else not drop)
    if op.name == "compare" and inner[0].dtype in (i32, i64):
        sides = [_linear(v, at) for v in inner]
        if sides[0] is not None and sides[1] is not None:
            band = _band(op.attrs["comparison_direction"], sides[0], sides[1], key, drop)
            if band is not None:
                return [band]
    return [Mask(value, labels, drop)]


Linear = tuple[dict[Axis, int], int]  # a multiple of each index, and a constant


def _linear(value: Value, labels: Labels) -> Linear | None:
    op = value.op
    if op is None:
        return None
    if (known := splat(value)) is not None:
        return {}, int(known)
    match op.name:
        case "iota":
            axes = split(labels[op.attrs["iota_dimension"]])
            return ({axes[0]: 1}, 0) if len(axes) == 1 else ({}, 0) if not axes else None
        case "broadcast_in_dim" | "reshape" | "transpose":
            found = before(op, labels)
            return _linear(op.operands[0], found) if found is not None else None
        case "convert" if op.operands[0].dtype in (i32, i64) and value.dtype in (i32, i64):
            return _linear(op.operands[0], labels)
        case "add" | "subtract":
            parts = [_linear(v, labels) for v in op.operands]
            if parts[0] is None or parts[1] is None:
                return None
            (a, x), (b, y) = parts[0], parts[1]
            sign = 1 if op.name == "add" else -1
            total = {axis: a.get(axis, 0) + sign * b.get(axis, 0) for axis in {*a, *b}}
            if any(abs(v) > FOREVER for v in (x, y)):
                return None
            return total, x + sign * y
    return None


_OPPOSITE = {"GE": "LT", "LT": "GE", "GT": "LE", "LE": "GT", "EQ": "NE", "NE": "EQ"}


def _band(direction: str, left: Linear, right: Linear, key: Axis, drop: bool) -> Band | None:
    """Where left - right has the sign that the comparison asks for, when that is some key - row + constant."""
    total = {axis: left[0].get(axis, 0) - right[0].get(axis, 0) for axis in {*left[0], *right[0]}}
    total = {axis: times for axis, times in total.items() if times}
    times = total.pop(key, 0)
    if times not in (1, -1) or len(total) != 1:
        return None
    ((row, back),) = total.items()
    if back != -times:
        return None
    if drop:
        direction = _OPPOSITE[direction]
    if times < 0:  # the other way round
        direction = {"GE": "LE", "LE": "GE", "GT": "LT", "LT": "GT"}.get(direction, direction)
    border = (right[1] - left[1]) * times
    match direction:
        case "GE":
            return Band(row, border, FOREVER)
        case "GT":
            return Band(row, border + 1, FOREVER)
        case "LE":
            return Band(row, -FOREVER, border)
        case "LT":
            return Band(row, -FOREVER, border - 1)
        case "EQ":
            return Band(row, border, border)
    return None


def _constant_band(keep: np.ndarray, labels: Labels, key: Axis) -> Band | None:
    axes = [split(dim) for dim in labels]
    dims = [d for d, dim in enumerate(axes) if dim]
    if len(dims) != 2 or any(len(axes[d]) != 1 for d in dims):
        return None
    (first,), (second,) = axes[dims[0]], axes[dims[1]]
    if key not in (first, second):
        return None
    square = keep.reshape(first.size, second.size)
    row, square = (second, square.T) if key is first else (first, square)
    if not square.any(1).all():
        return None
    at, last = np.arange(row.size), key.size - 1
    starts, ends = square.argmax(1), last - square[:, ::-1].argmax(1)
    low = int((starts - at)[starts > 0].max()) if (starts > 0).any() else -FOREVER
    high = int((ends - at)[ends < last].min()) if (ends < last).any() else FOREVER
    distance = np.arange(key.size)[None, :] - at[:, None]
    return Band(row, low, high) if np.array_equal(square, (distance >= low) & (distance <= high)) else None

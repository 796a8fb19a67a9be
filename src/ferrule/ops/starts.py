"""What parts of a reduction may start with, and how they are combined: found by looking at its body, or by trying.

A body that is a known operation has an identity. Others, such as an argmax, are evaluated on ties, NaN, infinities and
random numbers: whether the initial values may enter many times, whether the order of two elements matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ferrule.ir import Block, Op
from ferrule.ir.types import DType
from ferrule.ops import OPS
from ferrule.ops.bodies import monoid


class Start:
    """Values that every lane may start with; `is_init`: they are the initial values themselves.

    `order`: lanes may be combined only in the order of this operand's values, which count along the reduced dimension.
    """

    def __init__(self, values: list[Any], is_init: bool, order: int | None = None) -> None:
        self.values, self.is_init, self.order = values, is_init, order


# Weak: what is remembered of an op must not keep its graph.
_starts: WeakKeyDictionary[Op, Start | None] = WeakKeyDictionary()
_lane_starts: WeakKeyDictionary[Op, Start | None] = WeakKeyDictionary()


def lane_starts(op: Op) -> Start | None:
    """As `start_values`, for lanes that each have their elements in order."""
    found = start_values(op)
    if found is not None:
        return found
    if op not in _lane_starts:
        _lane_starts[op] = _find_ordered(op)
    return _lane_starts[op]


def start_values(op: Op) -> Start | None:
    """None when lanes cannot be used."""
    if op not in _starts:
        _starts[op] = _find_start(op)
    return _starts[op]


def _find_start(op: Op) -> Start | None:
    body, count = op.regions[0], len(op.operands) // 2
    if (kind := monoid(body)) is not None:
        neutral = neutral_of(kind, op.results[0].dtype)
        return None if neutral is None else Start([neutral], False)
    inits = [constant_operand(op, count + i) for i in range(count)]
    if any(i is None for i in inits) or body.free():
        return None
    values = [np.asarray(i).reshape(1) for i in inits]
    try:
        twice = evaluate_body(body, [*values, *values])
        idempotent = all(a.tobytes() == b.tobytes() for a, b in zip(twice, values, strict=True))
        return Start([v[0] for v in values], True) if idempotent and _commutes(body) else None
    except KeyError:  # an op of the body has no NumPy meaning: combine in order instead
        return None


def counters(op: Op) -> list[int]:
    """Which operands count along the reduced dimension."""
    dims, inputs = tuple(op.attrs["dimensions"]), op.operands[: len(op.operands) // 2]
    iotas = {i: v.op for i, v in enumerate(inputs) if v.op is not None and v.op.name == "iota" and v.dtype.is_int}
    return [i for i, iota in iotas.items() if dims == (iota.attrs["iota_dimension"],)]


def _find_ordered(op: Op) -> Start | None:
    """For a body that is an argmax: of several NaNs it takes the first argument, so it does not commute."""
    body, count = op.regions[0], len(op.operands) // 2
    numbers = counters(op)
    inits = [constant_operand(op, count + i) for i in range(count)]
    if not numbers or any(i is None for i in inits) or body.free() or monoid(body) is not None:
        return None
    start = [np.asarray(i).reshape(1) for i in inits]
    try:
        if _interleaves(body, start, numbers[0]):
            return Start([v[0] for v in start], True, numbers[0])
    except KeyError:  # as above: combine in order
        pass
    return None


def _interleaves(body: Block, start: Sequence[np.ndarray], order: int) -> bool:
    """Whether lanes that take elements in turn, and are combined in the order of an operand, give what one fold gives.

    Found by trying, as in `_commutes`.
    """
    count, lanes, length, tries = len(start), 3, 9, 512
    random = np.random.default_rng(7)
    sequence: list[list[np.ndarray]] = []
    for at in range(length):
        values = [_table(v.dtype)[random.integers(0, len(_table(v.dtype)), tries)] for v in body.args[:count]]
        values[order] = np.full(tries, at, values[order].dtype)
        sequence.append(values)
    begin = [np.broadcast_to(v, tries) for v in start]

    parts = [_folded(body, begin, sequence[lane::lanes]) for lane in range(lanes)]
    total = parts[0]
    for part in parts[1:]:
        later = total[order] > part[order]
        first = [np.where(later, b, a) for a, b in zip(total, part, strict=True)]
        second = [np.where(later, a, b) for a, b in zip(total, part, strict=True)]
        total = evaluate_body(body, [*first, *second])
    return _same(total, _folded(body, begin, sequence))


def _folded(body: Block, begin: Sequence[np.ndarray], elements: Sequence[Sequence[np.ndarray]]) -> Sequence[np.ndarray]:
    total = begin
    for element in elements:
        total = evaluate_body(body, [*total, *element])
    return total


def constant_operand(op: Op, i: int) -> np.ndarray | None:
    source = op.operands[i].op
    if source is None or source.name != "constant" or op.operands[i].dtype != op.results[i % len(op.results)].dtype:
        return None
    return source.attrs["value"]


def neutral_of(kind: str, dtype: DType) -> Any:
    if dtype.is_complex and kind not in ("add", "multiply"):
        return None
    if kind in ("add", "or", "xor"):
        return 0 if not dtype.is_float or dtype.bits < 32 else -0.0
    if kind == "multiply":
        return 1
    if kind == "and":
        return 1 if dtype.kind == "bool" else -1 if dtype.kind == "int" else (1 << dtype.bits) - 1
    low = kind == "maximum"
    if dtype.is_float:
        values = np.array([-np.inf, np.inf]).astype(dtype.numpy).astype(np.float64)
        return (values[0] if low else values[1]) if np.isinf(values).all() else None
    if dtype.kind == "bool":
        return 0 if low else 1
    signed = dtype.kind == "int"
    return (-(1 << (dtype.bits - 1)) if signed else 0) if low else (1 << (dtype.bits - signed)) - 1


def evaluate_body(body: Block, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The body on whole arrays of scalars. KeyError for what it cannot evaluate."""
    env: dict[Any, np.ndarray] = dict(zip(body.args, args, strict=True))
    shape = args[0].shape
    for op in body.ops:
        if op.regions or not (OPS[op.name].elementwise or op.name == "constant"):
            raise KeyError(op.name)
        rule = OPS[op.name].evaluate
        if rule is None:
            raise KeyError(op.name)
        found = rule(op, [env[v] for v in op.operands], lambda *_: [])
        env.update((r, np.broadcast_to(y, shape)) for r, y in zip(op.results, found, strict=True))
    return [env[v] for v in body.results]


def _commutes(body: Block) -> bool:
    """Whether body(a, b) = body(b, a), as found by trying: ties, NaN, infinities and random values."""
    count = len(body.args) // 2
    random = np.random.default_rng(7)
    sides: list[list[np.ndarray]] = [[], []]
    for arg in body.args[:count]:
        table = _table(arg.dtype)
        for side in sides:
            side.append(table[random.integers(0, len(table), 1024)])
    forth, back = (evaluate_body(body, [*sides[i], *sides[1 - i]]) for i in (0, 1))
    return _same(forth, back)


def _table(dtype: DType) -> np.ndarray:
    """Numbers to try a body with."""
    special: list[float] = [0, 1, 2, 3, 5, 1, 0, 2]
    if dtype.is_float:
        special += [np.nan, np.inf, -np.inf, -1.5]
    elif dtype.kind != "bool":
        special += list(range(7, 11))
    return np.array(special).astype(np.float64 if dtype.is_float else np.int64).astype(dtype.numpy)


def _same(xs: Sequence[np.ndarray], ys: Sequence[np.ndarray]) -> bool:
    return all(bool(np.all((a == b) | ((a != a) & (b != b)))) for a, b in zip(xs, ys, strict=True))


def counts_in_parts(op: Op, order: int) -> bool:
    """Whether an argmax of neighbouring parts, each of which counts from 0, gives what one over all gives.

    `order`: the operand that counts.
    """
    start = lane_starts(op)
    if start is None or not start.is_init:  # else the body has been evaluated, and can be
        return False
    body, parts, length, tries = op.regions[0], 3, 3, 512
    random = np.random.default_rng(11)
    begin = [np.broadcast_to(np.asarray(v), tries) for v in start.values]

    tables = [_table(v.dtype) for v in body.args[: len(begin)]]
    drawn = [[t[random.integers(0, len(t), tries)] for t in tables] for _ in range(parts * length)]

    def numbered(at: int, number: int) -> list[np.ndarray]:
        return [np.full_like(v, number) if i == order else v for i, v in enumerate(drawn[at])]

    totals = []
    for part in range(parts):
        total = _folded(body, begin, [numbered(part * length + i, i) for i in range(length)])
        totals.append([v + part * length if i == order else v for i, v in enumerate(total)])
    whole = _folded(body, begin, [numbered(i, i) for i in range(parts * length)])
    return _same(_folded(body, begin, totals), whole)

"""Sorts on devices: chains of ops that are one kernel each.

A long line whose order is that of one operand's numbers is sorted by the digits of a key, the lowest first: each pass
counts the digits of each part of the line, adds the counts up to the places where they begin, and writes the elements
there (codegen/radix.py). All others are merge sorts from the bottom up: with n elements, ⌈log₂ n⌉ kernels, each element
placed by a work-item of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ferrule.ir import Block, Op, Tensor, Value, rewrite
from ferrule.ir import types as t
from ferrule.passes.device_scan import totals
from ferrule.targets.gpu import Gpu


@dataclass(frozen=True)
class Order:
    """What a comparator that looks at one operand says: which one, in rising order or not, and whether floats are
    compared by their bits (else -0 equals +0 and all NaN are equal, and last)."""

    operand: int
    rising: bool
    by_bits: bool


def sort(out: Block, op: Op, operands: list[Value], order: Order | None, machine: Gpu) -> Sequence[Value]:
    """The results of a `sort`, whose comparator is `order` when that is known."""
    rank = len(operands[0].shape)
    if rank == 0 or 0 in operands[0].shape:
        return operands
    dimension = int(op.attrs.get("dimension", -1)) % rank
    if order is not None and _by_digits(operands[order.operand], dimension, machine):
        return _radix(out, op, operands, dimension, order, machine)
    return _merges(out, op, operands, dimension, op.regions[0])


def top_k(out: Block, op: Op, operands: list[Value], machine: Gpu) -> Sequence[Value]:
    """The results of a `top_k`: the first k of the whole line, sorted with the places that its elements had."""
    (x,) = operands
    k = int(op.attrs.get("k", op.results[0].shape[-1]))
    last = len(x.shape) - 1
    place = out.add("iota", [], Tensor(x.shape, t.i32), {"iota_dimension": last}, (), op.loc).result
    if 0 in x.shape:
        values: Sequence[Value] = [x, place]
    elif _by_digits(x, last, machine):
        values = _radix(out, op, [x, place], last, Order(0, False, True), machine)
    else:
        values = _merges(out, op, [x, place], last, _greater(x.dtype))
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


# --- by digits --------------------------------------------------------------------------------------------------------
# Lines from which on that is faster: it takes as many kernels for a short line as for a long one.
LONG_ON_PROCESSOR, LONG = 2048, 1 << 16
# Bits of a digit, and elements that a work-item goes along. On a GPU, counters for few digits leave the group's memory
# for many work-items; a processor has few of them, with a cache each.
DIGIT_ON_PROCESSOR, DIGIT = 8, 4
PARTS_PER_UNIT, PART = 16, 64


def _by_digits(key: Value, dimension: int, machine: Gpu) -> bool:
    dtype, length = key.dtype, key.shape[dimension]
    numbers = (dtype.is_int and dtype.bits in (8, 16, 32, 64)) or dtype in (t.bf16, t.f16, t.f32, t.f64)
    size = key.type.size  # type: ignore[union-attr]
    return numbers and length >= (LONG_ON_PROCESSOR if machine.kind == "cpu" else LONG) and size < 1 << 31


def _radix(out: Block, op: Op, values: Sequence[Value], dimension: int, order: Order, machine: Gpu) -> Sequence[Value]:
    build = _Builder(out, op)
    shape = values[0].shape
    axes = [d for d in range(len(shape)) if d != dimension] + [dimension]
    back = [axes.index(d) for d in range(len(shape))]
    length, turned = shape[dimension], tuple(shape[d] for d in axes)
    lines = values[0].type.size // length  # type: ignore[union-attr]
    moved = [build.reshape(build.transpose(v, axes), (lines, length)) for v in values]
    bits = DIGIT_ON_PROCESSOR if machine.kind == "cpu" else DIGIT
    part = PART
    if machine.kind == "cpu":
        part = max(1024, -(-lines * length // (machine.compute_units * PARTS_PER_UNIT)))
    attrs = {"radix": 1 << bits, "part": min(part, length)}
    count = -(-length // attrs["part"])
    counts_type = Tensor((lines, 1 << bits, count), t.i32)
    for low in range(0, values[order.operand].dtype.bits, bits):
        digits = build.digits(moved[order.operand], order, low, bits)
        counts = out.add("digit_counts", [digits], [counts_type], dict(attrs), (), op.loc).result
        flat = build.reshape(counts, (lines, (1 << bits) * count))
        ends = totals(out, op, flat, build.constant(t.i32, 0), "add", 1, machine)
        starts = build.two("subtract", build.reshape(ends, counts_type.shape), counts)
        moved = out.add(
            "digit_scatter", [digits, starts, *moved], [v.type for v in moved], dict(attrs), (), op.loc
        ).results
    return [build.transpose(build.reshape(v, turned), back) for v in moved]


class _Builder:
    """Writes ops of the program that a sort becomes."""

    def __init__(self, out: Block, op: Op) -> None:
        self.out, self.loc = out, op.loc

    def constant(self, dtype: t.DType, value: object) -> Value:
        array = np.asarray(value).astype(dtype.numpy)
        return self.out.add("constant", [], [Tensor((), dtype)], {"value": array}, (), self.loc).result

    def splat(self, like: Value, dtype: t.DType, value: object) -> Value:
        kind = Tensor(like.shape, dtype)
        attrs = {"broadcast_dimensions": ()}
        return self.out.add("broadcast_in_dim", [self.constant(dtype, value)], [kind], attrs, (), self.loc).result

    def two(self, name: str, a: Value, b: Value) -> Value:
        return self.out.add(name, [a, b], [a.type], {}, (), self.loc).result

    def one(self, name: str, a: Value, dtype: t.DType) -> Value:
        return a if a.dtype == dtype else self.out.add(name, [a], [Tensor(a.shape, dtype)], {}, (), self.loc).result

    def compare(self, a: Value, direction: str, b: Value, kind: str) -> Value:
        attrs = {"comparison_direction": direction, "compare_type": kind}
        return self.out.add("compare", [a, b], [Tensor(a.shape, t.i1)], attrs, (), self.loc).result

    def select(self, test: Value, yes: Value, no: Value) -> Value:
        return self.out.add("select", [test, yes, no], [yes.type], {}, (), self.loc).result

    def reshape(self, a: Value, shape: Sequence[int]) -> Value:
        if a.shape == tuple(shape):
            return a
        return self.out.add("reshape", [a], [Tensor(tuple(shape), a.dtype)], {}, (), self.loc).result

    def transpose(self, a: Value, axes: Sequence[int]) -> Value:
        if list(axes) == list(range(len(axes))):
            return a
        kind = Tensor(tuple(a.shape[d] for d in axes), a.dtype)
        return self.out.add("transpose", [a], [kind], {"permutation": tuple(axes)}, (), self.loc).result

    def digits(self, x: Value, order: Order, low: int, bits: int) -> Value:
        """Bits `low` to `low + bits` of a number that is smaller as unsigned where x comes earlier."""
        dtype = x.dtype
        if dtype.is_float and not order.by_bits:
            zero, nan = self.splat(x, dtype, 0), self.splat(x, dtype, np.nan)
            x = self.select(self.compare(x, "EQ", zero, "FLOAT"), zero, x)
            x = self.select(self.compare(x, "NE", x, "FLOAT"), nan, x)
        raw = {8: t.ui8, 16: t.ui16, 32: t.ui32, 64: t.ui64}[dtype.bits]
        key = self.one("bitcast_convert", x, raw)
        top, every = 1 << (dtype.bits - 1), (1 << dtype.bits) - 1
        flip = 0 if order.rising else every
        if dtype.is_float:
            negative = self.compare(key, "GE", self.splat(key, raw, np.uint64(top)), "UNSIGNED")
            above, below = (self.splat(key, raw, np.uint64(f ^ flip)) for f in (top, every))
            key = self.two("xor", key, self.select(negative, below, above))
        else:
            flip ^= top if dtype.kind == "int" else 0
            key = self.two("xor", key, self.splat(key, raw, np.uint64(flip))) if flip else key
        if low:
            key = self.two("shift_right_logical", key, self.splat(key, raw, low))
        return self.one("convert", self.two("and", key, self.splat(key, raw, (1 << bits) - 1)), t.i32)

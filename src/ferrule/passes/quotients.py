"""Quotients: what comes from integers, divided by a constant, as products that give the same number.

    %1 = convert(%0) : tensor<…xf32>      from ui8
    %2 = divide(%1, 255.0)            →   %2 = quotient(%1, 255.0, 1 / 255.0)

A processor divides a vector in the time of sixteen to thirty-two products, which is most of what normalizing the bytes
of an image takes. With the divisor's inverse, rounded once, two residuals give the correctly rounded quotient (P.
Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990; Handbook of
Floating-Point Arithmetic, section 4.7), unless something on the way over- or underflows, is infinite, or is -0. So the
pass follows how small and how large values may be, from the integers on. Differences from constants are as well known
as these are: `(bytes / 255 - mean) / deviation` has two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ferrule.codegen.dialect import dialect_of
from ferrule.ir import Block, Op, Value, constant, rewrite, splat, tensor
from ferrule.targets.machine import Machine

# Arrays from which on it pays; constants that are looked at have at most so many elements.
LEAST, MOST = 1024, 4096
# Bits of a significand, and the exponents that all numbers on the way keep between.
FORMATS = {"f32": (24, 120), "f64": (53, 1000)}
# Ops whose results are elements of their operands.
CHOICES = frozenset(
    {"reshape", "broadcast_in_dim", "transpose", "slice", "reverse", "concatenate", "maximum", "minimum"}
)


class Range(NamedTuple):
    """Finite numbers, none of them -0: multiples of 2**low, of at most 2**high in magnitude."""

    low: int
    high: int


class Divisor(NamedTuple):
    """Positive constants, multiples of 2**low, at least 2**least and at most 2**high; all of them powers of two?"""

    low: int
    least: int
    high: int
    exact: bool


def quotients(graph: Block, machine: Machine) -> Block:
    """Returns the graph, of which nobody else may need the old one."""
    if machine.grouped or not dialect_of(machine).fuses:
        return graph
    ranges: dict[Value, Range | None] = {}
    found = {op: op.operands[1] for op in graph.walk() if op.name == "divide" and _is_safe(op, ranges)}
    if not found:
        return graph

    def rule(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
        if op not in found:
            return None
        return out.add("quotient", [*operands, _inverse(out, found[op])], [op.result.type], {}, (), op.loc).results

    return rewrite(graph, rule, ours=True)


def _is_safe(op: Op, ranges: dict[Value, Range | None]) -> bool:
    """Is it a division of many numbers by a constant, and does nothing on the way leave the range of a float?"""
    x, by = op.operands
    if tensor(x).size < LEAST or x.dtype.name not in FORMATS or (divisor := _divisor(by)) is None:
        return False
    source = _range(x, ranges)
    if source is None or divisor.exact:
        return False
    quotient = _quotient(source, divisor, FORMATS[x.dtype.name][0])
    residual = quotient.low + divisor.low  # it is a multiple of two to that
    return _is_within(x, *divisor[:3], *quotient, residual)


def _quotient(x: Range, by: Divisor, bits: int) -> Range:
    """Of a number that is not zero: as small as one at least, with all bits of its significand."""
    return Range(x.low - by.high - bits, x.high - by.least)


def _inverse(out: Block, value: Value) -> Value:
    """One over a constant that was given another shape."""
    op = value.op
    assert op is not None
    if op.name != "constant":
        return out.add(op.name, [_inverse(out, op.operands[0])], [value.type], op.attrs, (), op.loc).result
    element = splat(value)
    of_all = 1 / op.attrs["value"] if element is None else np.broadcast_to(1 / element, value.shape)
    return out.add("constant", [], [value.type], {"value": of_all}, (), op.loc).result


def _elements(value: Value) -> np.ndarray | None:
    """The numbers of a constant, also of one that was given another shape."""
    while value.op is not None and value.op.name in ("reshape", "broadcast_in_dim", "transpose"):
        (value,) = value.op.operands
    if (element := splat(value)) is not None:
        return np.asarray(element).reshape(1)
    array = constant(value)
    return None if array is None or not 0 < array.size <= MOST else array.reshape(-1)


def _divisor(value: Value) -> Divisor | None:
    array = _elements(value)
    if array is None or value.dtype.name not in FORMATS or not (np.isfinite(array) & (array > 0)).all():
        return None
    low, high = _exponents(array, FORMATS[value.dtype.name][0])
    parts, exponents = np.frexp(array)
    return Divisor(low, int(exponents.min()) - 1, high, bool((parts == 0.5).all()))


def _exponents(array: np.ndarray, bits: int) -> tuple[int, int]:
    """Of finite numbers that are not zero: the exponents of the lowest bit of all and of a power of two above them."""
    parts, exponents = np.frexp(array)
    whole = np.abs(np.ldexp(parts, bits)).astype(np.int64)
    zeros = np.log2((whole & -whole).astype(np.float64)).astype(np.int64)
    return int((exponents - bits + zeros).min()), int(exponents.max())


def _range(value: Value, ranges: dict[Value, Range | None]) -> Range | None:
    """What is known of a value's numbers; None where some may be anything, or too large or small."""
    if value not in ranges:
        known = None if value.dtype.name not in FORMATS else _range_of(value, ranges)
        ranges[value] = known if known and _is_within(value, *known) else None
    return ranges[value]


def _is_within(value: Value, *exponents: int) -> bool:
    limit = FORMATS[value.dtype.name][1]
    return all(-limit <= n <= limit for n in exponents)


def _range_of(value: Value, ranges: dict[Value, Range | None]) -> Range | None:
    op, bits = value.op, FORMATS[value.dtype.name][0]
    if op is None:
        return None
    if op.name == "convert":
        source = op.operands[0].dtype
        whole = source.is_int or source.kind == "bool"
        return Range(0, source.bits) if whole else _range(op.operands[0], ranges)
    if op.name == "iota":
        return Range(0, value.shape[op.attrs["iota_dimension"]].bit_length())
    if (array := _elements(value)) is not None:
        there = array[array != 0]
        if not np.isfinite(array).all() or np.signbit(array[array == 0]).any():
            return None
        return Range(*_exponents(there, bits)) if there.size else Range(0, 0)
    if op.name in ("multiply", "divide"):
        swapped = op.name == "multiply" and _divisor(op.operands[1]) is None
        x, by = op.operands[::-1] if swapped else op.operands
        factor, source = _divisor(by), _range(x, ranges)
        if factor is None or source is None:
            return None  # zero times something negative would be -0
        if op.name == "divide":
            return _quotient(source, factor, bits)
        return Range(source.low + factor.low, source.high + factor.high)
    if op.name in ("add", "subtract") or op.name in CHOICES:
        several = [_range(v, ranges) for v in op.operands]
        if not all(several):
            return None
        low, high = min(r.low for r in several if r), max(r.high for r in several if r)
        return Range(low, high + (op.name in ("add", "subtract")))
    return None

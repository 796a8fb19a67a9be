"""Conversions by way of a type that changes nothing: a rule of simplify."""

from __future__ import annotations

from ferrule.ir import Block, Op, Value
from ferrule.ir.types import holds


def of_convert(out: Block, op: Op, source: Value) -> Value | None:
    """The conversion of what `source` was converted from, where the type of `source` has all values of that."""
    inner = source.op
    if inner is None or inner.name != "convert":
        return None
    (first,) = inner.operands
    floats = all(v.dtype.is_float for v in (first, source, op.result))
    if not (floats or first.dtype.is_int or first.dtype.kind == "bool") or not holds(source.dtype, first.dtype):
        return None
    if first.type == op.result.type:
        return first
    return out.add("convert", [first], [op.result.type], {}, (), op.loc).result

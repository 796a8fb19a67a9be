"""Sums of integers that are narrowed afterwards: a rule of simplify.

The low bits of sums, products and logic follow from the low bits of what they are formed of. `jnp.packbits` adds up
eight bytes as 64-bit integers, an eighth as many in a register, and keeps the lowest byte.
"""

from __future__ import annotations

from ferrule.ir import Block, Op, Tensor, Value
from ferrule.ops.bodies import monoid

_KINDS = frozenset({"add", "multiply", "and", "or", "xor"})


def of_convert(out: Block, op: Op, source: Value) -> Value | None:
    """The reduction in the type that it is converted to, of what it was widened from."""
    reduction, dtype = source.op, op.result.dtype
    if reduction is None or reduction.name != "reduce" or len(reduction.operands) != 2:
        return None
    (wide, init), kind = reduction.operands, monoid(reduction.regions[0])
    if kind not in _KINDS or wide.op is None or wide.op.name != "convert":
        return None
    (narrow,) = wide.op.operands
    same = wide.dtype == init.dtype == source.dtype
    if not (same and source.dtype.is_int and dtype.is_int and narrow.dtype.is_int | (narrow.dtype.kind == "bool")):
        return None
    if not max(8, narrow.dtype.bits) <= dtype.bits < source.dtype.bits:
        return None
    body = Block([Tensor((), dtype)] * 2)
    body.results = [body.add(kind, body.args, Tensor((), dtype)).result]
    terms = out.add("convert", [narrow], [Tensor(wide.shape, dtype)], {}, (), op.loc).result
    start = out.add("convert", [init], [Tensor((), dtype)], {}, (), op.loc).result
    return out.add("reduce", [terms, start], [op.result.type], reduction.attrs, [body], op.loc).result

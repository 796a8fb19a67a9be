"""Flags in loops without mask registers: masks as wide as what they come from.

A vector of flags has no home of its own there. From one step to the next LLVM packs it into bytes, lane by lane; as
numbers of the compared values' width, all ones or zero, it stays as the comparison leaves it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ferrule.codegen.emitter import Emitter, Family, Lanes
from ferrule.codegen.lanes import bits_of
from ferrule.codegen.scalar import compute_type
from ferrule.ir import Block, Op, Value, tensor
from ferrule.ir.types import DType, i8, i16, i32, i64
from ferrule.ops.bodies import monoid
from ferrule.targets.machine import Machine

_WIDE = {8: i8, 16: i16, 32: i32, 64: i64}
_BITWISE = frozenset({"and", "or", "xor"})


def carried(op: Op, family: Family) -> DType | None:
    """The type whose lanes hold the flags of a reduction while it runs; None where they stay what they are."""
    machine = family.machine
    if machine.grouped or machine.vector_bytes >= 64 or len(op.results) != 1:  # AVX-512 has registers for flags
        return None
    if op.results[0].dtype.kind != "bool" or monoid(op.regions[0]) not in _BITWISE:
        return None
    return _WIDE.get(widest(op.operands[0], family))


def packed(body: Block, machine: Machine) -> bool:
    """Does LLVM pack flags of this body into bytes only where vectors are longer than registers?

    It keeps what one logical operation makes of comparisons as wide as these, not what several make.
    """
    if machine.grouped or machine.vector_bytes >= 64 or len({bits_of(compute_type(a.dtype)) for a in body.args}) > 1:
        return False
    logical = {op for op in body.ops if op.name in _BITWISE and op.result.dtype.kind == "bool"}
    return any(v.op in logical for op in logical for v in op.operands)


def widest(value: Value, family: Family) -> int:
    """The most bits of a lane in what this value is computed from, as far as it is computed here."""
    most, seen, stack = 8, {value}, [value]
    while stack:
        found = stack.pop()
        if tensor(found).shape:
            most = max(most, bits_of(compute_type(found.dtype)))
        if found.op is not None and found not in family.pointers:
            new = set(found.op.operands) - seen
            seen |= new
            stack += new
    return most


def widen(em: Emitter, dtype: DType, flags: Lanes) -> Lanes:
    """All ones where a flag is set."""
    return em.s.select(flags, em.s.const(dtype, -1), em.s.const(dtype, 0))


def flags(em: Emitter, dtype: DType, wide: Lanes) -> Lanes:
    """The flags of masks."""
    return em.s.compare("NE", dtype, wide, em.s.const(dtype, 0))


def combiner(op: Op) -> Callable[[Emitter, Sequence[Lanes], Sequence[Lanes]], list[Lanes]]:
    """Applies the reduction's body to masks."""
    kind = monoid(op.regions[0])
    assert kind in _BITWISE  # or `carried` had said None
    return lambda em, a, b: [em.b.binary(kind, a[0], b[0])]

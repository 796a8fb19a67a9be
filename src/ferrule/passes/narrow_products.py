"""Products and convolutions of bytes: the types in which they are handed to a library.

Integers wrap around, so the low bits of a sum follow from the low bits of its terms: of what they are converted from as
of what they are converted to. Libraries multiply bytes and have sums of 32 bits, several times as fast as any other
integers.
"""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.ir import Op, Tensor, Type, Value
from ferrule.ir import types as t

BYTES = (t.i8, t.ui8)


def from_bytes(op: Op, operands: Sequence[Value]) -> list[Value] | None:
    """The bytes that both operands are, or are widened from, for sums of 32 bits; None where there are none."""
    found = [_byte(v) for v in operands]
    if op.result.dtype != t.i32 or any(v is None for v in found):
        return None
    return [v for v in found if v is not None]


def _byte(value: Value) -> Value | None:
    """-1 as an unsigned number of 16 bits would be another one in 32."""
    if value.op is not None and value.op.name == "convert" and value.dtype.is_int and value.dtype.bits >= 32:
        (value,) = value.op.operands
    return value if value.dtype in BYTES else None


def sums(op: Op, operands: Sequence[Value]) -> Type:
    """The type in which sums of products are formed; results that are bytes, too, are narrowed afterwards."""
    bytes_only = all(v.dtype == t.i8 for v in (*operands, op.result))
    return Tensor(op.result.shape, t.i32) if bytes_only else op.result.type

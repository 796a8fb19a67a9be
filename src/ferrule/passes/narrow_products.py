"""Products and convolutions of narrow types: the types in which they are handed to a library.

Integers wrap around, so the low bits of a sum follow from the low bits of its terms: of what they are converted from as
of what they are converted to. Libraries multiply bytes and have sums of 32 bits, several times as fast as any other
integers. Narrow floats for which they have nothing have their values in a wider type, too; sums are rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.ir import DType, Op, Tensor, Type, Value
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


def taken_as(op: Op, dtype: DType) -> DType:
    """The type in which an operand is multiplied. (The least value of f8E8M0FNU is a denormal of bf16, hence 0.)"""
    if dtype.is_float and dtype.bits == 8 and dtype != t.f8E8M0FNU:
        return t.f32 if op.name == "convolution" else t.bf16
    return t.f32 if dtype == t.f16 or (dtype == t.bf16 and _spread(op)) else dtype


def _spread(op: Op) -> bool:
    """The gradient of a depthwise convolution with strides: oneDNN knows it for f32 only."""
    if op.name != "convolution" or op.attrs.get("feature_group_count", 1) == 1 or len(op.result.shape) < 4:
        return False
    features = op.operands[1].shape[op.attrs["dimension_numbers"].kernel_input_feature_dimension]
    return features == 1 and any(d > 1 for d in op.attrs.get("lhs_dilation") or ())


def sums(op: Op, operands: Sequence[Value]) -> Type:
    """The type in which sums of products are formed; the result is made of it afterwards."""
    result = op.result.dtype
    if all(d == t.i8 for d in (result, *(v.dtype for v in operands))):
        return Tensor(op.result.shape, t.i32)
    widened = any(taken_as(op, v.dtype) != v.dtype for v in operands)
    return Tensor(op.result.shape, t.f32) if widened and result.is_float and result.bits < 32 else op.result.type

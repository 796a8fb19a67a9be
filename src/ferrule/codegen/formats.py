"""Float formats narrower than f32: their bits to an f32 and back, and rounding an f32 to what a format can hold.

All rounding is to nearest, ties to even, straight from the source: an f64 goes through an f32 that is rounded *to odd*,
which keeps what the second rounding must know, so nothing is rounded twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from ferrule.codegen.lanes import Num
from ferrule.ir.types import DType


@dataclass(frozen=True)
class Format:
    """`top`: the code of the largest finite magnitude; `infinite`, `nan`: codes, None if the format has none.

    unsigned_zero: the format has no -0 (FNUZ); the code of -0 is its NaN.
    """

    bits: int
    exponent: int
    mantissa: int
    bias: int
    top: int
    infinite: int | None
    nan: int | None
    unsigned_zero: bool = False


FORMATS = {
    "f16": Format(16, 5, 10, 15, 0x7BFF, 0x7C00, 0x7E00),
    "bf16": Format(16, 8, 7, 127, 0x7F7F, 0x7F80, 0x7FC0),
    "f8E5M2": Format(8, 5, 2, 15, 0x7B, 0x7C, 0x7E),
    "f8E4M3": Format(8, 4, 3, 7, 0x77, 0x78, 0x7C),
    "f8E3M4": Format(8, 3, 4, 3, 0x6F, 0x70, 0x78),
    "f8E4M3FN": Format(8, 4, 3, 7, 0x7E, None, 0x7F),
    "f8E4M3B11FNUZ": Format(8, 4, 3, 11, 0x7F, None, 0x80, True),
    "f8E5M2FNUZ": Format(8, 5, 2, 16, 0x7F, None, 0x80, True),
    "f8E4M3FNUZ": Format(8, 4, 3, 8, 0x7F, None, 0x80, True),
    "f4E2M1FN": Format(4, 2, 1, 1, 0x7, None, None),
    "f6E2M3FN": Format(6, 2, 3, 1, 0x1F, None, None),
    "f6E3M2FN": Format(6, 3, 2, 3, 0x1F, None, None),
}


def odd_f32(x: Num) -> Num:
    """An f64 as f32, rounded to odd: toward zero, then the last bit set if anything was lost."""
    near = x.cast("fptrunc", "float")
    back = near.f64()
    lost = back.ne(x) & ~x.is_nan()
    over = abs(back) > abs(x)
    bits = near.raw()
    bits = bits - over.cast("zext", "i32")
    return (bits | lost.cast("zext", "i32")).as_float()


def decode(dtype: DType, code: Num) -> Num:
    """The f32 value of a code held in an integer of the format's storage width."""
    wide = code.cast("zext", "i32")
    if dtype.name == "bf16":
        return (wide << 16).as_float()
    if dtype.name == "f8E8M0FNU":
        value = wide.eq(0).where(1 << 22, wide << 23)
        return wide.eq(255).where(0x7FC00000, value).as_float()
    f = FORMATS[dtype.name]
    sign_bit = 1 << (f.bits - 1)
    magnitude = wide & (sign_bit - 1)
    # The exponent's bias is moved. A denormal is what its fraction has more than the least normal number: no f32 on the
    # way is denormal, as processors are slow with these, or may be told to take them for zeros (native/denormals.h).
    shifted = magnitude << (23 - f.mantissa)
    small = (shifted + ((128 - f.bias) << 23)).as_float() - 2.0 ** (1 - f.bias)
    bits = (magnitude < (1 << f.mantissa)).where(small.raw(), shifted + ((127 - f.bias) << 23))
    if f.infinite is not None:
        bits = (magnitude > f.top).where(magnitude.eq(f.infinite).where(0x7F800000, 0x7FC00000, magnitude), bits)
    elif f.nan is not None and not f.unsigned_zero:
        bits = magnitude.eq(f.nan).where(0x7FC00000, bits)
    bits = bits | ((wide & sign_bit) << (32 - f.bits))
    if f.unsigned_zero:
        bits = (wide & (2 * sign_bit - 1)).eq(sign_bit).where(0x7FC00000, bits)
    return bits.as_float()


def encode(dtype: DType, x: Num) -> Num:
    """The code of an f32 value, rounded to the format, in an integer of its storage width."""
    storage = f"i{max(8, dtype.bits)}"
    bits = x.raw()
    if dtype.name == "bf16":
        return round_bf16(x).raw().lshr(16).cast("trunc", storage)
    if dtype.name == "f8E8M0FNU":
        # Powers of two only; the nearest one, ties up. There is no zero, sign or infinity. Between the two smallest,
        # ml_dtypes and XLA round up whatever is above the lower one.
        normal = (bits + 0x400000).lshr(23)
        small = (bits > 0x400000).where(1, 0, bits)
        code = (bits < 0x800000).where(small, normal)
        wrong = (bits <= 0) | (bits >= 0x7F800000)
        return wrong.where(255, code).cast("trunc", storage)
    f = FORMATS[dtype.name]
    magnitude = bits & 0x7FFFFFFF
    drop = 23 - f.mantissa
    normal = magnitude + ((1 << (drop - 1)) - 1) + (magnitude.lshr(drop) & 1)
    normal = normal.lshr(drop) - ((127 - f.bias) << f.mantissa)
    # Below the smallest normal number the unit is fixed: adding a number with that unit rounds to it.
    anchor = 2.0 ** (24 - f.bias - f.mantissa)
    small = (magnitude.as_float() + anchor).raw() - x.const(anchor).raw()
    code = (magnitude < ((128 - f.bias) << 23)).where(small, normal)
    too_big = f.infinite if f.infinite is not None else f.nan if f.nan is not None else f.top
    code = code.above(f.top).where(too_big, code)
    sign = (bits.lshr(31)) << (f.bits - 1)
    if f.unsigned_zero:
        sign = (code.eq(0) | code.eq(1 << (f.bits - 1))).where(0, sign)
    if f.nan is not None:
        code = (magnitude > 0x7F800000).where(f.nan, code)
        if f.unsigned_zero:
            sign = (magnitude > 0x7F800000).where(0, sign)
    else:  # f4 and f6 have no NaN; it becomes a zero with the sign inverted, as ml_dtypes has it
        is_nan = magnitude > 0x7F800000
        code = is_nan.where(0, code)
        sign = is_nan.where(sign ^ (1 << (f.bits - 1)), sign)
    return (code | sign).cast("trunc", storage)


def round_bf16(x: Num, of_bf16: bool = False) -> Num:
    """The nearest bf16 value, as f32.

    `of_bf16`: computed from bf16 values by float operations, so that a NaN is one operand's or the processor's own. The
    low bits of both are zeros, and rounding leaves it alone; another NaN could become an infinity or a number.
    """
    bits = x.raw()
    rounded = (bits + 0x7FFF + (bits.lshr(16) & 1)) & 0xFFFF0000
    if of_bf16:
        return rounded.as_float()
    return x.is_nan().where(bits & 0xFFFF0000 | 0x400000, rounded).as_float()

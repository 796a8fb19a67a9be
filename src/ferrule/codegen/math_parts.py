"""Exponent and fraction of f32 lanes by arithmetic on their bits, and branches that rare lanes take."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ferrule.codegen.lanes import Num
from ferrule.codegen.llvm import Builder, V
from ferrule.codegen.math_wide import any_lane, log_specials

_SMALLEST_NORMAL = 1.1754943508222875e-38


def branch(
    b: Builder, condition: V, then: Callable[[], Sequence[Num]], otherwise: Callable[[], Sequence[Num]]
) -> list[Num]:
    """The values of `then`, in all lanes, or those of `otherwise`."""
    found = b.branch(condition, lambda: [x.v for x in then()], lambda: [x.v for x in otherwise()])
    return [Num(b, v) for v in found]


def any_above(x: Num, limit: int) -> V:
    """Whether any lane of an integer, taken as unsigned, is above a limit.

    Registers are joined before lanes are compared: LLVM would pack the flags of all lanes first.
    """
    while x.lanes * x.bits > x.b.dialect.register_bits:
        x = x.half(0).intrinsic("umax", x.half(1))
    return any_lane(x.above(limit))


def any_odd(x: Num) -> V:
    """Whether any lane is anything but positive, normal and finite."""
    return any_above(x.raw() - 0x800000, 0x7EFFFFFF)


def normal_parts(bits: Num) -> tuple[Num, Num]:
    """(k, m) with x = 2ᵏ m and ¾ ≤ m < 1½, k as f32, for the bits of positive normal numbers."""
    k = (bits - 0x3F400000) >> 23
    return k.f32(), (bits - (k << 23)).as_float()


def all_parts(x: Num) -> tuple[Num, Num]:
    """The same for all numbers; k is -inf for 0, inf for inf, NaN for NaN and below 0."""
    tiny = x < _SMALLEST_NORMAL
    k, m = normal_parts(tiny.where(x * 8388608.0, x).raw())
    return log_specials(x, k - tiny.where(23.0, 0.0, k)), m


def signed_power(x: Num, y: Num, result: Num) -> Num:
    """xʸ where x may be negative or something NaN; `result` is |x|ʸ."""
    exponent_is_whole = y.rint().eq(y)
    half = y * 0.5
    odd = exponent_is_whole & half.rint().ne(half)
    negative = x.raw() < 0
    result = (negative & odd).where(-result, result)
    finite = abs(x) < float("inf")
    result = ((x < 0.0) & finite & ~exponent_is_whole & ~y.is_nan()).where(float("nan"), result)
    one = x.eq(1.0) | y.eq(0.0) | (x.eq(-1.0) & abs(y).eq(float("inf")))
    return one.where(1.0, result)

"""Formulas for f64 lanes: the functions that models use most; the rest goes through the C library lane by lane.

The coefficients are minimax fits (Remez exchange in 60-digit arithmetic) with errors below 2⁻⁵⁷.
"""

from __future__ import annotations

from collections.abc import Callable

from ferrule.codegen import math_wide as wide
from ferrule.codegen.lanes import Num
from ferrule.codegen.libm import call_libm
from ferrule.codegen.math_angles import atan, atan2
from ferrule.codegen.math_erf import erf, erf_inv, erfc
from ferrule.codegen.math_exp import LOG_SERIES, all_parts, exp_near, exp_parts, exp_sum, log_sum, scaled
from ferrule.codegen.math_parts import branch
from ferrule.codegen.math_power import cbrt, power
from ferrule.codegen.math_special import digamma
from ferrule.codegen.math_wide import any_lane, limit, nearest, power_of_two

# (sin(r) - r + r³/6)/r⁵ and (cos(r) - 1 + r²/2 - r⁴/24)/r⁶ as polynomials of r², |r| ≤ π/4
_SIXTH, _SIXTH_LOW = -1 / 6, -9.25185853854297e-18
_SIN = (
    *(0.00833333333333333, -0.00019841269841260962, 2.755731921674952e-06, -2.5052105487366537e-08),
    *(1.6058431439669783e-10, -7.581585116164203e-13),
)
_24TH, _24TH_LOW = 1 / 24, 2.3129646346357427e-18
_COS = (
    *(-0.0013888888888883941, 2.4801587294817394e-05, -2.755731572327696e-07, 2.087589172982566e-09),
    -1.136763098063625e-11,
)
# π/2 in three parts; multiples of the first two by up to 20 bits are exact.
_PIO2 = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)
_ANGLE_LIMIT = 1e6


def exp(x: Num) -> Num:
    value, _, n = exp_sum(limit(x, -746.0, 710.0))
    return scaled(value, n, ~(abs(x) < 708.0))


def exp2(x: Num) -> Num:
    small = limit(x, -1080.0, 1030.0)
    n, whole = nearest(small)
    r = small - n
    high = r * wide.LN2
    value, _ = exp_near(high, r.fma(wide.LN2, -high) + r * 2.3190468138462996e-17)
    return scaled(value, whole, ~(abs(x) < 1020.0))


def expm1(x: Num) -> Num:
    tail, n = exp_parts(limit(x, -40.0, 710.0))
    half = power_of_two(n - 1)
    return n.eq(0).where(tail, half.fma(tail, half - 0.5) * 2.0).copysign(x)


def _log_of(k: Num, f: Num) -> Num:
    """k ln 2 + log(1 + f), √½ ≤ 1 + f < √2."""
    high, low = log_sum(k, f, LOG_SERIES)
    return high + low


def log(x: Num) -> Num:
    k, m = all_parts(x)
    return wide.log_specials(x, _log_of(k, m - 1.0))


def _log1p(x: Num) -> Num:
    """log(1 + x) for finite x > -1."""
    sum = x + 1.0
    k, m = wide.log_parts(sum)
    # 1 + x has lost bits of a small x; scaling the two parts apart keeps them.
    scale = power_of_two(((sum.raw() - 0x3FE6A09E667F3BCD) >> 52) * -1)
    f = (k > 60.0).where(m - 1.0, x.fma(scale, scale - 1.0))
    # a sum with halves would lose the smallest numbers, and the sign of zero
    return (abs(x) < 5.551115123125783e-17).where(x, _log_of(k, f))


def log1p(x: Num) -> Num:
    result = x.eq(float("inf")).where(x, _log1p(x))
    result = x.eq(-1.0).where(float("-inf"), result)
    return (x < -1.0).where(float("nan"), x.is_nan().where(x, result))


def tanh(x: Num) -> Num:
    t = expm1(limit(abs(x) * 2.0, 0.0, 60.0))
    return (t / (t + 2.0)).copysign(x)


def _exp_half(size: Num) -> Num:
    """e^size / 2 without overflow while the result is finite."""
    big = size > 700.0
    return exp(big.where(size - 100.0, size)) * big.where(1.3440585709080678e43, 0.5, size)


def sinh(x: Num) -> Num:
    size = abs(x)
    t = expm1(size)
    near = (t + t / (t + 1.0)) * 0.5
    return (size < 20.0).where(near, _exp_half(size)).copysign(x)


def cosh(x: Num) -> Num:
    e = _exp_half(abs(x))
    return e + 0.25 / e


def asinh(x: Num) -> Num:
    size = abs(x)
    far = size > 1e100
    a = far.where(1.0, size)
    square = a * a
    near = a + square / ((square + 1.0).intrinsic("sqrt") + 1.0)
    result = _log1p(far.where(size, near)) + far.where(wide.LN2, 0.0, x)
    return (size < float("inf")).where(result.copysign(x), x)


def acosh(x: Num) -> Num:
    far = x > 1e100
    t = far.where(1.0, x - 1.0)
    near = t + (t * (t + 2.0)).intrinsic("sqrt")
    result = _log1p(far.where(x, near)) + far.where(wide.LN2, 0.0, x)
    result = x.eq(float("inf")).where(x, result)
    return (x < 1.0).where(float("nan"), x.is_nan().where(x, result))


def atanh(x: Num) -> Num:
    size = abs(x)
    result = _log1p((size + size) / (1.0 - size)) * 0.5
    result = size.eq(1.0).where(float("inf"), result)
    result = (size > 1.0).where(float("nan"), result.copysign(x))
    return x.is_nan().where(x, result)


def logistic(x: Num) -> Num:
    """1 / (1 + t) or t / (1 + t) with t = e^-|x| as a sum of two parts, and the division's remainder."""
    size = limit(-abs(x), -746.0, 0.0)
    a, b, n = exp_sum(size)
    scale = power_of_two((size < -600.0).where(-900, n))  # far from what is denormal
    high, low = a * scale, b * scale
    d = high + 1.0
    low = (1.0 - d) + high + low
    negative = x < 0.0
    inverse = 1.0 / d
    q = negative.where(a, 1.0) * inverse
    rest = (-q).fma(d, negative.where(a, 1.0)) + negative.where(b, 0.0) - q * low
    return scaled(rest.fma(inverse, q), negative.where(n, 0), ~(x > -708.0))


def _sin_cos(x: Num) -> tuple[tuple[Num, Num], tuple[Num, Num], Num]:
    """sin r and cos r, each as two terms that are still to be added, and n with x = n π/2 + r."""
    n, whole = nearest(x * (2 / wide.PI))
    # The remainder as a sum y + low, with what the last subtraction lost.
    high = n.fma(-_PIO2[0], x)
    part = n * _PIO2[1]
    r = high - part
    lost = (high - r) - part
    low = n.fma(-_PIO2[2], lost)
    y = r + low
    low = (r - y) + low
    z = y * y
    z_low = y.fma(y, -z)
    # sin = y - y³/6 + …, with the second term in two parts
    third = z * _SIXTH
    cube = y * third
    cube_low = y.fma(third, -cube) + y * (z.fma(_SIXTH, -third) + z.fma(_SIXTH_LOW, z_low * _SIXTH))
    sin_high = y + cube
    # cos = 1 - y²/2 + y⁴/24 - …, likewise
    half = z * 0.5
    w = 1.0 - half
    q = z * z
    fourth = q * _24TH
    fourth_low = q.fma(_24TH, -fourth) + q.fma(_24TH_LOW, (z.fma(z, -q) + z * z_low * 2.0) * _24TH)
    cos_high = w + fourth
    tail = ((w - cos_high) + fourth) + ((1.0 - w) - half) + z_low.fma(-0.5, fourth_low)
    cos = cos_high, (q * z).fma(z.poly(_COS), low.fma(-sin_high, tail))
    tail = ((y - sin_high) + cube) + cube_low
    sin = sin_high, (y * q).fma(z.poly(_SIN), low.fma(cos_high, tail))
    return sin, cos, whole


def _quadrant(sin: tuple[Num, Num], cos: tuple[Num, Num], n: Num) -> Num:
    value = (n & 1).ne(0).where(cos[0] + cos[1], sin[0] + sin[1])
    return (value.raw() ^ ((n & 2) << 62)).as_float()


def _with_large(name: str, x: Num, result: Num) -> Num:
    def by_library() -> list[Num]:
        return [(abs(x) > _ANGLE_LIMIT).where(call_libm(name, x), result)]

    return branch(x.b, x.b.dialect.any_beyond(x, _ANGLE_LIMIT), by_library, lambda: [result])[0]


def sin(x: Num) -> Num:
    s, c, n = _sin_cos(x)
    return _with_large("sin", x, x.eq(0.0).where(x, _quadrant(s, c, n)))


def cos(x: Num) -> Num:
    s, c, n = _sin_cos(x)
    return _with_large("cos", x, _quadrant(s, c, n + 1))


def tan(x: Num) -> Num:
    """The quotient, with its remainder, of sine and cosine as sums of two parts; -cot of the rest for odd n."""
    sin, cos, n = _sin_cos(x)
    odd = (n & 1).ne(0)
    up, under = odd.where(-cos[0], sin[0]), odd.where(sin[0], cos[0])
    up_low, under_low = odd.where(-cos[1], sin[1]), odd.where(sin[1], cos[1])
    over, below = up + up_low, under + under_low
    inverse = 1.0 / below
    q = over * inverse
    low = ((up - over) + up_low) - q * ((under - below) + under_low)
    result = q + ((-q).fma(below, over) + low) * inverse
    return _with_large("tan", x, x.eq(0.0).where(x, result))


def rsqrt(x: Num) -> Num:
    """1/√x and one step of Newton's, with the remainder 1 - x r² from products without a rounding."""
    r = 1.0 / x.intrinsic("sqrt")
    root = x * r
    rest = (-root).fma(r, 1.0) - x.fma(r, -root) * r
    better = r.fma(rest * 0.5, r)
    return better.is_nan().where(r, better)


def remainder(x: Num, y: Num) -> Num:
    """C's fmod, exactly. A quotient below 2⁵³ is rounded to its whole part or to one more than that; what is left of x
    then, or lacks, is a multiple of y's last digit and no larger than y. The C library does the others."""
    if not x.b.dialect.fuses:  # the product must not be rounded
        return call_libm("fmod", x, y)
    a, b = abs(x), abs(y)
    quotient = a / b
    rest = (-quotient.intrinsic("trunc")).intrinsic("fma", b, a)
    result = (rest < 0.0).where(rest + b, rest).copysign(x)
    hard = (quotient >= 9007199254740992.0) | quotient.is_nan() | b.eq(float("inf"))
    chosen = x.b.branch(any_lane(hard), lambda: [hard.where(call_libm("fmod", x, y), result).v], lambda: [result.v])
    return Num(x.b, chosen[0])


FORMULAS: dict[str, Callable[..., Num]] = {
    "sqrt": lambda x: x.intrinsic("sqrt"),
    "rsqrt": rsqrt,
    "square": lambda x: x * x,
    "exponential": exp,
    "exp2": exp2,
    "exponential_minus_one": expm1,
    "log": log,
    "log_plus_one": log1p,
    **{f.__name__: f for f in (sinh, cosh, asinh, acosh, atanh, atan, atan2, erf, erfc, erf_inv, power, cbrt)},
    "logistic": logistic,
    "tanh": tanh,
    "sine": sin,
    "cosine": cos,
    "tan": tan,
    "digamma": lambda x: digamma(x, log, tan),
    "remainder": remainder,
}

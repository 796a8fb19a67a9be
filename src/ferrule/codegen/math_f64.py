"""Formulas for f64 lanes: the functions that models use most; the rest goes through the C library lane by lane.

The coefficients are minimax fits (Remez exchange in 60-digit arithmetic) with errors below 2⁻⁵⁷.
"""

from __future__ import annotations

from collections.abc import Callable

from ferrule.codegen import math_wide as wide
from ferrule.codegen.lanes import Num
from ferrule.codegen.libm import call_libm
from ferrule.codegen.math_special import digamma, erf_inv
from ferrule.codegen.math_wide import LN2_HIGH, LN2_LOW, limit, nearest, power_of_two

# (eʳ - 1 - r) / r², |r| ≤ ln 2 / 2
_EXP = (
    *(0.5000000000000013, 0.16666666666666702, 0.04166666666650954, 0.008333333333305347, 0.0013888888948717449),
    *(0.0001984126992119974, 2.4801488040050642e-05, 2.7557213064930805e-06, 2.763200242940308e-07),
    2.5118840096960305e-08,
)
# (2 atanh(s)/s - 2) / s² as a polynomial of s², |s| ≤ 0.172
_LOG = (
    *(0.6666666666666735, 0.39999999999407915, 0.28571428744058674, 0.22222198386142636, 0.18183574806663635),
    *(0.15313763929639349, 0.1479899441251674),
)
# (sin(r)/r - 1)/r² and (cos(r) - 1 + r²/2)/r⁴ as polynomials of r², |r| ≤ π/4
_SIN = (
    *(-0.16666666666666632, 0.008333333333322337, -0.00019841269829737766, 2.755731366489171e-06),
    *(-2.505075352279298e-08, 1.5896511685162736e-10),
)
_COS = (
    *(0.0416666666666666, -0.0013888888888874, 2.4801587289399348e-05, -2.755731432700224e-07),
    *(2.0875719660466577e-09, -1.1359452806752506e-11),
)
# π/2 in three parts; multiples of the first two by up to 20 bits are exact.
_PIO2 = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)
_ANGLE_LIMIT = 1e6
_SMALLEST_NORMAL = 2.2250738585072014e-308


def _exp_parts(x: Num) -> tuple[Num, Num]:
    """(eʳ - 1, n) with x = n ln 2 + r, n as an i64."""
    n, whole = nearest(x * wide.LOG2_E)
    r = n.fma(-LN2_LOW, n.fma(-LN2_HIGH, x))
    return (r * r).fma(r.poly(_EXP), r), whole


def exp(x: Num) -> Num:
    tail, n = _exp_parts(limit(x, -746.0, 710.0))
    half = (n.cast("trunc", "i32") >> 1).cast("sext", "i64")
    first = power_of_two(half)
    return first.fma(tail, first) * power_of_two(n - half)


def expm1(x: Num) -> Num:
    tail, n = _exp_parts(limit(x, -40.0, 710.0))
    half = power_of_two(n - 1)
    return n.eq(0).where(tail, half.fma(tail, half - 0.5) * 2.0).copysign(x)


def _log_of(k: Num, f: Num) -> Num:
    """k ln 2 + log(1 + f), √½ ≤ 1 + f < √2."""
    s = f / (f + 2.0)
    z = s * s
    # log(1 + f) = f - (f²/2 - s (f²/2 + R)): what is subtracted is small, so its error does not show.
    half = f * f * 0.5
    tail = s.fma(half + z * z.poly(_LOG), k * LN2_LOW)
    return k.fma(LN2_HIGH, f - (half - tail))


def log(x: Num) -> Num:
    tiny = x < _SMALLEST_NORMAL
    k, m = wide.log_parts(tiny.where(x * 4503599627370496.0, x))
    return wide.log_specials(x, _log_of(k - tiny.where(52.0, 0.0, k), m - 1.0))


def _log1p(x: Num) -> Num:
    """log(1 + x) for finite x > -1."""
    sum = x + 1.0
    k, m = wide.log_parts(sum)
    # 1 + x has lost bits of a small x; scaling the two parts apart keeps them.
    scale = power_of_two(((sum.raw() - 0x3FE6A09E667F3BCD) >> 52) * -1)
    f = (k > 60.0).where(m - 1.0, x.fma(scale, scale - 1.0))
    return x.eq(0.0).where(x, _log_of(k, f))


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
    t = exp(-abs(x))
    return (x < 0.0).where(t, 1.0) / (t + 1.0)


def _sin_cos(x: Num) -> tuple[Num, Num, Num]:
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
    sin = y + (y * z).fma(z.poly(_SIN), low)
    half = z * 0.5
    w = 1.0 - half
    cos = w + (((1.0 - w) - half) + (z * z).fma(z.poly(_COS), -(y * low)))
    return sin, cos, whole


def _quadrant(sin: Num, cos: Num, n: Num) -> Num:
    value = (n & 1).ne(0).where(cos, sin)
    return (value.raw() ^ ((n & 2) << 62)).as_float()


def _with_large(name: str, x: Num, result: Num) -> Num:
    big = abs(x) > _ANGLE_LIMIT
    some = big.v if x.lanes == 1 else x.b.call("i1", f"llvm.vector.reduce.or.v{x.lanes}i1", big.v)
    chosen = x.b.branch(some, lambda: [big.where(call_libm(name, x), result).v], lambda: [result.v])
    return Num(x.b, chosen[0])


def sin(x: Num) -> Num:
    s, c, n = _sin_cos(x)
    return _with_large("sin", x, x.eq(0.0).where(x, _quadrant(s, c, n)))


def cos(x: Num) -> Num:
    s, c, n = _sin_cos(x)
    return _with_large("cos", x, _quadrant(s, c, n + 1))


FORMULAS: dict[str, Callable[..., Num]] = {
    "sqrt": lambda x: x.intrinsic("sqrt"),
    "rsqrt": lambda x: 1.0 / x.intrinsic("sqrt"),
    "square": lambda x: x * x,
    "exponential": exp,
    "exponential_minus_one": expm1,
    "log": log,
    "log_plus_one": log1p,
    **{f.__name__: f for f in (sinh, cosh, asinh, acosh, atanh)},
    "logistic": logistic,
    "tanh": tanh,
    "sine": sin,
    "cosine": cos,
    "digamma": lambda x: digamma(x, log, lambda angle: call_libm("tan", angle)),
    "erf_inv": erf_inv,
}

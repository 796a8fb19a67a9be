"""Formulas for f32 lanes: in f32 where that is accurate, else through the f64 cores of `math_wide`.

Each is right to 1 to 3 ulp over the whole range, with denormal results; docs/numerics.md has the measured numbers.
The coefficients are minimax fits (Remez exchange in 60-digit arithmetic).
"""

from __future__ import annotations

from collections.abc import Callable

from ferrule.codegen import math_wide as wide
from ferrule.codegen.lanes import Num
from ferrule.codegen.libm import call_libm
from ferrule.codegen.math_parts import any_above, branch, signed_power
from ferrule.codegen.math_special import bessel_i1e, digamma, lgamma
from ferrule.codegen.math_wide import any_lane, limit, power_of_two

_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.42860682e-06
# (eʳ - 1 - r) / r², |r| ≤ ln 2 / 2
_EXP = (0.5, 0.166665167, 0.0416661985, 0.00836922694, 0.00139513041)
# (log(1 + f) - f + f²/2) / f³, -¼ ≤ f ≤ ½
_LOG = (
    *(0.333333373, -0.250001669, 0.199998453, -0.166555658, 0.142705217),
    *(-0.127147704, 0.117359206, -0.0925272703, 0.0388081297),
)
# (sinh(x)/x - 1)/x² as a polynomial of x², |x| ≤ 1
_SINH = (0.16666666667068328, 0.00833333327639188, 0.00019841296037416504, 2.7552064356615057e-06, 2.55298283894559e-08)
# -log(erfc(x))/x - 1, 0 ≤ x ≤ 4
_ERF = (
    *(0.12837916612625122, 0.6366195678710938, 0.10277630388736725, -0.019147822633385658, -0.00016950468125287443),
    *(0.0016756778350099921, -0.000637365214060992, 0.00011886226275237277, -9.388139005750418e-06),
)
# exp(x²) erfc(x), 0 ≤ x ≤ 10.2, as a quotient of polynomials whose terms all are positive: nothing cancels
_ERFC_TOP = (1.0, 1.2372958660125732, 0.730330765247345, 0.22856809198856354, 0.032641541212797165)
_ERFC_BOTTOM = (
    *(1.0, 2.365675449371338, 2.3997018337249756, 1.3229719400405884, 0.40515291690826416),
    0.057854924350976944,
)
# erfinv(x)/x as a polynomial of w = -log(1 - x²) up to 5, and of √w above
_ERF_INV = (
    *(0.8862269258193511, 0.2320136444344622, 0.011549558640169004, -0.002335917522081252, -0.0001264920116963938),
    *(4.4927421926142826e-05, 3.1180561119826052e-06, -1.4364752130309924e-06, 4.4869622148546864e-08),
    *(2.3720971483000403e-08, -3.216566798809882e-09, 1.3285821679433311e-10),
)
_ERF_INV_TAIL = (
    *(-3.0224109866667556, 12.70528677455803, -17.705059056383263, 14.317081245342285, -7.022085738419244),
    *(2.1590334369276487, -0.39402780163364387, 0.029692233123569944, 0.003506235384350484),
    *(-0.001101864489259703, 0.00010777797939675773, -3.971588492636873e-06),
)
# Above this the reduction by two parts of π loses accuracy; the C library does the rest.
_ANGLE_LIMIT = 1e6
Formula = Callable[..., Num]


def _exp_parts(x: Num, lost: Num | None = None) -> tuple[Num, Num, Num]:
    """(eʳ - 1, n, n as an i32) with x = n ln 2 + r, or x - `lost`, which is little."""
    # Adding 1.5 · 2²³ rounds to an integer and leaves it in the low bits.
    shifted = x.fma(wide.LOG2_E, 12582912.0)
    n = shifted - 12582912.0
    r = n.fma(-_LN2_LOW, n.fma(-_LN2_HIGH, x))
    r = r if lost is None else r - lost
    return (r * r).fma(r.poly(_EXP), r), n, shifted.raw() - 0x4B400000


def exp(x: Num) -> Num:
    tail, n, whole = _exp_parts(limit(x, -104.0, 89.0))
    return x.b.dialect.scale(tail + 1.0, n, whole)


def exp2(x: Num) -> Num:
    x = limit(x, -151.0, 129.0)
    shifted = x + 12582912.0
    n = shifted - 12582912.0
    r = (x - n) * wide.LN2
    return x.b.dialect.scale((r * r).fma(r.poly(_EXP), r) + 1.0, n, shifted.raw() - 0x4B400000)


def expm1(x: Num) -> Num:
    tail, _, n = _exp_parts(limit(x, -20.0, 89.0))
    # Half of the result, because 2ⁿ may be infinite where the result is not.
    half = power_of_two(n - 1)
    result = half.fma(tail, half - 0.5) * 2.0
    return n.eq(0).where(tail, result).copysign(x)


def log(x: Num) -> Num:
    """k ln 2 + log m: an infinite k, and NaN, are the result."""
    k, m = x.b.dialect.binary_parts(x)
    f = m - 1.0
    cube = f * (f * f)
    tail = k.fma(_LN2_LOW, cube * f.poly(_LOG))
    return k.fma(_LN2_HIGH, f + (f * -0.5).fma(f, tail))


def log1p(x: Num) -> Num:
    w = x.f64()
    result = wide.log1p(w).f32()
    result = x.eq(float("inf")).where(x, result)
    result = x.eq(-1.0).where(float("-inf"), result)
    result = (x < -1.0).where(float("nan"), x.is_nan().where(x, result))
    return x.eq(0.0).where(x, result)


def tanh(x: Num) -> Num:
    """-E / (E + 2) with E = e⁻²ˣ - 1, |x| for x; from 10 on that is 1. The sum is made anew: E is rounded already."""
    size = abs(x)
    size = (size > 10.0).where(10.0, size)
    tail, _, whole = _exp_parts(-(size + size))
    scale = power_of_two(whole)
    return x.b.dialect.ratio(scale.fma(tail, scale - 1.0), scale.fma(tail, scale + 1.0)).copysign(x)


def logistic(x: Num) -> Num:
    """1 / (1 + t) or t / (1 + t) with t = e^-|x|; the power of two in t comes last, so that denormals are right."""
    size = limit(-abs(x), -104.0, 0.0)
    tail, float_n, n = _exp_parts(size)
    a = tail + 1.0
    below = a.fma(power_of_two((size < -80.0).where(-120, n)), 1.0)
    negative = x < 0.0
    q = x.b.dialect.ratio(negative.where(a, 1.0), below)
    return x.b.dialect.scale(q, negative.where(float_n, 0.0), negative.where(n, 0))


def sinh(x: Num) -> Num:
    w = x.f64()
    z = w * w
    small = (w * z).fma(z.poly(_SINH), w)
    e = wide.exp(limit(abs(w), 0.0, 100.0))
    large = (e - 1.0 / e) * 0.5
    return (abs(w) < 1.0).where(small, large.copysign(w)).f32()


def cosh(x: Num) -> Num:
    e = wide.exp(limit(abs(x.f64()), 0.0, 100.0))
    return ((e + 1.0 / e) * 0.5).f32()


def _with_large(name: str, x: Num, result: Num) -> Num:
    """Lanes whose angle is too large for the vector formula go through the C library; they are rare."""

    def by_library() -> list[Num]:
        return [(abs(x) > _ANGLE_LIMIT).where(call_libm(name, x), result)]

    return branch(x.b, x.b.dialect.any_beyond(x, _ANGLE_LIMIT), by_library, lambda: [result])[0]


def _sine(x: Num, turns: Num, parity: Num) -> Num:
    """(-1)^parity sin(x - π turns), in f64, where one short polynomial does and leaves one rounding.

    The sign is in the lowest bit of `parity`, moved to the highest. What is not needed at once waits for nothing: with
    a fused multiplication the second part of π is as small as the rounding of the first, and r² does without it.
    """
    fuses = x.b.dialect.fuses
    near = turns.fma(-wide.PI if fuses else -2 * wide.PIO2_HIGH, x)
    r = turns.fma(-wide.PI_REST if fuses else -2 * wide.PIO2_LOW, near)
    square = near * near if fuses else r * r
    return ((r.raw() ^ parity).as_float() * square.poly(wide.SIN_HALF)).f32()  # -0 stays


def sin(x: Num) -> Num:
    w = x.f64()
    shifted = w.fma(1 / wide.PI, 6755399441055744.0)  # a whole number of turns in the low bits
    return _with_large("sin", x, _sine(w, shifted - 6755399441055744.0, shifted.raw() << 63))


def cos(x: Num) -> Num:
    """cos(r + π/2 + kπ) is -sin r for an even k: of x/π + 1, held in 1024ths, the fraction becomes a half."""
    w = x.f64()
    bits = (w.fma(1 / wide.PI, 6597069766657.0).raw() & -1024) | 512
    return _with_large("cos", x, _sine(w, bits.as_float() - 6597069766657.0, (bits << 53) & (-1 << 63)))


def tan(x: Num) -> Num:
    return _with_large("tan", x, x.eq(0.0).where(x, wide.tan(x.f64()).f32()))


def atan(x: Num) -> Num:
    w = x.f64()
    return wide.atan2(w, w.const(1.0)).f32()


def asin(x: Num) -> Num:
    w = x.f64()
    return wide.atan2(w, ((1.0 - w) * (w + 1.0)).intrinsic("sqrt")).f32()


def acos(x: Num) -> Num:
    w = x.f64()
    return wide.atan2(((1.0 - w) * (w + 1.0)).intrinsic("sqrt"), w).f32()


def atan2(y: Num, x: Num) -> Num:
    return wide.atan2(y.f64(), x.f64()).f32()


def asinh(x: Num) -> Num:
    size = abs(x.f64())
    square = size * size
    result = wide.log1p(size + square / ((square + 1.0).intrinsic("sqrt") + 1.0)).f32()
    return (abs(x) < float("inf")).where(result.copysign(x), x)


def acosh(x: Num) -> Num:
    t = x.f64() - 1.0
    result = wide.log1p(t + (t * (t + 2.0)).intrinsic("sqrt")).f32()
    result = x.eq(float("inf")).where(x, result)
    return (x < 1.0).where(float("nan"), x.is_nan().where(x, result))


def atanh(x: Num) -> Num:
    size = abs(x.f64())
    result = (wide.log1p((size + size) / (1.0 - size)) * 0.5).f32()
    result = abs(x).eq(1.0).where(float("inf"), result)
    result = (abs(x) > 1.0).where(float("nan"), result.copysign(x))
    return x.is_nan().where(x, result)


def cbrt(x: Num) -> Num:
    w = abs(x.f64())
    # A third of the exponent's bits is right to 5 bits; each step (Halley's) triples them.
    high = w.raw().lshr(32).cast("trunc", "i32").cast("uitofp", "double") * (1 / 3)
    guess = (high.cast("fptoui", "i32") + 715094163).cast("zext", "i64") << 32
    t = guess.as_float()
    for _ in range(2):
        cube = t * t * t
        t = t * (cube + w + w) / (cube + cube + w)
    return (x.eq(0.0) | ~(abs(x) < float("inf"))).where(x, t.f32().copysign(x))


def rsqrt(x: Num) -> Num:
    return x.b.dialect.rsqrt(x)


def erf(x: Num) -> Num:
    """1 - eᵗ with t = log(erfc(|x|)), which from 4 on is 1. One formula for all x: eᵗ - 1 loses nothing near 0."""
    size = abs(x)
    size = (size > 4.0).where(4.0, size)
    tail, _, whole = _exp_parts(-size.fma(size.poly(_ERF), size))
    scale = power_of_two(whole)
    return scale.fma(tail, scale - 1.0).copysign(x)


def erfc(x: Num) -> Num:
    """e^-x² times a quotient; below zero 2 less that of |x|."""
    size = abs(x)
    size = (size > 10.2).where(10.2, size)
    square = size * size
    tail, n, whole = _exp_parts(-square, size.fma(size, -square))
    factor = x.b.dialect.ratio(size.poly(_ERFC_TOP), size.poly(_ERFC_BOTTOM))
    result = x.b.dialect.scale(factor.fma(tail, factor), n, whole)
    return (x < 0.0).where(2.0 - result, result)


def erf_inv(x: Num) -> Num:
    w = x.f64()
    deep = -wide.log1p(limit(-(w * w), -0.9999999999, 0.0))
    near = deep.poly(_ERF_INV)

    def with_tail() -> list[Num]:
        factor = (deep < 5.0).where(near, deep.intrinsic("sqrt").poly(_ERF_INV_TAIL))
        result = (w * factor).f32()
        result = abs(x).eq(1.0).where(x.const(float("inf")).copysign(x), result)
        return [(abs(x) > 1.0).where(float("nan"), result)]

    # The logarithm is 5 at 0.99663; of numbers drawn evenly from (-1, 1) one in 300 is beyond.
    beyond = any_above(abs(x).raw(), 0x3F7F2000)
    return branch(x.b, beyond, with_tail, lambda: [(w * near).f32()])[0]


def power(x: Num, y: Num) -> Num:
    # The logarithm has 2⁻⁴⁰ relative accuracy; the product's error stays below 2⁻³².
    # 2^-160 rounds to 0 and 2^140 to infinity.
    result = wide.exp2(limit(y.f64() * wide.log2(abs(x)), -160.0, 140.0)).f32()
    # Unsigned, the bits of a NaN and of negative numbers are above infinity's; the result so far is never negative.
    odd = any_above(x.raw().intrinsic("umax", result.raw()), 0x7F800000)
    return branch(x.b, odd, lambda: [signed_power(x, y, result)], lambda: [result])[0]


def remainder(x: Num, y: Num) -> Num:
    """C's fmod. In f64 it is exact while the quotient has at most 29 bits; else the C library does it."""
    a, b = abs(x.f64()), abs(y.f64())
    quotient = a / b
    rest = a - quotient.intrinsic("trunc") * b
    rest = (rest < 0.0).where(rest + b, rest)
    result = rest.f32()
    result = abs(y).eq(float("inf")).where(x, result)
    result = (x.is_nan() | y.is_nan() | abs(x).eq(float("inf")) | y.eq(0.0)).where(float("nan"), result)
    hard = (quotient >= 536870912.0) & (quotient < float("inf"))
    chosen = x.b.branch(any_lane(hard), lambda: [hard.where(call_libm("fmod", x, y), result).v], lambda: [result.v])
    return Num(x.b, chosen[0]).copysign(x)


FORMULAS: dict[str, Formula] = {
    "sqrt": lambda x: x.intrinsic("sqrt"),
    "square": lambda x: x * x,
    "exponential": exp,
    "exponential_minus_one": expm1,
    "log": log,
    "log_plus_one": log1p,
    "logistic": logistic,
    "sine": sin,
    "cosine": cos,
    "exp2": exp2,
    "bessel_i1e": lambda x: bessel_i1e(x.f64()).f32(),
    "lgamma": lambda x: lgamma(x.f64(), wide.log).f32(),
    "digamma": lambda x: digamma(x.f64(), wide.log, wide.tan).f32(),
    **{f.__name__: f for f in (tan, tanh, sinh, cosh, asin, acos, atan, asinh, acosh, atanh)},
    **{f.__name__: f for f in (cbrt, rsqrt, erf, erfc, erf_inv, power, atan2, remainder)},
}

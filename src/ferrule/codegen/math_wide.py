"""Cores in f64 with the accuracy that f32 results need (2⁻³³ or better), for functions where f32 alone would cancel.

Their arguments are f32 values held in f64, so nothing here overflows or is denormal on the way, and the one rounding at
the end leaves about half an ulp. The coefficients are minimax fits (Remez exchange in 60-digit arithmetic).
"""

from __future__ import annotations

from ferrule.codegen.lanes import Num
from ferrule.codegen.llvm import V

LOG2_E = 1.4426950408889634
LN2 = 0.6931471805599453
# π as one f64, and what that leaves of it.
PI, PI_REST = 3.141592653589793, 1.2246467991473532e-16
# ln 2 and π/2 in parts: the first ones have so few bits that a small integer times them is exact.
LN2_HIGH, LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
PIO2_HIGH, PIO2_LOW = 1.5707963267341256, 6.077100506506192e-11

# (eʳ - 1 - r) / r² for |r| ≤ ln 2 / 2
_EXP = (
    *(0.5000000080204859, 0.1666666686933402, 0.04166626212706024, 0.008333262457453285),
    *(0.001394663545617455, 0.0001991939030677786),
)
# (2 atanh(s)/s - 2) / s² as a polynomial of s², |s| ≤ 0.2
_LOG = (0.6666666671025637, 0.39999984643255865, 0.2857318227967144, 0.22135184755007897, 0.2012173238848169)
# (2ʳ - 1)/r, |r| ≤ ½
_EXP2 = (
    *(0.6931471805415267, 0.24022651075042317, 0.055504109627622096, 0.009618036991587744),
    *(0.0013333430813843555, 0.00015467092201352744, 1.5314913840669673e-05),
)
# (sin(r)/r - 1)/r² and (cos(r) - 1 + r²/2)/r⁴ as polynomials of r², |r| ≤ π/4
SIN = (-0.16666666641438307, 0.008333329362514904, -0.0001983932708452649, 2.7182362830565548e-06)
_COS = (0.04166666662247551, -0.0013888883722520536, 2.4799511736042993e-05, -2.7209545266460977e-07)
# sin(r)/r as a polynomial of r², |r| ≤ π/2
SIN_HALF = (
    *(1.0, -0.16666666626123036, 0.008333331107358176, -0.00019840868028806304, 2.7525374214925217e-06),
    -2.3888714861779127e-08,
)
# (atan(a)/a - 1)/a² as a polynomial of a², 0 ≤ a ≤ 1
_ATAN = (
    *(-0.33333333130271076, 0.19999985335785309, -0.14285343391808952, 0.11106370121747998, -0.09054955792333769),
    *(0.07515388495636104, -0.06068703527096813, 0.044367226237340615, -0.02674630849194666),
    *(0.011911287224600138, -0.003377335872114443, 0.00044921319189591285),
)


def power_of_two(n: Num) -> Num:
    """2ⁿ for an integer n in the normal range, as the float of n's width."""
    mantissa, bias = (52, 1023) if n.bits == 64 else (23, 127)
    return ((n + bias) << mantissa).as_float()


def nearest(x: Num) -> tuple[Num, Num]:
    """An f64 below 2⁵¹ rounded to an integer: as f64, and as i64 (by an addition: processors lack the conversion)."""
    shifted = x + 6755399441055744.0
    return shifted - 6755399441055744.0, shifted.raw() - 0x4338000000000000


def any_lane(condition: Num) -> V:
    """Whether the condition holds in any lane."""
    if condition.lanes == 1:
        return condition.v
    return condition.b.call("i1", f"llvm.vector.reduce.or.v{condition.lanes}i1", condition.v)


def limit(x: Num, low: float, high: float) -> Num:
    """`x` within [low, high]; NaN stays."""
    x = (x > high).where(high, x)
    return (x < low).where(low, x)


def expm1_parts(x: Num) -> tuple[Num, Num]:
    """(eʳ - 1, 2ⁿ) with x = n ln 2 + r. |x| below 700."""
    n, whole = nearest(x * LOG2_E)
    r = n.fma(-LN2_LOW, n.fma(-LN2_HIGH, x))
    return (r * r).fma(r.poly(_EXP), r), power_of_two(whole)


def exp(x: Num) -> Num:
    """eˣ for |x| below 700."""
    tail, scale = expm1_parts(x)
    return scale.fma(tail, scale)


def log_parts(x: Num) -> tuple[Num, Num]:
    """(k, m) with x = 2ᵏ m and √½ ≤ m < √2, for positive normal x; k as f64."""
    bits = x.raw()
    k = (bits - 0x3FE6A09E667F3BCD) >> 52
    return (k.as_f64_small()), (bits - (k << 52)).as_float()


def log_near_one(f: Num) -> Num:
    """log(1 + f) for ¾ ≤ 1 + f < 1½ (or from √½ to √2), right relative to the result."""
    s = f.b.dialect.quotient(f, f + 2.0)
    z = s * s
    return (s * z).fma(z.poly(_LOG), s + s)


def log(x: Num) -> Num:
    """log x for positive normal x."""
    k, m = log_parts(x)
    return k.fma(LN2, log_near_one(m - 1.0))


def log2(x: Num) -> Num:
    """log₂ x of an f32, in f64; also of 0, infinity and NaN."""
    k, m = x.b.dialect.binary_parts(x)
    f = (m - 1.0).f64()
    s = x.b.dialect.quotient(f, f + 2.0)
    return s.fma((s * s).poly((2 * LOG2_E, *(c * LOG2_E for c in _LOG))), k.f64())


def exp2(x: Num) -> Num:
    """2ˣ for |x| below 1000."""
    shifted = x + 6755399441055744.0
    r = x - (shifted - 6755399441055744.0)
    value = r.fma(r.poly(_EXP2), 1.0)
    return (value.raw() + (shifted.raw() << 52)).as_float()


def log1p(x: Num) -> Num:
    """log(1 + x) for x > -1, right relative to the result (|x| below 2⁵⁰⁰)."""
    bits = (x + 1.0).raw()
    k = (bits - 0x3FE6A09E667F3BCD) >> 52
    scale = power_of_two(-k)
    return k.as_f64_small().fma(LN2, log_near_one(x.fma(scale, scale - 1.0)))


def log_specials(x: Num, result: Num) -> Num:
    """What a logarithm of an f32 in f64 is at 0, below 0, at infinity and NaN."""
    result = x.eq(float("inf")).where(x, result)
    result = x.eq(0.0).where(float("-inf"), result)
    return (x < 0.0).where(float("nan"), x.is_nan().where(x, result))


def reduce_angle(x: Num) -> tuple[Num, Num]:
    """(r, n) with x = n π/2 + r and |r| ≤ π/4, n as i64; |x| up to 2²⁰."""
    n, whole = nearest(x * (2 / PI))
    return n.fma(-PIO2_LOW, n.fma(-PIO2_HIGH, x)), whole


def sin_cos(r: Num) -> tuple[Num, Num]:
    """sin r and cos r for |r| ≤ π/4."""
    z = r * r
    sin = (r * z).fma(z.poly(SIN), r)
    cos = (z * z).fma(z.poly(_COS), z.fma(-0.5, 1.0))
    return sin, cos


def tan(x: Num) -> Num:
    """tan x for |x| up to 2²⁰."""
    r, n = reduce_angle(x)
    s, c = sin_cos(r)
    odd = (n & 1).ne(0)
    return x.b.dialect.quotient(odd.where(-c, s), odd.where(s, c))


def atan2(y: Num, x: Num) -> Num:
    """The angle of (x, y), with C's signs at zeros and infinities."""
    a, b = abs(x), abs(y)
    steep = b > a
    large, small = steep.where(b, a), steep.where(a, b)
    both_zero, both_infinite = large.eq(0.0), small.eq(float("inf"))
    t = both_zero.where(0.0, both_infinite.where(1.0, small / large))
    z = t * t
    angle = (t * z).fma(z.poly(_ATAN), t)
    angle = steep.where(PI / 2 - angle, angle)
    angle = (x.raw() < 0).where(PI - angle, angle)
    angle = (x.is_nan() | y.is_nan()).where(x + y, angle)
    return angle.copysign(y)

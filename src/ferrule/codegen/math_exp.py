"""What exponentials and logarithms of f64 lanes are made of.

The coefficients are minimax fits (Remez exchange in 60-digit arithmetic) with errors below 2⁻⁵⁷.
"""

from __future__ import annotations

from ferrule.codegen import math_wide as wide
from ferrule.codegen.lanes import Num
from ferrule.codegen.llvm import V
from ferrule.codegen.math_wide import LN2_HIGH, LN2_LOW, any_lane, nearest, power_of_two

# (eʳ - 1 - r) / r², |r| ≤ ln 2 / 2
_EXP = (
    *(0.5000000000000013, 0.16666666666666702, 0.04166666666650954, 0.008333333333305347, 0.0013888888948717449),
    *(0.0001984126992119974, 2.4801488040050642e-05, 2.7557213064930805e-06, 2.763200242940308e-07),
    2.5118840096960305e-08,
)
# (2 atanh(s)/s - 2 - ⅔ s²) / s⁴ as a polynomial of s², |s| ≤ 0.172
LOG_SERIES = (
    *(0.3999999999977944, 0.2857142867249346, 0.22222204962608735, 0.18183262128111743, 0.15321191390621147),
    0.14729244728715118,
)
_THIRDS, _THIRDS_LOW = 2 / 3, 3.700743415417188e-17
_SMALLEST_NORMAL = 2.2250738585072014e-308


def all_parts(x: Num) -> tuple[Num, Num]:
    """(k, m) with x = 2ᵏ m and √½ ≤ m < √2 of positive numbers, denormal ones too; k as f64."""
    tiny = x < _SMALLEST_NORMAL
    k, m = wide.log_parts(tiny.where(x * 4503599627370496.0, x))
    return k - tiny.where(52.0, 0.0, k), m


def log_sum(k: Num, f: Num, series: tuple[float, ...], exact: bool = False) -> tuple[Num, Num]:
    """k ln 2 + log(1 + f), √½ ≤ 1 + f < √2, as a sum of two parts, the second far below the first.

    `exact`: what the term in s⁵ loses counts as well, and the parts do not overlap.
    """
    # log(1 + f) = 2s + ⅔ s³ + …, the first two terms in two parts; the low one of s is from the division's remainder.
    d = f + 2.0
    inverse = 1.0 / d
    s = f * inverse
    rest = ((-s).fma(d, f) - s * (f - (d - 2.0))) * inverse
    z = s * s
    z_low = s.fma(s, -z)
    third = z * _THIRDS
    cube = s * third
    low = s.fma(third, -cube) + s * (z.fma(_THIRDS, -third) + z.fma(_THIRDS_LOW, z_low * _THIRDS))
    if exact:
        p = z.poly(series)
        fourth = z * z
        fifth = fourth * p
        lost = fourth.fma(p, -fifth) + z.fma(z, -fourth).fma(p, (z + z) * z_low * p)
        low = (rest + rest).fma(z.fma(z, z) + 1.0, s.fma(fifth, s.fma(lost, low)))
    else:
        low = (rest + rest).fma(z + 1.0, (s * z * z).fma(z.poly(series), low))
    high = k.fma(LN2_HIGH, s + s)
    low = k.fma(LN2_LOW, (k.fma(LN2_HIGH, -high) + (s + s)) + low)
    sum = high + cube
    low = (high - sum) + cube + low
    if not exact:
        return sum, low
    total = sum + low
    return total, (sum - total) + low


def exp_parts(x: Num) -> tuple[Num, Num]:
    """(eʳ - 1, n) with x = n ln 2 + r, n as an i64."""
    n, whole = nearest(x * wide.LOG2_E)
    r = n.fma(-LN2_LOW, n.fma(-LN2_HIGH, x))
    return (r * r).fma(r.poly(_EXP), r), whole


def _reduced(x: Num, less: Num) -> tuple[Num, Num, Num]:
    """(r, lost, n) with x - less = n ln 2 + r + lost; n as an i64, |x| up to 800."""
    n, whole = nearest(x * wide.LOG2_E)
    first = n.fma(-LN2_HIGH, x)
    most = n.fma(-LN2_LOW, first)
    r = most - less
    return r, n.fma(-LN2_LOW, first - most) + ((most - r) - less), whole


def exp_terms(x: Num, less: Num) -> tuple[Num, Num, Num]:
    """(r, s, n) with e^(x - less) = (1 + r + s) 2ⁿ, s far below r; n as an i64, |x| up to 800."""
    r, lost, n = _reduced(x, less)
    return r, (r * r).fma(r.poly(_EXP), lost), n


def exp_exact(x: Num, less: Num) -> tuple[Num, Num]:
    """(a, n) with e^(x - less) = a 2ⁿ to little more than half an ulp of a; n as an i64, |x| up to 800."""
    r, lost, n = _reduced(x, less)
    square = r * r
    half, half_low = square * 0.5, r.fma(r, -square) * 0.5
    low = (r * square).fma(r.poly(_EXP[1:]), square.fma(_EXP[0] - 0.5, half_low + lost))
    first = r + 1.0
    second = first + half
    return second + (((1.0 - first) + r) + ((first - second) + half) + low), n


def exp_sum(x: Num) -> tuple[Num, Num, Num]:
    """(a, b, n) with eˣ = (a + b) 2ⁿ, b below half an ulp of a, n as an i64; |x| up to 750."""
    n, whole = nearest(x * wide.LOG2_E)
    first = n.fma(-LN2_HIGH, x)
    r = n.fma(-LN2_LOW, first)
    return *exp_near(r, n.fma(-LN2_LOW, first - r)), whole


def exp_near(r: Num, lost: Num) -> tuple[Num, Num]:
    """e^(r + lost) as a sum of two parts, |r| ≤ ln 2 / 2."""
    sum = r + 1.0
    rest = (r * r).fma(r.poly(_EXP), (1.0 - sum) + r + lost)
    value = sum + rest
    return value, (sum - value) + rest


def scaled(value: Num, n: Num, edge: Num) -> Num:
    """value · 2ⁿ, value positive and up to 2; in the lanes of `edge`, which are rare, 2ⁿ itself may be infinite or
    denormal, and the result be made as an integer (`Dialect.scale`)."""

    def in_two_steps() -> list[V]:
        slow = value.b.dialect.slow_denormals
        small = (n < -1021) & ~value.is_nan()
        raised = small.where(n + 1074, n) if slow else n
        half = (raised.cast("trunc", "i32") >> 1).cast("sext", "i64")
        result = value * power_of_two(half) * power_of_two(raised - half)
        return [small.where(result.rounded().as_float(), result).v if slow else result.v]

    return Num(value.b, value.b.branch(any_lane(edge), in_two_steps, lambda: [(value * power_of_two(n)).v])[0])

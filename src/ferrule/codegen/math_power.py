"""pow and cbrt of f64 lanes.

pow is exp(y log |x|), with the logarithm and the product as sums of two parts: what is lost before the exponential
counts a thousand times in large results. The coefficients are Chebyshev fits in 60-digit arithmetic.
"""

from __future__ import annotations

from ferrule.codegen import math_wide as wide
from ferrule.codegen.lanes import Num
from ferrule.codegen.libm import call_libm
from ferrule.codegen.math_exp import all_parts, exp_exact, log_sum, scaled
from ferrule.codegen.math_parts import branch, signed_power
from ferrule.codegen.math_wide import any_lane, limit, nearest

_INF = float("inf")
# (2 atanh(s)/s - 2 - ⅔ s²) / s⁴ as a polynomial of s², |s| ≤ 0.172, to 2⁻⁵⁷ of its size
_LOG_SERIES = (
    *(0.4, 0.28571428571429364, 0.22222222221655885, 0.18181818335392802, 0.1538459496251843),
    *(0.1333480469384731, 0.11706236339491206, 0.11723178623876518),
)
# ∛x to 2⁻¹⁶, √½ ≤ x ≤ √2
_ROOT = (0.45368850939437955, 0.8967392149830209, -0.5237666939876867, 0.2093460512115113, -0.03600019208330247)
_ROOT_2, _ROOT_HALF = 1.2599210498948732, 0.7937005259840998


def power(x: Num, y: Num) -> Num:
    if not x.b.dialect.fuses:  # what products lose must be known
        return call_libm("pow", x, y)
    size = abs(x)
    k, m = all_parts(size)
    high, low = log_sum(k, m - 1.0, _LOG_SERIES, exact=True)
    product = y * high
    less = -y.fma(low, y.fma(high, -product))
    # Beyond the limits results are infinite or zero whatever the rest is, which may be no number.
    inside = (product > -746.0) & (product < 710.0)
    value, n = exp_exact(limit(product, -746.0, 710.0), inside.where(less, 0.0))
    result = scaled(value, n, ~(abs(product) < 708.0))
    usual = (x > 0.0) & (x < _INF) & (abs(y) < _INF)

    def unusual() -> list[Num]:
        grows = size.eq(0.0).where(y < 0.0, y > 0.0)
        of_end = (size.eq(0.0) | size.eq(_INF)).where(grows.where(_INF, 0.0, x), result)
        # With y infinite, size 1 has been no number.
        of_end = (x.is_nan() | y.is_nan()).where(x + y, of_end)
        return [signed_power(x, y, of_end)]

    return branch(x.b, any_lane(~usual), unusual, lambda: [result])[0]


def cbrt(x: Num) -> Num:
    """A polynomial, a step of Halley's, and one of Newton's with what the cube loses."""
    if not x.b.dialect.fuses:
        return call_libm("cbrt", x)
    k, m = all_parts(abs(x))
    third, whole = nearest(k * (1 / 3))
    more = third.fma(-3.0, k)  # -1, 0 or 1
    up, down = more > 0.5, more < -0.5
    w = m * up.where(2.0, down.where(0.5, 1.0, x))
    t = m.poly(_ROOT) * up.where(_ROOT_2, down.where(_ROOT_HALF, 1.0, x))
    cube = t * t * t
    t = t * (cube + w + w) / (cube + cube + w)
    square = t * t
    lost = t.fma(t, -square) * t
    t = t - (square.fma(t, -w) + lost) / (square * 3.0)
    # The exponent of the root is a third of k: never out of range.
    result = (t * wide.power_of_two(whole)).copysign(x)
    return (x.eq(0.0) | ~(abs(x) < _INF)).where(x, result)

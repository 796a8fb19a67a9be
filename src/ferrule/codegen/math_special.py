"""Special functions on f64 lanes that have no counterpart in the C library."""

from __future__ import annotations

from collections.abc import Callable

from ferrule.codegen import math_wide as wide
from ferrule.codegen.lanes import Num
from ferrule.codegen.libm import call_libm
from ferrule.codegen.math_parts import branch

# B₂ₖ / 2k for k = 1, 2, …: the asymptotic series of digamma in 1/x².
_DIGAMMA = (*(1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12),)
_SHIFT = 10
_HALF_LOG_2PI = 0.9189385332046727


Formula = Callable[[Num], Num]


def digamma(x: Num, log: Formula, tan: Formula) -> Num:
    """ψ(x): the asymptotic series at x + 10 and the recurrence down; reflection for x < ½.

    ψ(1 - x) - ψ(x) = π / tan(πx), where the tangent takes only the fraction of x; `log` and `tan` set
    the accuracy. NaN at the poles, ±∞ at ±0.
    """
    reflect = x < 0.5
    at = reflect.where(1.0 - x, x)
    # Far out the series alone does; there the recurrence would add nothing.
    near = at < 1e8
    steps = at.const(0.0)
    for i in range(_SHIFT):
        steps = steps + 1.0 / (at + float(i))
    far = near.where(at + float(_SHIFT), at)
    inverse = 1.0 / far
    z = inverse * inverse
    value = log(far) - inverse * 0.5 - z * z.poly(_DIGAMMA) - near.where(steps, 0.0)
    value = at.eq(float("inf")).where(at, value)
    fraction = x - x.rint()
    tangent = tan(fraction * wide.PI)
    value = reflect.where(value - wide.PI / tangent, value)
    pole = (x < 0.0) & (fraction.eq(0.0) | x.eq(float("-inf")))
    value = pole.where(float("nan"), value)
    value = x.eq(0.0).where((-x.const(float("inf"))).copysign(-x), value)
    return x.is_nan().where(x, value)


# lgamma(2 + u)/u, |u| ≤ ½, and what Stirling's formula lacks, times x, as a polynomial of 1/x², x ≥ 4½; both to 2⁻³⁴.
_LGAMMA = (
    *(0.422784335099712, 0.3224670334030805, -0.06735230141878201, 0.020580810237382254),
    *(-0.007385533790601009, 0.002890465538658741, -0.0011930488029679174, 0.0005101431674031042),
    *(-0.00022089671270792807, 9.706122363774328e-05, -5.274432024723459e-05, 2.609721325828977e-05),
)
_STIRLING = (*(0.08333333319695044, -0.0027777401802171566, 0.0007908327875762323, -0.0005150438055527697),)


def lgamma(x: Num, log: Formula) -> Num:
    """log |Γ(x)| of an f32 in f64: Stirling's formula from 4½ on, below it by way of Γ(x + 1) = x Γ(x) near 2.

    Where x is negative log |Γ(x) Γ(-x)| is log π/|x sin πx|.
    """
    size = abs(x)
    far = size >= 4.5
    at, product = size, size.const(1.0)
    for _ in range(2):
        above = at >= 2.5
        at = above.where(at - 1.0, at)
        product = above.where(product * at, product)
    rising = product
    for _ in range(2):
        below = at < 1.5
        rising = below.where(rising * at, rising)
        at = below.where(at + 1.0, at)
    u = far.where(0.0, at - 2.0)
    factor = log(far.where(size, rising))
    near = u.fma(u.poly(_LGAMMA), (size < 1.5).where(-factor, factor))
    inverse = x.b.dialect.quotient(size.const(1.0), size)
    tail = inverse.fma((inverse * inverse).poly(_STIRLING), _HALF_LOG_2PI)
    result = far.where((size - 0.5).fma(factor, tail - size), near)
    result = (size.eq(0.0) | size.eq(float("inf"))).where(float("inf"), result)
    left = x < 0.0

    def with_left() -> list[Num]:
        return [left.where(_reflected(x, result, log), result)]

    return branch(x.b, wide.any_lane(left), with_left, lambda: [result])[0]


def _reflected(x: Num, other: Num, log: Formula) -> Num:
    """log |Γ(x)| of a negative x from that of -x. Where it is near zero both cancel, and the C library does it."""
    size, fraction = abs(x), abs(x - x.rint())
    angle = fraction * wide.PI
    sine = angle * (angle * angle).poly(wide.SIN_HALF)
    whole = fraction.eq(0.0) | size.eq(float("inf"))
    result = whole.where(float("inf"), log(wide.PI / ((x < 0.0) & ~whole).where(size * sine, 1.0)) - other)
    cancels = (x < 0.0) & (abs(result) < 0.06)

    def by_library() -> list[Num]:
        return [cancels.where(call_libm("lgamma", cancels.where(x, 1.0)), result)]

    return branch(x.b, wide.any_lane(cancels), by_library, lambda: [result])[0]


# i1e(x)/x for 0 ≤ x ≤ 8 as a polynomial of x/4 - 1, and i1e(x) √x above as one of 16/x - 1; both right to 2⁻³³.
_I1E = (
    *(0.04468770987560138, -0.06112433803079891, 0.06805759991164917, -0.06848260610657846, 0.06376740361193495),
    *(-0.055280041794345265, 0.044674574506091906, -0.033671324903352624, 0.023685998891311132, -0.015571511791736816),
    *(0.009584064162981668, -0.0055337510396800136, 0.003005398061240384, -0.001540983012037646, 0.0007453662875810667),
    *(-0.0003376268289921194, 0.0001470928301213064, -6.528420186914936e-05, 2.5586903747874807e-05),
    *(-6.546111825695594e-06, 2.4347100545341915e-06, -2.0803479381107735e-06, 6.760784704979494e-07),
)
_I1E_TAIL = (
    *(0.3893984590406843, -0.009749577457556757, -0.00021923651818323868, -1.5035268029521159e-05),
    *(-1.8287267250696446e-06, -3.584298887257214e-07, -1.178745830712382e-07, -3.5774358158058136e-08),
    -2.428794639808693e-09,
)


def bessel_i1e(x: Num) -> Num:
    """e^-|x| I₁(x), of an f32 in f64. The tail, with its root and quotients, is taken where a lane is in it."""
    size = abs(x)
    near = wide.limit(size, 0.0, 8.0)
    small = x.is_nan().where(x, near * (near * 0.25 - 1.0).poly(_I1E))

    def with_tail() -> list[Num]:
        far = (size > 8.0).where(size, 8.0)
        large = (16.0 / far - 1.0).poly(_I1E_TAIL) / far.intrinsic("sqrt")
        return [(size > 8.0).where(large, small)]

    return branch(x.b, x.b.dialect.any_beyond(x, 8.0), with_tail, lambda: [small])[0].copysign(x)

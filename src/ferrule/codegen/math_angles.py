"""Angles of f64 lanes: atan2 and what follows from it, within 0.52 ulp.

The coefficients are a minimax fit (Remez exchange in 50-digit arithmetic) with an error below 2⁻⁶⁰ of the angle.
"""

from __future__ import annotations

from ferrule.codegen import math_wide as wide
from ferrule.codegen.lanes import Num
from ferrule.codegen.llvm import V

# (atan(t)/t - 1)/t² as a polynomial of t², |t| ≤ 0.165
_ATAN = (
    *(-0.33333333333333176, 0.19999999999849472, -0.14285714237578628, 0.1111110384704366),
    *(-0.09090323492406335, 0.07666311136206745, -0.06063478520182821),
)
# The slopes that angles are taken from, the least slope that each serves, and their angles in two parts. The slopes
# are powers of two, and so near each other that a multiple of the longer side is taken from the other exactly.
_NEAR = (
    (0.25, 0.125, 0.24497866312686414, 1.0698755618734451e-17),
    (0.5, 0.36, 0.4636476090008061, 2.2698777452961687e-17),
    (1.0, 0.72, 0.7853981633974483, 3.061616997868383e-17),
)
# The second part of π/2 over the first; it is also that of π.
_PI_LOW = 3.8981718325193755e-17
# Between these neither a sum nor an inverse nor a remainder leaves the normal range.
_LEAST, _MOST = 2.0**-500, 2.0**500


def _angle(small: Num, large: Num, start: Num) -> Num:
    """start + atan(small / large), 0 ≤ small ≤ large; the start is 0, ±π/2 or -π."""
    slope = near = low = large.const(0.0)
    for c, least, angle, angle_low in _NEAR:
        here = small > large * least
        slope, near, low = here.where(c, slope), here.where(angle, near), here.where(angle_low, low)
    # tan(a - b) = (tan a - tan b) / (1 + tan a tan b), the quotient in two parts
    up = small - slope * large
    along = slope * small
    under = along + large
    under_low = (large - under) + along
    inverse = 1.0 / under
    q = up * inverse
    rest = q.fma(-under_low, (-q).fma(under, up))
    z = q * q
    tail = (q * z).fma(z.poly(_ATAN), rest * inverse)
    base = start + near
    sum = base + q
    lost = ((start - base) + near) + ((base - sum) + q)
    return sum + (lost + (tail + start.fma(_PI_LOW, low)))


def _sides_in_range(small: Num, large: Num) -> list[V]:
    """Sides of the same angle between which nothing leaves the range; two zeros give 0 and 1, two infinities ones."""
    factor = (large > _MOST).where(2.0**-20, (small < _LEAST).where(_MOST, 1.0, large))
    endless = large.eq(float("inf"))
    both = (small < float("inf")).where(0.0, small.eq(float("inf")).where(1.0, small))
    below = endless.where(both, small * factor)
    return [below.v, (endless | large.eq(0.0)).where(1.0, large * factor).v]


def atan2(y: Num, x: Num) -> Num:
    """The angle of (x, y), with C's signs at zeros and infinities."""
    a, b = abs(x), abs(y)
    steep, left = b > a, x.raw() < 0
    # ±(start ± angle): where it has to be subtracted, its difference from the start is, which has the other sign.
    half = x.const(wide.PI / 2)
    start = steep.where(left.where(half, -half), left.where(-wide.PI, 0.0, x))
    small, large = steep.where(a, b), steep.where(b, a)
    least, most = x.const(_LEAST).raw(), x.const(_MOST).raw()
    rare = wide.any_lane((large.raw() - least).above(most - least) | (-small.raw()).above(-least))
    sides = x.b.branch(rare, lambda: _sides_in_range(small, large), lambda: [small.v, large.v])
    small, large = (Num(x.b, v) for v in sides)
    angle = _angle(small, large, start)

    def with_tiny() -> list[V]:
        # the remainder of a quotient that is hardly normal is not
        tiny = start.eq(0.0) & (small < large * 2.0**-600)
        return [tiny.where(small / large, angle).v]

    return Num(x.b, x.b.branch(rare, with_tiny, lambda: [angle.v])[0]).copysign(y)


def atan(x: Num) -> Num:
    size = abs(x)
    size = (size > 2.0**100).where(2.0**100, size)
    steep = size > 1.0
    start = steep.where(-wide.PI / 2, 0.0, x)
    return _angle(steep.where(1.0, size), steep.where(size, 1.0), start).copysign(x)

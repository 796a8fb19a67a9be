"""Formulas for complex lanes, in f64 for both complex types.

complex<f32> is widened first: then nothing overflows, underflows or cancels visibly on the way, and one rounding stays.
The inverse functions are Kahan's ("Branch cuts for complex elementary functions", 1987), which keep the signs of zeros.
"""

from __future__ import annotations

from collections.abc import Callable

from ferrule.codegen import math_f64
from ferrule.codegen.complexes import Z, divide, length, magnitude, multiply
from ferrule.codegen.lanes import Num
from ferrule.codegen.math_parts import branch
from ferrule.errors import Internal
from ferrule.ir import Op

_INF = float("inf")


def apply(name: str, *operands: Z) -> Z:
    """The function StableHLO calls `name`."""
    if name not in FORMULAS:
        raise Internal(f"no formula for {name} of complex numbers", why="codegen/math_complex lacks it")
    narrow = operands[0][0].base == "float"
    re, im = FORMULAS[name](*((a.f64(), b.f64()) for a, b in operands))
    return (re.f32(), im.f32()) if narrow else (re, im)


def registers(op: Op) -> int:
    """How many registers of values a loop computes the op of at once, at most. Functions have many values, and those of
    complex<f32> two registers of each."""
    if op.name not in FORMULAS or op.name == "square" or not op.results[0].dtype.is_complex:
        return 4
    return 1 if op.name in _LONG and op.results[0].dtype.bits == 64 else 2


def _turned(f: Callable[[Z], Z]) -> Callable[[Z], Z]:
    """-i f(iz): how the circular functions follow from the hyperbolic ones, and the other way round."""

    def formula(z: Z) -> Z:
        re, im = f((-z[1], z[0]))
        return im, -re

    return formula


def exp(z: Z) -> Z:
    return _exp(z, math_f64.sin(z[1]), math_f64.cos(z[1]))


def _exp(z: Z, sin: Num, cos: Num) -> Z:
    """With the sine and the cosine of the imaginary part."""
    x, y = z
    # Near the limit eˣ overflows where eˣ cos y does not; then a factor of e¹⁰⁰ comes last.
    big = x > 700.0
    size = math_f64.exp(big.where(x - 100.0, x))
    factor = big.where(2.6881171418161356e43, 1.0, x)
    re = size * cos * factor
    im = size * sin * factor
    vanishes = x.eq(-_INF) & ~(abs(y) < _INF)
    whole = y.eq(0.0) | (x.eq(_INF) & ~(abs(y) < _INF))
    re = whole.where(size * factor, vanishes.where(0.0, re))
    return re, y.eq(0.0).where(y, vanishes.where(0.0, im))


def expm1(z: Z) -> Z:
    x, y = z
    less, sin, cos = math_f64.expm1(x), math_f64.sin(y), math_f64.cos(y)
    # 1 - cos y from the sine, where it would cancel
    gap = (cos > 0.0).where(sin * sin / (cos + 1.0), 1.0 - cos)
    astray = ~(abs(y) < _INF)  # NaN also at -inf, as in XLA
    return y.eq(0.0).where(less, less * cos - gap), astray.where(float("nan"), _exp(z, sin, cos)[1])


def _log_size(x: Num, y: Num) -> Num:
    """log |x + iy|; near the unit circle from the distance to it."""
    a, b = abs(x), abs(y)
    swap = b > a
    large, small = swap.where(b, a), swap.where(a, b)
    near = math_f64.log1p((large - 1.0) * (large + 1.0) + small * small) * 0.5
    return ((large > 0.5) & (large < 2.0)).where(near, math_f64.log(magnitude((x, y))))


def log(z: Z) -> Z:
    x, y = z
    return _log_size(x, y), math_f64.atan2(y, x)


def log1p(z: Z) -> Z:
    x, y = z
    small = (abs(x) < 0.5) & (abs(y) < 0.5)
    near = math_f64.log1p(x * (x + 2.0) + y * y) * 0.5
    return small.where(near, _log_size(x + 1.0, y)), math_f64.atan2(y, x + 1.0)


def _scale(z: Z) -> tuple[Num, Num]:
    """A power of four by which z comes into a range where squares are safe, and the root of its inverse."""
    x = abs(z[0])
    size = x + abs(z[1])
    huge, tiny = size > 2.0**500, size < 2.0**-500
    return huge.where(2.0**-600, tiny.where(2.0**600, 1.0, x)), huge.where(2.0**300, tiny.where(2.0**-300, 1.0, x))


def sqrt(z: Z) -> Z:
    x, y = z
    up, down = _scale(z)
    a, b = x * up, y * up
    root = ((abs(a) + length(a, b)) * 0.5).intrinsic("sqrt")
    root = root * down
    other = root.eq(0.0).where(0.0, abs(y) / (root + root))
    right = ~(x < 0.0)
    re, im = right.where(root, other), right.where(other, root).copysign(y)
    re = x.eq(-_INF).where(y.is_nan().where(y, 0.0), re)
    im = x.eq(_INF).where(y.is_nan().where(y, y.const(0.0).copysign(y)), im)
    re = x.eq(_INF).where(_INF, re)
    im = x.eq(-_INF).where(y.const(_INF).copysign(y), im)
    endless = abs(y).eq(_INF)
    flat = y.eq(0.0) & (x >= 0.0)
    return endless.where(_INF, re), endless.where(y, flat.where(y, im))


def rsqrt(z: Z) -> Z:
    x, y = z
    up, down = _scale(z)
    a, b = x * up, y * up
    size = length(a, b)
    root = ((abs(a) + size) * 0.5).intrinsic("sqrt")
    # The conjugate of the root over the magnitude; what the scale took comes back last.
    large, small = root / size / down, abs(y) / ((root + root) * down) / size * up
    right = ~(x < 0.0)
    near = right.where(large, small), right.where(small, large).copysign(-y)
    plain = divide((x.const(1.0), x.const(0.0)), sqrt(z))
    usual = (size > 0.0) & (size < _INF)
    return usual.where(near[0], plain[0]), usual.where(near[1], plain[1])


def tanh(z: Z) -> Z:
    x, y = z
    t = math_f64.sin(y) / math_f64.cos(y)
    s = math_f64.sinh((abs(x) > 20.0).where(20.0, x))
    beta = t * t + 1.0
    below = beta * s * s + 1.0
    near = [beta * (s * s + 1.0).intrinsic("sqrt") * s / below, t / below]

    def with_tail() -> list[Num]:
        far = abs(x) > 20.0
        # 4 sin y cos y e^(-2|x|), written with the tangent
        tail = t / beta * 4.0 * math_f64.exp(abs(x) * -2.0)
        return [far.where(x.const(1.0).copysign(x), near[0]), far.where(tail, near[1])]

    re, im = branch(x.b, x.b.dialect.any_beyond(x, 20.0), with_tail, lambda: near)
    im = abs(x).eq(_INF).where(x.const(0.0).copysign((abs(y) < _INF).where(t, y)), im)
    # No angle: both parts are NaN unless x is infinite, as in XLA; C's tanh keeps a zero x.
    astray = ~(abs(y) < _INF) & ~abs(x).eq(_INF)
    nan = float("nan")
    return astray.where(nan, x.eq(0.0).where(x, re)), astray.where(nan, y.eq(0.0).where(y, im))


def _hyperbolic(x: Num) -> tuple[Num, Num, Num]:
    """sinh, cosh and a factor for both: beyond 700 they overflow where their products with a cosine may not."""
    big = abs(x) > 700.0
    near = big.where((abs(x) - 100.0).copysign(x), x)
    return math_f64.sinh(near), math_f64.cosh(near), big.where(2.6881171418161356e43, 1.0, x)


def sinh(z: Z) -> Z:
    x, y = z
    s, c, factor = _hyperbolic(x)
    re = y.eq(0.0).where(s, s * math_f64.cos(y)) * factor
    # Without an angle both parts are NaN, also at an infinite x, where C has an infinite real part; XLA has none.
    return (x.eq(0.0) & ~(abs(y) < _INF)).where(x, re), y.eq(0.0).where(y, c * math_f64.sin(y) * factor)


def cosh(z: Z) -> Z:
    x, y = z
    s, c, factor = _hyperbolic(x)
    flat = x.eq(0.0) | y.eq(0.0)
    zero = x.const(0.0).copysign((x.raw() ^ y.raw()).as_float())
    return y.eq(0.0).where(c, c * math_f64.cos(y)) * factor, flat.where(zero, s * math_f64.sin(y) * factor)


def logistic(z: Z) -> Z:
    e = exp((-z[0], -z[1]))
    return divide((z[0].const(1.0), z[0].const(0.0)), (e[0] + 1.0, e[1]))


def _endless(z: Z) -> Num:
    return abs(z[0]).eq(_INF) | abs(z[1]).eq(_INF)


def asin(z: Z) -> Z:
    x, y = z
    far = _endless(z)
    below, above = sqrt((1.0 - x, -y)), sqrt((x + 1.0, y))
    product = below[0] * above[0] - below[1] * above[1]
    im = math_f64.asinh(below[0] * above[1] - below[1] * above[0])
    return math_f64.atan2(x, far.where(abs(y), product)), far.where(x.const(_INF).copysign(y), im)


def acos(z: Z) -> Z:
    x, y = z
    far = _endless(z)
    below, above = sqrt((1.0 - x, -y)), sqrt((x + 1.0, y))
    angle = math_f64.atan2(far.where(abs(y), below[0]), far.where(x, above[0]))
    im = math_f64.asinh(above[0] * below[1] - above[1] * below[0])
    return far.where(angle, angle * 2.0), far.where(x.const(_INF).copysign(-y), im)


def acosh(z: Z) -> Z:
    x, y = z
    far = _endless(z)
    below, above = sqrt((x - 1.0, y)), sqrt((x + 1.0, y))
    re = math_f64.asinh(below[0] * above[0] + below[1] * above[1])
    angle = math_f64.atan2(far.where(y, below[1]), far.where(x, above[0]))
    return far.where(_INF, re), far.where(angle, angle * 2.0)


def atanh(z: Z) -> Z:
    x, y = z
    size = abs(x)
    gap = 1.0 - size
    re = (math_f64.log1p(size * 4.0 / (gap * gap + y * y)) * 0.25).copysign(x)
    im = math_f64.atan2(y + y, gap * (size + 1.0) - y * y) * 0.5
    endless = abs(x).eq(_INF) | abs(y).eq(_INF)
    re = endless.where(x.const(0.0).copysign(x), re)
    return re, endless.where(x.const(1.5707963267948966).copysign(y), im)


def power(z: Z, w: Z) -> Z:
    """exp(w log z); anything to the power of 0 is 1, and 0 to a power with a positive real part is 0."""
    re, im = exp(multiply(w, log(z)))
    empty = z[0].eq(0.0) & z[1].eq(0.0) & (w[0] > 0.0)
    none = w[0].eq(0.0) & w[1].eq(0.0)
    return none.where(1.0, empty.where(0.0, re)), (none | empty).where(0.0, im)


def cbrt(z: Z) -> Z:
    re, im = log(z)
    return exp((re * (1 / 3), im * (1 / 3)))


def atan2(y: Z, x: Z) -> Z:
    """-i log((x + iy) / √(x² + y²))."""
    over = (x[0] - y[1], x[1] + y[0])
    xx, yy = multiply(x, x), multiply(y, y)
    re, im = log(divide(over, sqrt((xx[0] + yy[0], xx[1] + yy[1]))))
    return im, -re


# Functions of both parts, each by several others.
_LONG = frozenset({"exponential_minus_one", "sinh", "cosh", "tan", "tanh", "power", "cbrt", "logistic"})
FORMULAS: dict[str, Callable[..., Z]] = {
    "square": lambda z: multiply(z, z),
    "exponential": exp,
    "exponential_minus_one": expm1,
    "log": log,
    "log_plus_one": log1p,
    "sine": _turned(sinh),
    "cosine": lambda z: cosh((-z[1], z[0])),
    "tan": _turned(tanh),
    "atan": _turned(atanh),
    "asinh": _turned(asin),
    **{f.__name__: f for f in (sqrt, rsqrt, cbrt, tanh, sinh, cosh, logistic, asin, acos, acosh, atanh)},
    **{f.__name__: f for f in (power, atan2)},
}

"""Complex arithmetic on pairs of lane values.

complex<f32> divides in f64, and takes magnitudes there where their squares might leave the range; complex<f64> scales.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferrule.codegen.lanes import Num
from ferrule.codegen.llvm import V
from ferrule.codegen.math_parts import any_above, branch

if TYPE_CHECKING:
    from ferrule.codegen.scalar import Pair, Scalars

Z = tuple[Num, Num]
# Bits of f32.
_BITS_2_M70, _BITS_2_100 = 0x1C800000, 0x71800000


def nums(s: Scalars, a: Pair) -> Z:
    return s.num(a[0]), s.num(a[1])


def pair(z: Z) -> Pair:
    return z[0].v, z[1].v


def add(s: Scalars, a: Pair, b: Pair) -> Pair:
    (x, y), (u, w) = nums(s, a), nums(s, b)
    return (x + u).v, (y + w).v


def sub(s: Scalars, a: Pair, b: Pair) -> Pair:
    (x, y), (u, w) = nums(s, a), nums(s, b)
    return (x - u).v, (y - w).v


def multiply(a: Z, b: Z) -> Z:
    (x, y), (u, w) = a, b
    if x.base == "float":
        return x * u - y * w, x * w + y * u
    return _two_products(x, u, -y, w), _two_products(x, w, y, u)


def _two_products(a: Num, b: Num, c: Num, d: Num) -> Num:
    """a b + c d within 1.5 ulp, although the products may cancel; plain if not finite.

    Kahan's way (Jeannerod, Louvet, Muller, 2013): what rounding lost of one product is added at the end.
    """
    product = c * d
    close = a.fma(b, product)
    lost = c.fma(d, -product)
    sum = close + lost
    # Adding a zero would take a zero's sign away.
    return (sum.is_nan() | lost.eq(0.0)).where(close, sum)


def mul(s: Scalars, a: Pair, b: Pair) -> Pair:
    return pair(multiply(nums(s, a), nums(s, b)))


def div(s: Scalars, a: Pair, b: Pair) -> Pair:
    p, q = nums(s, a), nums(s, b)
    if p[0].base == "double" or not s.b.dialect.has_f64:
        return pair(divide(p, q))
    re, im = divide((p[0].f64(), p[1].f64()), (q[0].f64(), q[1].f64()))
    return re.f32().v, im.f32().v


def divide(a: Z, b: Z) -> Z:
    """Smith's division: scaled by the larger part of the divisor; a zero divisor divides each part by it."""
    (x, y), (u, w) = a, b
    real_larger = abs(u) >= abs(w)
    large, small = real_larger.where(u, w), real_larger.where(w, u)
    zero = (abs(u) + abs(w)).eq(0.0)  # of both: beside NaN, which is never the larger, a zero would hide it
    ratio = zero.where(0.0, small / large)
    scale = zero.where(abs(large), large + small * ratio)
    # (x + iy) / (u + iw): with the parts of the divisor exchanged, so are those of the dividend (up to sign).
    p, q = real_larger.where(x, y), real_larger.where(y, x)
    re = zero.where(p, p + q * ratio) / scale
    im = zero.where(q, q - p * ratio) / scale
    return re, real_larger.where(im, -im)


def magnitude(z: Z) -> Num:
    """|z| without overflow or underflow on the way; infinite if a part is."""
    x, y = abs(z[0]), abs(z[1])
    if x.base == "float" and x.b.dialect.has_f64:
        # Lanes of 0, of NaN, and those whose squares' lower halves might not be normal, take all the long way.
        rare = any_above((x * x + y * y).raw() - _BITS_2_M70, _BITS_2_100 - _BITS_2_M70)
        return branch(x.b, rare, lambda: [_wide_magnitude(x, y)], lambda: [length(x, y)])[0]
    # Scaled by powers of two, so that the squares stay in range.
    edge, scale = (2.0**500, 2.0**600) if x.base == "double" else (2.0**60, 2.0**80)
    huge, tiny = (x > edge) | (y > edge), (x < 1 / edge) & (y < 1 / edge)
    up = huge.where(1 / scale, tiny.where(scale, 1.0, x))
    size = length(x * up, y * up) * huge.where(scale, tiny.where(1 / scale, 1.0, x))
    return _endless(x, y).where(float("inf"), size)


def _wide_magnitude(x: Num, y: Num) -> Num:
    """The same of f32 in f64, whose range the squares do not leave."""
    wide, tall = x.f64(), y.f64()
    size = (wide * wide + tall * tall).intrinsic("sqrt").f32()
    return _endless(x, y).where(float("inf"), size)


def _endless(x: Num, y: Num) -> Num:
    return x.eq(float("inf")) | y.eq(float("inf"))


def length(x: Num, y: Num) -> Num:
    """√(x² + y²) to little more than half an ulp, for f64 whose squares are in range."""
    swap = abs(y) > abs(x)
    x, y = swap.where(y, x), swap.where(x, y)
    xx, yy = x * x, y * y
    sum = xx + yy
    lost = (xx - sum) + yy + x.fma(x, -xx) + y.fma(y, -yy)
    root = sum.intrinsic("sqrt")
    rest = ((-root).fma(root, sum) + lost) * 0.5
    return root.eq(0.0).where(root, root + rest / root)


def abs_(s: Scalars, a: Pair) -> V:
    return magnitude(nums(s, a)).v


def sign(s: Scalars, a: Pair) -> Pair:
    """z / |z|, and 0 for 0."""
    z = nums(s, a)
    size = magnitude(z)
    zero = size.eq(0.0)
    return zero.where(0.0, z[0] / size).v, zero.where(0.0, z[1] / size).v


def choose(s: Scalars, a: Pair, b: Pair, larger: bool) -> Pair:
    """The maximum or minimum in lexicographic order; the first operand that has a NaN, if one has."""
    (x, y), (u, w) = nums(s, a), nums(s, b)
    first = (x > u) | (x.eq(u) & (y >= w)) if larger else (x < u) | (x.eq(u) & (y <= w))
    first = (first | x.is_nan() | y.is_nan()) & ~((u.is_nan() | w.is_nan()) & ~(x.is_nan() | y.is_nan()))
    return first.where(x, u).v, first.where(y, w).v

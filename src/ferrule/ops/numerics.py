"""NumPy meaning of scalar arithmetic for every element type: how values widen, round and wrap.

Narrow floats compute in f32 and round once per op. Functions that are not exactly rounded by IEEE (exp, sin, …)
compute in a wider format and round once, so that the result is right to half an ulp and can judge faster code.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from ferrule.ir.types import BY_NUMPY, DType

Array = np.ndarray
# 80-bit on x86-64; where long double is double, f64 functions are as good as the C library's.
_WIDE_REAL, _WIDE_COMPLEX = np.longdouble, np.clongdouble


def dtype_of(x: Array) -> DType:
    """The element type of an array."""
    return BY_NUMPY[x.dtype]


def silent() -> np.errstate:
    """Overflow, invalid and division are values here, not warnings."""
    return np.errstate(all="ignore")


def widen(x: Array) -> Array:
    """The same values in a type in which NumPy computes: narrow floats as f32, sub-byte integers as 8 bits."""
    d = dtype_of(x)
    if d.is_float and d.bits < 32:
        return x.astype(np.float32)
    if d.is_int and d.bits < 8:
        return x.astype(np.int8 if d.kind == "int" else np.uint8)
    return x


def narrow(x: Array, dtype: DType) -> Array:
    """Values that were computed in a wider type, rounded (floats) or wrapped (integers) to `dtype`."""
    x = np.asarray(x)
    if x.dtype == dtype.numpy:
        return x
    with silent():
        if dtype.is_int and dtype.bits < 8:
            shift = 8 - dtype.bits
            x = x.astype(np.int8 if dtype.kind == "int" else np.uint8)
            return ((x << shift) >> shift).astype(dtype.numpy)
        if dtype.is_float and dtype.bits < 32:
            return x.astype(np.float32).astype(dtype.numpy)
        return x.astype(dtype.numpy)


def precise(x: Array) -> Array:
    """The same values in a wider format, for functions that are rounded once at the end."""
    d = dtype_of(x)
    if d.is_complex:
        return x.astype(np.complex128 if d.bits == 32 else _WIDE_COMPLEX)
    return x.astype(np.float64 if d.bits <= 32 else _WIDE_REAL)


def exact(formula: Callable[..., Array]) -> Callable[..., Array]:
    """Arithmetic that NumPy does right in the operand's own (or the widened) type."""

    def apply(*xs: Array) -> Array:
        with silent():
            return narrow(formula(*map(widen, xs)), dtype_of(xs[0]))

    return apply


def rounded(formula: Callable[..., Array]) -> Callable[..., Array]:
    """A function that is computed wide and rounded once."""

    def apply(*xs: Array) -> Array:
        with silent():
            return narrow(formula(*map(precise, xs)), dtype_of(xs[0]))

    return apply


def bits_of(x: Array) -> Array:
    """The bit patterns of real values as unsigned integers."""
    return np.asarray(x).view(f"u{x.dtype.itemsize}")


def total_order_key(x: Array) -> Array:
    """Signed integers that order floats as IEEE totalOrder does: -NaN < -inf < … < -0 < +0 < … < inf < NaN."""
    bits = np.asarray(x).view(f"i{x.dtype.itemsize}")
    width = 8 * x.dtype.itemsize
    used = dtype_of(x).bits
    if used < width:  # f4 in a byte: bring the sign to the top
        bits = (bits << (width - used)).astype(bits.dtype)
    key = bits ^ ((bits >> (width - 1)) & np.array((1 << (width - 1)) - 1, bits.dtype))
    name = dtype_of(x).name
    if name == "f8E8M0FNU":  # no sign: the codes are in order, NaN last
        return np.asarray(x).view(np.uint8)
    if name.endswith("NUZ"):  # the one NaN has the bits of -0; it goes last, as the positive NaNs of other formats do
        return np.where(bits == -128, np.int16(128), key.astype(np.int16))
    return key


def to_integer(x: Array, dtype: DType) -> Array:
    """Float → integer as XLA does: toward zero, saturating, NaN gives 0."""
    wide = widen(x)
    wide = wide if wide.dtype == np.float64 else wide.astype(np.float64)
    signed = dtype.kind == "int"
    low = -(1 << (dtype.bits - 1)) if signed else 0
    high = (1 << (dtype.bits - (1 if signed else 0))) - 1
    with silent():
        t = np.trunc(np.where(np.isnan(wide), 0.0, wide))
        over, under = t >= float(high + 1), t <= float(low)
        inside = np.where(over | under, 0.0, t).astype(np.int64 if signed else np.uint64)
    whole = np.where(over, high, np.where(under, low, inside)).astype(inside.dtype)
    return narrow(whole, dtype)


def convert(x: Array, dtype: DType) -> Array:
    """A value in another element type, as `stablehlo.convert` means it."""
    d = dtype_of(x)
    if d == dtype:
        return x
    with silent():
        if dtype.kind == "bool":
            return np.asarray(widen(x) != 0)
        if d.is_complex and not dtype.is_complex:
            x, d = np.asarray(x.real), d.part
        if d.is_float and dtype.is_int:
            return to_integer(x, dtype)
        if d.is_float and dtype.is_float:
            return widen(x).astype(dtype.numpy)
        return narrow(x.astype(np.uint8) if d.kind == "bool" else widen(x), dtype)


# ---- integers ----------------------------------------------------------------------------------------------------


def int_divide(x: Array, y: Array) -> Array:
    """Truncating division; x / 0 is -1 (all ones), the smallest value / -1 wraps to itself."""
    zero = y == 0
    safe = np.where(zero, y.dtype.type(1), y)
    if np.issubdtype(y.dtype, np.signedinteger):
        lowest = np.iinfo(y.dtype).min
        wraps = (x == lowest) & (safe == -1)
        safe = np.where(wraps, y.dtype.type(1), safe)
        quotient = x // safe
        quotient = quotient + ((x % safe != 0) & ((x < 0) != (safe < 0))).astype(y.dtype)
        return np.where(zero, y.dtype.type(-1), quotient)
    return np.where(zero, np.iinfo(y.dtype).max, x // safe).astype(y.dtype)


def int_remainder(x: Array, y: Array) -> Array:
    """The remainder with the sign of x; x % 0 is x, the smallest value % -1 is 0."""
    zero = y == 0
    minus = (y == -1) if np.issubdtype(y.dtype, np.signedinteger) else np.zeros_like(zero)
    safe = np.where(zero | minus, y.dtype.type(1), y)
    return np.where(zero, x, np.where(minus, y.dtype.type(0), np.fmod(x, safe)))


def int_power(x: Array, y: Array) -> Array:
    """Repeated multiplication that wraps; a negative exponent gives 0 unless |x| is 1."""
    x, y = np.broadcast_arrays(x, y)
    result, base = np.ones_like(x), x.copy()
    negative = y < 0
    rest = np.where(negative, 0, y).astype(np.uint64)
    while rest.any():
        result = np.where(rest & np.uint64(1), result * base, result)
        base = base * base
        rest = rest >> np.uint64(1)
    odd = (y & y.dtype.type(1)) != 0
    inverse = np.where(x == 1, 1, np.where((x == -1), np.where(odd, -1, 1), 0)) if negative.any() else 0
    return np.where(negative, inverse, result).astype(x.dtype)


def shift(kind: str) -> Callable[[Array, Array], Array]:
    """ "left", "logical" or "arithmetic"; amounts of the width or more (or negative) shift everything out."""

    def apply(x: Array, y: Array) -> Array:
        d = dtype_of(x)
        wide, amount = widen(x), widen(y).astype(np.int64)
        outside = (amount < 0) | (amount >= d.bits)
        amount = np.where(outside, d.bits - 1, amount)
        unsigned = np.dtype(f"u{wide.dtype.itemsize}")
        with silent():
            if kind == "arithmetic":
                signed = np.dtype(f"i{wide.dtype.itemsize}")
                gap = signed.type(8 * wide.dtype.itemsize - d.bits)
                moved = ((wide.astype(signed) << gap) >> gap) >> amount.astype(signed)
                return narrow(moved.astype(wide.dtype), d)
            raw = wide.astype(unsigned)
            if d.bits < 8:
                raw = raw & unsigned.type((1 << d.bits) - 1)
            moved = raw << amount.astype(unsigned) if kind == "left" else raw >> amount.astype(unsigned)
            return narrow(np.where(outside, unsigned.type(0), moved).astype(wide.dtype), d)

    return apply


def count_ones(x: Array) -> Array:
    """The number of one bits."""
    d = dtype_of(x)
    raw = widen(x).view(f"u{widen(x).dtype.itemsize}") & np.uint64((1 << d.bits) - 1)
    return narrow(np.bitwise_count(raw), d)


def count_leading_zeros(x: Array) -> Array:
    """The number of zero bits above the highest one."""
    d = dtype_of(x)
    raw = (widen(x).view(f"u{widen(x).dtype.itemsize}") & np.uint64((1 << d.bits) - 1)).astype(np.uint64)
    for step in (1, 2, 4, 8, 16, 32):
        raw = raw | (raw >> np.uint64(step))
    return narrow(d.bits - np.bitwise_count(raw).astype(np.int64), d)


def multiply_high(x: Array, y: Array) -> Array:
    """The high half of the double-width product."""
    d = dtype_of(x)
    product = widen(x).astype(object) * widen(y).astype(object)
    high = np.asarray(product, dtype=object) >> d.bits
    return np.asarray(high).astype(np.int64 if d.kind == "int" else np.uint64).astype(d.numpy)


# ---- floats ------------------------------------------------------------------------------------------------------


def choose(larger: bool) -> Callable[[Array, Array], Array]:
    """maximum or minimum: NaN if either is NaN, -0 below +0; complex numbers in lexicographic order."""

    def apply(x: Array, y: Array) -> Array:
        d = dtype_of(x)
        a, b = widen(x), widen(y)
        if d.kind == "bool":
            return np.asarray(a | b if larger else a & b)
        if d.is_complex:
            first = (a.real > b.real) | ((a.real == b.real) & (a.imag >= b.imag))
            pick = np.where(first, a, b) if larger else np.where(first, b, a)
            return np.asarray(np.where(np.isnan(a), a, np.where(np.isnan(b), b, pick)))
        with silent():
            best = np.maximum(a, b) if larger else np.minimum(a, b)
            if d.is_float:
                swap = np.signbit(a) if larger else ~np.signbit(a)
                best = np.where(a == b, np.where(swap, b, a), best)
            return narrow(best, d)

    return apply


def sign(x: Array) -> Array:
    """-1, 0 or 1 in the operand's type; keeps -0 and NaN; z / |z| for complex z."""
    d = dtype_of(x)
    wide = widen(x)
    with silent():
        if d.is_complex:
            size = np.abs(precise(x))
            unit = np.where(size == 0, 0, precise(x) / np.where(size == 0, 1, size))
            return narrow(unit, d)
        if d.is_float:
            return narrow(np.where((wide == 0) | np.isnan(wide), wide, np.copysign(np.ones_like(wide), wide)), d)
        return narrow(np.sign(wide), d)


def round_away(x: Array) -> Array:
    """To the nearest integer, halves away from zero."""
    whole = np.trunc(x)
    step = np.copysign(np.ones_like(x), x)
    return np.copysign(np.where(np.abs(x - whole) >= 0.5, whole + step, whole), x)


def logistic(x: Array) -> Array:
    """1 / (1 + e⁻ˣ), without overflow on either side."""
    if np.iscomplexobj(x):
        return 1 / (1 + np.exp(-x))
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def reduce_precision(x: Array, exponent_bits: int, mantissa_bits: int) -> Array:
    """Rounds to a float with fewer exponent and mantissa bits, kept in the operand's type; denormals become 0.

    With as many exponent bits as the type has, its own denormals stay.
    """
    d = dtype_of(x)
    if d.bits < 32 and exponent_bits == _exponent_bits(d):
        return _fewer_digits(x, mantissa_bits)
    wide = x if d.bits >= 32 else x.astype(np.float32)
    width, mantissa = (64, 52) if wide.dtype == np.float64 else (32, 23)
    exponent = width - 1 - mantissa
    word = np.dtype(f"u{width // 8}").type
    bits = wide.view(f"u{width // 8}")
    with silent():
        if mantissa_bits < mantissa:
            drop = mantissa - mantissa_bits
            last = (bits >> word(drop)) & word(1)
            bits = (bits + last + word((1 << (drop - 1)) - 1)) & ~word((1 << drop) - 1)
        if exponent_bits < exponent:
            bias, less = (1 << (exponent - 1)) - 1, (1 << (exponent_bits - 1)) - 1
            field = bits & word(((1 << exponent) - 1) << mantissa)
            zero = bits & word(1 << (width - 1))
            infinite = zero | word(((1 << exponent) - 1) << mantissa)
            bits = np.where(field > word((bias + less) << mantissa), infinite, bits)
            bits = np.where(field <= word((bias - less) << mantissa), zero, bits)
    out = np.where(np.isnan(wide), wide, bits.astype(word).view(wide.dtype))
    return narrow(out, d)


def _exponent_bits(d: DType) -> int:
    info = ml_dtypes.finfo(d.numpy)
    return d.bits - info.nmant - (d.name != "f8E8M0FNU")


def _fewer_digits(x: Array, mantissa_bits: int) -> Array:
    """Rounds a narrow float to a multiple of the unit that a number of its size has with fewer digits."""
    d = dtype_of(x)
    info = ml_dtypes.finfo(d.numpy)
    with silent():
        wide = x.astype(np.float64)
        exponent = np.maximum(np.frexp(np.where(np.isfinite(wide), wide, 1))[1] - 1, info.minexp)
        unit = np.ldexp(1.0, exponent - min(mantissa_bits, info.nmant))
        rounded = np.where(np.isfinite(wide), np.copysign(np.rint(wide / unit) * unit, wide), wide)
        return narrow(rounded, d)

"""Integer arithmetic on lanes: division that never traps, shifts of any amount, sub-byte types, to and from floats.

2- and 4-bit values live in i8, extended as their type says; `wrap` restores that after an operation.
"""

from __future__ import annotations

import re

from ferrule.codegen.lanes import Num, suffix
from ferrule.codegen.llvm import vector
from ferrule.codegen.math_parts import branch
from ferrule.codegen.math_wide import any_lane
from ferrule.ir.types import DType


def normal(dtype: DType, value: int) -> int:
    """A Python integer wrapped to the type."""
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "int" and value >> (dtype.bits - 1) else value


def wrap(dtype: DType, x: Num) -> Num:
    """Restores the extension of a sub-byte value; other types wrap by themselves."""
    if dtype.bits >= 8:
        return x
    if dtype.kind == "uint":
        return x & ((1 << dtype.bits) - 1)
    return (x << (8 - dtype.bits)) >> (8 - dtype.bits)


def unsigned(dtype: DType, x: Num) -> Num:
    """The value's bits with zeros above them."""
    return x & ((1 << dtype.bits) - 1) if dtype.bits < 8 else x


def _quotient(dtype: DType, x: Num, y: Num) -> Num:
    """x / y where the result is defined; any value elsewhere, without a trap.

    Vectors of up to 32 bits divide as floats with more bits than the quotient needs, which is exact after truncation:
    processors have no vector integer division. Division by a constant is left to LLVM, which multiplies, but that of
    64 bits, where it would multiply lane by lane.
    """
    signed = dtype.kind == "int"
    if x.lanes > 1 and x.bits <= 32 and y.v.ref[0] == "%":
        base = "float" if x.bits <= 16 else "double"
        to = "sitofp" if signed else "uitofp"
        safe = y.eq(0).where(1, y)  # x / 0 stays in range
        ratio = x.cast(to, base) / safe.cast(to, base)
        if x.bits <= 16:  # one type wider, so that lowest / -1 is in range
            return ratio.cast("fptosi", "i32").cast("trunc", x.base)
        # Beside 2 ** 52 a whole number is what the last bits say, modulo 2 ** 32. AVX2 converts f64 to i32 only, which
        # does not hold lowest / -1.
        return _as_integer(ratio.intrinsic("trunc")).cast("trunc", x.base)
    if x.lanes > 1 and x.bits == 64 and x.b.dialect.has_f64 and not _is_power_of_two(y):
        return _quotient64(signed, x, y)
    return _whole_quotient(signed, x, y)


def _is_power_of_two(y: Num) -> bool:
    """Whether this is a constant that is a power of two, or the negative of one."""
    if y.v.ref[0] == "%":
        return False
    value = abs(int(re.findall(r"-?\d+", y.v.ref)[-1]))
    return value & (value - 1) == 0


_BESIDE = 1.5 * 2.0**52  # a whole number below 2 ** 51 in magnitude, added to this, is the last bits of the sum
_BESIDE_BITS = 0x4338000000000000


def _as_integer(x: Num) -> Num:
    """Whole numbers in f64, below 2 ** 51 in magnitude, as i64 plus `_BESIDE_BITS`, whose lower half is 0."""
    return (x + _BESIDE).cast("bitcast", "i64")


def _quotient64(signed: bool, x: Num, y: Num) -> Num:
    """Quotients of 64 bits; numbers that f64 holds, which nearly all are, as f64.

    Below 2 ** 53 a quotient that is no whole number is further from the next one than rounding goes. Numbers below
    2 ** 51 go to f64 and back by an addition, as AVX2 has no such conversions.
    """
    b = x.b
    key = (b.current, signed, x.v.ref, y.v.ref)
    if key in b.quotients:  # the remainder asks for it again
        return Num(b, b.quotients[key])
    zero = 1 << 51 if signed else 0
    outside = (x + zero) | (y + zero)
    while outside.lanes * 64 > b.dialect.register_bits:
        outside = outside.half(0) | outside.half(1)

    def short() -> list[Num]:
        top, bottom = ((n + _BESIDE_BITS).as_float() - _BESIDE for n in (x, y.eq(0).where(1, y)))
        return [_as_integer((top / bottom).intrinsic("trunc")) - _BESIDE_BITS]

    large = any_lane(outside.lshr(52 if signed else 51).ne(0))
    found = branch(b, large, lambda: [_whole_quotient(signed, x, y)], short)[0]
    b.quotients[b.current, signed, x.v.ref, y.v.ref] = found.v
    return found


def _whole_quotient(signed: bool, x: Num, y: Num) -> Num:
    """The processor's own division, lane by lane, which traps for what is replaced here."""
    bad = y.eq(0)
    if signed:
        bad = bad | y.eq(-1)
    safe = bad.where(1, y)
    quotient = x._two("sdiv" if signed else "udiv", safe)
    return y.eq(-1).where(-x, quotient) if signed else quotient


def div(dtype: DType, x: Num, y: Num) -> Num:
    """Truncating division; x / 0 is all ones, the lowest value / -1 is itself."""
    return wrap(dtype, y.eq(0).where(-1, _quotient(dtype, x, y)))


def rem(dtype: DType, x: Num, y: Num) -> Num:
    """The remainder with the sign of x; x % 0 is x, the lowest value % -1 is 0."""
    return wrap(dtype, y.eq(0).where(x, x - _quotient(dtype, x, y) * y))


def shift(kind: str, dtype: DType, x: Num, amount: Num) -> Num:
    outside = ~amount.below(dtype.bits)
    if kind == "arithmetic":
        if dtype.kind == "uint" and dtype.bits < 8:
            x = (x << (8 - dtype.bits)) >> (8 - dtype.bits)
        return wrap(dtype, x >> outside.where(dtype.bits - 1, amount))
    moved = x << amount if kind == "left" else unsigned(dtype, x).lshr(amount)
    return wrap(dtype, outside.where(0, moved))


def popcnt(dtype: DType, x: Num) -> Num:
    return wrap(dtype, unsigned(dtype, x).intrinsic("ctpop"))


def clz(dtype: DType, x: Num) -> Num:
    x = unsigned(dtype, x)
    name = f"llvm.ctlz.{suffix(x.v.type)}"
    x.b.declares[name] = f"declare {x.v.type} @{name}({x.v.type}, i1)"
    count = Num(x.b, x.b.emit(x.v.type, f"call {x.v.type} @{name}({x.v}, i1 false)"))
    return wrap(dtype, count - (x.bits - dtype.bits) if dtype.bits < 8 else count)


def mulhi(dtype: DType, x: Num, y: Num) -> Num:
    if dtype.bits == 64 and not x.b.dialect.wide_integers:
        return _mulhi64(x, y, dtype.kind == "int")
    code, wide = "sext" if dtype.kind == "int" else "zext", f"i{2 * x.bits}"
    product = x.cast(code, wide) * y.cast(code, wide)
    high = product >> dtype.bits if dtype.kind == "int" else product.lshr(dtype.bits)
    return wrap(dtype, high.cast("trunc", x.base))


def _mulhi64(x: Num, y: Num, signed: bool) -> Num:
    """The high half of a product of 64 bits, from products of halves; a signed one corrects the unsigned."""
    low_x, high_x, low_y, high_y = x & 0xFFFFFFFF, x.lshr(32), y & 0xFFFFFFFF, y.lshr(32)
    middle = high_x * low_y + (low_x * low_y).lshr(32)
    other = low_x * high_y + (middle & 0xFFFFFFFF)
    high = high_x * high_y + middle.lshr(32) + other.lshr(32)
    return high - ((x >> 63) & y) - ((y >> 63) & x) if signed else high


def power(dtype: DType, x: Num, y: Num) -> Num:
    """Repeated squaring, wrapping; a negative exponent gives 0 unless x is 1 or -1."""
    b = x.b
    from ferrule.codegen.llvm import V, i64

    one = x.const(1)

    def step(index: V, carried: list[V]) -> list[V]:
        result, base, rest = (Num(b, v) for v in carried)
        odd = (rest & 1).ne(0)
        return [odd.where(result * base, result).v, (base * base).v, rest.lshr(1).v]

    result = Num(b, b.loop(i64(0), i64(dtype.bits), 1, [one.v, x.v, unsigned(dtype, y).v], step, "power")[0])
    if dtype.kind == "int":
        inverse = x.eq(1).where(1, x.eq(-1).where((y & 1).ne(0).where(-1, 1, x), 0))
        result = (y < 0).where(inverse, result)
    return wrap(dtype, result)


def resize(source: DType, target: DType, x: Num) -> Num:
    """An integer or flag in another integer type."""
    old, new = x.bits, max(8, target.bits)
    if old > new:
        return wrap(target, x.cast("trunc", f"i{new}"))
    x = x.cast("sext" if source.kind == "int" else "zext", f"i{new}")
    return wrap(target, x) if target.bits < 8 else x


def to_float(source: DType, target: DType, x: Num) -> Num:
    """An f32 or f64 from which one rounding gives the nearest value of `target`."""
    code = "sitofp" if source.kind == "int" else "uitofp"
    if target.bits >= 32:
        return x.cast(code, "double" if target.bits == 64 else "float")
    if source.bits <= 16:
        return x.cast(code, "float")
    if not x.b.dialect.has_f64:
        return _odd_float(source, x)
    if source.bits == 64:
        # f64 holds 53 bits: for large values the lowest twelve become one bit that says whether any was set.
        sticky = (x & 0xFFF).ne(0).where(0x800, 0, x)
        short = x & -0x1000 | sticky
        size = (x < 0).where(-x, x) if source.kind == "int" else x
        x = size.above((1 << 53) - 1).where(short, x)
    return x.cast(code, "double")


def _odd_float(source: DType, x: Num) -> Num:
    """An f32 that holds the first 24 bits of an integer, the last of them set if any bit below was: rounded to odd."""
    negative = x < 0 if source.kind == "int" else x.ne(x)
    size = negative.where(-x, x)
    name = f"llvm.ctlz.{suffix(x.v.type)}"
    x.b.declares[name] = f"declare {x.v.type} @{name}({x.v.type}, i1)"
    zeros = Num(x.b, x.b.emit(x.v.type, f"call {x.v.type} @{name}({size.v}, i1 false)"))
    excess = x.const(x.bits - 24) - zeros
    drop = (excess < 0).where(0, excess)
    kept = size.lshr(drop)
    odd = (kept << drop).ne(size).where(1, 0, x)
    value = ((kept | odd) << drop).cast("uitofp", "float")
    return negative.where(-value, value)


def _saturated(target: DType, bits: int, x: Num) -> Num:
    """Toward zero; values out of range are replaced before the conversion, which then is defined."""
    signed = target.kind == "int"
    low, high = (-(1 << (target.bits - 1)), 1 << (target.bits - 1)) if signed else (0, 1 << target.bits)
    inside = (x > float(low) - (1.0 if target.bits < 32 else 0.0)) & (x < float(high))
    number = inside.where(x, 0.0).cast("fptosi" if signed else "fptoui", f"i{bits}")
    if target.bits >= 32 or not signed:  # the lowest value itself, and what is above it by less than one
        number = (x <= float(low)).where(low, number)
    else:
        number = (x <= float(low) - 1.0).where(low, number)
    return (x >= float(high)).where(high - 1, number)


def _limited(target: DType, bits: int, x: Num) -> Num:
    """The same in vectors: LLVM 22 takes the lanes of its saturating conversion apart, not of the plain one."""
    signed = target.kind == "int"
    low, high = (-(1 << (target.bits - 1)), (1 << (target.bits - 1)) - 1) if signed else (0, (1 << target.bits) - 1)
    digits = 24 if x.bits == 32 else 53
    top = high & ~((1 << max(0, high.bit_length() - digits)) - 1)  # the largest float that is in range
    least = (x > float(low)).where(x, float(low))  # NaN, too, becomes the lowest
    number = (least < float(top)).where(least, float(top)).cast("fptosi" if signed else "fptoui", f"i{bits}")
    if signed:
        number = x.is_nan().where(0, number)
    return number if top == high else (x > float(top)).where(high, number)


def from_float(target: DType, x: Num) -> Num:
    """Toward zero, saturating; NaN gives 0."""
    signed = target.kind == "int"
    bits = max(8, target.bits)
    if not x.b.dialect.saturates:
        return wrap(target, _saturated(target, bits, x))
    if x.lanes > 1:
        return _limited(target, bits, x)
    type = vector(f"i{bits}", x.lanes)
    name = f"llvm.fpto{'s' if signed else 'u'}i.sat.{suffix(type)}.{suffix(x.v.type)}"
    result = Num(x.b, x.b.call(type, name, x.v))
    if target.bits < 8:
        top = (1 << (target.bits - 1)) - 1 if signed else (1 << target.bits) - 1
        result = (result > top).where(top, result) if signed else result.above(top).where(top, result)
        result = (result < -top - 1).where(-top - 1, result) if signed else result
    return result

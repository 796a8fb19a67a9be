"""Arithmetic on lane values for every element type, with StableHLO's meaning.

`Scalars(builder, width)` writes code for `width` lanes at once. A lane value is an operand of the dtype's compute type
(see the package's docstring), for complex types a pair of them. All float arithmetic is IEEE: no reassociation, nothing
fused but what is one op (passes/contract.py), NaN and infinities as StableHLO has them. A type narrower than f32 is an
f32 that is rounded after each operation.
"""

from __future__ import annotations

import functools

import numpy as np

from ferrule.codegen import complexes, formats, integers
from ferrule.codegen.lanes import Num, constant
from ferrule.codegen.llvm import Builder, V, vector
from ferrule.errors import Internal
from ferrule.ir.types import DType, holds

Pair = tuple[V, V]
Lane = V | Pair

_CONDITIONS = {"EQ": "eq", "NE": "ne", "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge"}


@functools.cache
def compute_type(dtype: DType) -> str:
    """LLVM's scalar type for values of this dtype (of one component, for complex types)."""
    if dtype.is_float or dtype.is_complex:
        return "double" if dtype.bits == 64 else "float"
    return "i1" if dtype.kind == "bool" else f"i{max(8, dtype.bits)}"


@functools.cache
def memory_type(dtype: DType) -> str:
    """LLVM's scalar type for an element in memory (of one component, for complex types)."""
    if dtype.is_float or dtype.is_complex:
        return {64: "double", 32: "float", 16: "i16"}.get(dtype.bits, "i8")
    return f"i{max(8, dtype.bits)}"


class Scalars:
    """Writes arithmetic on `width` lanes with one builder.

    `f16_hardware`: the machine converts between f16 and f32; otherwise that is integer arithmetic.
    """

    def __init__(self, builder: Builder, width: int, f16_hardware: bool = True) -> None:
        self.b, self.width, self.f16_hardware = builder, width, f16_hardware

    # --- types, constants, memory -------------------------------------------------------------------------------
    def type(self, dtype: DType) -> str:
        """The type of a lane value (of one component, for complex types)."""
        return vector(compute_type(dtype), self.width)

    def num(self, value: V) -> Num:
        return Num(self.b, value)

    def const(self, dtype: DType, value: object) -> Lane:
        """A constant in every lane, or, given an array of `width` values, one per lane."""
        if isinstance(value, np.ndarray) and value.ndim and self.width > 1:
            flat = value.reshape(-1)
            parts = [Scalars(self.b, 1).const(dtype, flat[i]) for i in range(self.width)]
            if dtype.is_complex:
                return self._row([p[0] for p in parts]), self._row([p[1] for p in parts])  # type: ignore[misc]
            return self._row(parts)  # type: ignore[arg-type]
        if isinstance(value, np.ndarray):
            value = value.reshape(-1)[0]
        if dtype.is_complex:
            z = complex(value)  # type: ignore[call-overload]
            return constant(self.type(dtype), z.real), constant(self.type(dtype), z.imag)
        if dtype.is_float:
            if dtype.bits < 32:
                value = np.asarray(value).astype(dtype.numpy).astype(np.float32)
            return constant(self.type(dtype), float(value))  # type: ignore[arg-type]
        if dtype.kind == "bool":
            return constant(self.type(dtype), bool(value))
        return constant(self.type(dtype), integers.normal(dtype, int(value)))  # type: ignore[call-overload]

    def _row(self, values: list[V]) -> V:
        return V(vector(values[0].type, self.width), f"<{', '.join(map(str, values))}>")

    def splat(self, value: Lane) -> Lane:
        """A scalar lane value in every lane."""
        if isinstance(value, V):
            return self.b.splat(value, self.width)
        return self.b.splat(value[0], self.width), self.b.splat(value[1], self.width)

    def load(self, dtype: DType, pointer: V, align: int | None = None) -> Lane:
        """The `width` elements at and after `pointer`."""
        unit = memory_type(dtype)
        align = align or dtype.itemsize
        if not dtype.is_complex:
            return self.from_memory(dtype, self.b.load(vector(unit, self.width), pointer, align))
        if self.width == 1:
            return (
                self.b.load(unit, pointer, align),
                self.b.load(unit, self.b.offset(pointer, unit, V("i64", "1")), dtype.itemsize // 2),
            )
        both = self.b.load(vector(unit, 2 * self.width), pointer, align)
        return self._every_second(both, 0), self._every_second(both, 1)

    def _every_second(self, both: V, first: int) -> V:
        lanes = ", ".join(f"i32 {first + 2 * i}" for i in range(self.width))
        type = vector(both.type[1:-1].split(" x ")[1], self.width)
        return self.b.emit(type, f"shufflevector {both}, {both.type} poison, <{self.width} x i32> <{lanes}>")

    def store(self, dtype: DType, value: Lane, pointer: V, align: int | None = None) -> None:
        """Writes `width` consecutive elements."""
        align = align or dtype.itemsize
        if isinstance(value, V):
            self.b.store(self.to_memory(dtype, value), pointer, align)
        elif self.width == 1:
            self.b.store(value[0], pointer, align)
            second = self.b.offset(pointer, memory_type(dtype), V("i64", "1"))
            self.b.store(value[1], second, dtype.itemsize // 2)
        else:
            n = self.width
            lanes = ", ".join(f"i32 {i // 2 + (i % 2) * n}" for i in range(2 * n))
            type = vector(memory_type(dtype), 2 * n)
            both = self.b.emit(type, f"shufflevector {value[0]}, {value[1]}, <{2 * n} x i32> <{lanes}>")
            self.b.store(both, pointer, align)

    def lane(self, value: Lane, index: int) -> Lane:
        """One lane as a scalar lane value."""
        if not isinstance(value, V):
            return self.lane(value[0], index), self.lane(value[1], index)  # type: ignore[return-value]
        if self.width == 1:
            return value
        base = value.type[1:-1].split(" x ")[1]
        return self.b.emit(base, f"extractelement {value}, i64 {index}")

    def from_memory(self, dtype: DType, raw: V) -> V:
        """The compute form of elements as they lie in memory."""
        x = self.num(raw)
        if dtype.kind == "bool":
            return x.ne(0).v
        if dtype.is_int:
            return integers.wrap(dtype, x).v
        if dtype.bits >= 32:
            return raw
        if dtype.name == "f16" and self.f16_hardware:
            return self.b.dialect.widened(x.as_float()).v
        return formats.decode(dtype, x).v

    def to_memory(self, dtype: DType, value: V) -> V:
        """The memory form; a narrow float must hold a value of its type already."""
        x = self.num(value)
        if dtype.kind == "bool":
            return x.cast("zext", "i8").v
        if dtype.is_int:
            return (x & ((1 << dtype.bits) - 1)).v if dtype.bits < 8 else value
        if dtype.bits >= 32:
            return value
        if dtype.name == "f16" and self.f16_hardware:
            return x.cast("fptrunc", "half").raw().v
        if dtype.name == "bf16":
            return x.raw().lshr(16).cast("trunc", "i16").v
        return formats.encode(dtype, x).v

    def round(self, dtype: DType, value: V, of_same: bool = False) -> V:
        """A float or double rounded to what `dtype` can hold, in compute form.

        `of_same`: computed from values of `dtype` by operations that hand NaNs on (formats.round_bf16).
        """
        x = self.num(value)
        if dtype.bits == 64:
            return x.f64().v
        if x.base == "double":
            if dtype.bits == 32:
                return x.f32().v
            x = formats.odd_f32(x)
        if dtype.bits == 32:
            return x.v
        if dtype.name == "bf16":
            return formats.round_bf16(x, of_same and self.b.dialect.hands_nans_on).v
        if dtype.name == "f16" and self.f16_hardware:
            return x.cast("fptrunc", "half").cast("fpext", "float").v
        return formats.decode(dtype, formats.encode(dtype, x)).v

    # --- how an operation is applied ----------------------------------------------------------------------------
    def _float(self, dtype: DType, result: Num) -> V:
        return self.round(dtype, result.v, of_same=True) if dtype.bits < 32 else result.v

    def _each(self, dtype: DType, result: Num) -> V:
        return integers.wrap(dtype, result).v if dtype.is_int else self._float(dtype, result)

    def add(self, dtype: DType, a: Lane, b: Lane) -> Lane:
        if not isinstance(a, V):
            return complexes.add(self, a, b)  # type: ignore[arg-type]
        if dtype.kind == "bool":
            return (self.num(a) | self.num(b)).v  # type: ignore[arg-type]
        return self._each(dtype, self.num(a) + self.num(b))  # type: ignore[arg-type]

    def sub(self, dtype: DType, a: Lane, b: Lane) -> Lane:
        if not isinstance(a, V):
            return complexes.sub(self, a, b)  # type: ignore[arg-type]
        return self._each(dtype, self.num(a) - self.num(b))  # type: ignore[arg-type]

    def mul(self, dtype: DType, a: Lane, b: Lane) -> Lane:
        if not isinstance(a, V):
            return complexes.mul(self, a, b)  # type: ignore[arg-type]
        if dtype.kind == "bool":
            return (self.num(a) & self.num(b)).v  # type: ignore[arg-type]
        return self._each(dtype, self.num(a) * self.num(b))  # type: ignore[arg-type]

    def fma(self, dtype: DType, a: Lane, b: Lane, c: Lane) -> Lane:
        """a * b + c, fused where it is one type of float and the machine is fast at it; for accumulation."""
        if isinstance(a, V) and dtype.is_float and dtype.bits >= 32:
            return self.num(a).fma(self.num(b), self.num(c)).v  # type: ignore[arg-type]
        return self.add(dtype, self.mul(dtype, a, b), c)

    def quotient(self, a: V, b: V, inverse: V) -> V:
        """a / b by the inverse of b and what is left of a, twice, rounded once: passes/quotients.py says when."""
        x, by, factor = self.num(a), self.num(b), self.num(inverse)
        result = x * factor
        for _ in range(2):
            result = (-result).intrinsic("fma", by, x).intrinsic("fma", factor, result)
        return result.v

    def div(self, dtype: DType, a: Lane, b: Lane) -> Lane:
        if not isinstance(a, V):
            return complexes.div(self, a, b)  # type: ignore[arg-type]
        x, y = self.num(a), self.num(b)  # type: ignore[arg-type]
        return integers.div(dtype, x, y).v if dtype.is_int else self._float(dtype, x / y)

    def rem(self, dtype: DType, a: V, b: V) -> V:
        """The remainder with the sign of the dividend."""
        x, y = self.num(a), self.num(b)
        if dtype.is_int:
            return integers.rem(dtype, x, y).v
        from ferrule.codegen import math

        return math.binary("remainder", self, dtype, a, b)  # type: ignore[return-value]

    def neg(self, dtype: DType, a: Lane) -> Lane:
        if not isinstance(a, V):
            return (-self.num(a[0])).v, (-self.num(a[1])).v
        result = -self.num(a)
        if dtype.is_int:
            return integers.wrap(dtype, result).v
        return self.round(dtype, result.v) if self._odd_signs(dtype) else result.v

    @staticmethod
    def _odd_signs(dtype: DType) -> bool:
        """Whether changing the sign can leave the format: no -0, or no sign at all."""
        return dtype.name.endswith("NUZ") or dtype.name == "f8E8M0FNU"

    def abs(self, dtype: DType, a: Lane) -> V:
        if not isinstance(a, V):
            return complexes.abs_(self, a)
        x = self.num(a)
        if dtype.kind in ("uint", "bool"):
            return a
        if dtype.is_int:
            return integers.wrap(dtype, (x < 0).where(-x, x)).v
        return abs(x).v

    def sign(self, dtype: DType, a: Lane) -> Lane:
        if not isinstance(a, V):
            return complexes.sign(self, a)
        x = self.num(a)
        if dtype.kind == "uint":
            return x.ne(0).where(1, 0, x).v
        if dtype.is_int:
            return (x > 0).where(1, (x < 0).where(-1, 0, x), x).v
        return (x.eq(0.0) | x.is_nan()).where(x, x.const(1.0).copysign(x)).v

    def max(self, dtype: DType, a: Lane, b: Lane) -> Lane:
        """The larger; NaN if either is NaN, and -0 is below +0."""
        return self._choose(dtype, a, b, larger=True)

    def min(self, dtype: DType, a: Lane, b: Lane) -> Lane:
        """The smaller; NaN if either is NaN, and -0 is below +0."""
        return self._choose(dtype, a, b, larger=False)

    def _choose(self, dtype: DType, a: Lane, b: Lane, larger: bool) -> Lane:
        if not isinstance(a, V):
            return complexes.choose(self, a, b, larger)  # type: ignore[arg-type]
        x, y = self.num(a), self.num(b)  # type: ignore[arg-type]
        if dtype.kind == "bool":
            return (x | y if larger else x & y).v
        if dtype.kind == "uint":
            return (x.above(y) if larger else x.below(y)).where(x, y).v
        if dtype.is_float:
            return self.b.dialect.extreme(x, y, larger).v
        return (x > y if larger else x < y).where(x, y).v

    def extreme(self, a: V, b: V, larger: bool) -> V:
        """max or min of floats for long reductions: two instructions less, because of two zeros either may come."""
        x, y = self.num(a), self.num(b)
        # One that is not a number is x, the result so far, so that a NaN in it stays, and y remains to be seen. That
        # does not depend on x: only the comparison waits for the step before.
        return y.is_nan().where(y, self.b.dialect.choose(y, x, larger)).v

    def clamp(self, dtype: DType, low: Lane, x: Lane, high: Lane) -> Lane:
        return self.min(dtype, self.max(dtype, x, low), high)

    def select(self, predicate: V, yes: Lane, no: Lane) -> Lane:
        """`predicate` has a flag per lane, or is one flag for all of them."""
        if not isinstance(yes, V):
            return self.b.select(predicate, yes[0], no[0]), self.b.select(predicate, yes[1], no[1])  # type: ignore
        return self.b.select(predicate, yes, no)  # type: ignore[arg-type]

    # --- logic and bits -----------------------------------------------------------------------------------------
    def and_(self, dtype: DType, a: V, b: V) -> V:
        return (self.num(a) & self.num(b)).v

    def or_(self, dtype: DType, a: V, b: V) -> V:
        return (self.num(a) | self.num(b)).v

    def xor(self, dtype: DType, a: V, b: V) -> V:
        return (self.num(a) ^ self.num(b)).v

    def not_(self, dtype: DType, a: V) -> V:
        result = ~self.num(a)
        return integers.wrap(dtype, result).v if dtype.is_int else result.v

    def shift(self, kind: str, dtype: DType, a: V, amount: V) -> V:
        """`kind`: left, logical or arithmetic; an amount of the width or more shifts everything out."""
        return integers.shift(kind, dtype, self.num(a), self.num(amount)).v

    def popcnt(self, dtype: DType, a: V) -> V:
        return integers.popcnt(dtype, self.num(a)).v

    def clz(self, dtype: DType, a: V) -> V:
        return integers.clz(dtype, self.num(a)).v

    def mulhi(self, dtype: DType, a: V, b: V) -> V:
        """The high half of the product."""
        return integers.mulhi(dtype, self.num(a), self.num(b)).v

    # --- comparison ---------------------------------------------------------------------------------------------
    def compare(self, direction: str, dtype: DType, a: Lane, b: Lane, compare_type: str = "NOTYPE") -> V:
        """`direction` as StableHLO spells it; the result is i1 in every lane."""
        if not isinstance(a, V):
            assert not isinstance(b, V)
            same = [self.num(x).eq(self.num(y)) for x, y in zip(a, b, strict=True)]
            equal = same[0] & same[1]
            if direction not in ("EQ", "NE"):
                raise Internal(f"comparison {direction} of {dtype}", why="complex numbers have no order")
            return equal.v if direction == "EQ" else (~equal).v
        x, y = self.num(a), self.num(b)  # type: ignore[arg-type]
        how = _CONDITIONS[direction]
        if dtype.is_float:
            if compare_type == "TOTALORDER":
                x, y = self._total_order(x), self._total_order(y)
                code = f"icmp {how if how in ('eq', 'ne') else 's' + how}"
            else:
                code = f"fcmp {'une' if how == 'ne' else 'o' + how}"
        elif how in ("eq", "ne"):
            code = f"icmp {how}"
        else:
            code = f"icmp {'s' if dtype.kind == 'int' else 'u'}{how}"
        return self.b.compare(code, x.v, y.v)

    @staticmethod
    def _total_order(x: Num) -> Num:
        bits = x.raw()
        return bits ^ (bits >> (x.bits - 1)).lshr(1)

    def is_finite(self, dtype: DType, a: V) -> V:
        return (abs(self.num(a)) < float("inf")).v

    # --- floats -------------------------------------------------------------------------------------------------
    def floor(self, dtype: DType, a: V) -> V:
        return self._float(dtype, self.num(a).intrinsic("floor"))

    def ceil(self, dtype: DType, a: V) -> V:
        return self._float(dtype, self.num(a).intrinsic("ceil"))

    def round_nearest_even(self, dtype: DType, a: V) -> V:
        return self._float(dtype, self.num(a).rint())

    def round_nearest_afz(self, dtype: DType, a: V) -> V:
        """To the nearest integer, halves away from zero."""
        x = self.num(a)
        whole = x.intrinsic("trunc")
        step = x.const(1.0).copysign(x)
        up = abs(x - whole) >= 0.5
        return self._float(dtype, up.where(whole + step, whole).copysign(x))

    def reduce_precision(self, dtype: DType, a: V, exponent_bits: int, mantissa_bits: int) -> V:
        """Rounds to fewer exponent and mantissa bits; what is below the smallest normal number becomes 0.

        With as many exponent bits as the type has, its denormals stay: they are rounded to their unit.
        """
        x = self.num(a)
        narrow = formats.FORMATS.get(dtype.name) if dtype.bits < 32 and dtype.name != "bf16" else None
        if narrow is not None and exponent_bits == narrow.exponent:
            return self._float(dtype, self._fewer_digits(x, narrow, min(mantissa_bits, narrow.mantissa)))
        if dtype.bits < 32:  # the f32 that holds the value is rounded; it has no denormals of the narrow type
            mantissa, exponent = 23, 8
        else:
            mantissa, exponent = (23, 8) if dtype.bits == 32 else (52, 11)
        bits = original = x.raw()
        sign = bits & (1 << (x.bits - 1))
        if mantissa_bits < mantissa:
            drop = mantissa - mantissa_bits
            half = (bits.lshr(drop) & 1) + ((1 << (drop - 1)) - 1)
            bits = (bits + half) & (-1 << drop)
        if exponent_bits < exponent:
            full = ((1 << exponent) - 1) << mantissa
            bias, less = (1 << (exponent - 1)) - 1, (1 << (exponent_bits - 1)) - 1
            field = bits & full
            bits = (field > ((bias + less) << mantissa)).where(sign | full, bits)
            bits = (field <= ((bias - less) << mantissa)).where(sign, bits)
        result = x.is_nan().where(original, bits).as_float()
        return self._float(dtype, result)

    @staticmethod
    def _fewer_digits(x: Num, f: formats.Format, mantissa_bits: int) -> Num:
        """An f32 rounded to a format with the exponents of `f`, denormals included, and fewer digits."""
        drop = 23 - mantissa_bits
        bits = x.raw()
        near = (bits + ((bits.lshr(drop) & 1) + ((1 << (drop - 1)) - 1))) & (-1 << drop)
        # Below the smallest normal number the unit is fixed: adding a number with that unit rounds to it.
        anchor = 1.5 * 2.0 ** (24 - f.bias - mantissa_bits)
        small = ((abs(x) + anchor) - anchor).copysign(x)
        rounded = (abs(x) < 2.0 ** (1 - f.bias)).where(small, near.as_float())
        return x.is_nan().where(x, rounded)

    # --- change of type -----------------------------------------------------------------------------------------
    def to_bits(self, dtype: DType, a: Lane) -> V:
        """The element's bits as an unsigned integer of its width (sub-byte types: extended with zeros to i8)."""
        if not isinstance(a, V):
            double = 2 * dtype.bits
            low, high = (self.num(p).raw().cast("zext", f"i{double}") for p in a)
            return (low | (high << dtype.bits)).v
        if dtype.is_float and dtype.bits >= 32:
            return self.num(a).raw().v
        return self.to_memory(dtype, a)

    def from_bits(self, dtype: DType, bits: V) -> Lane:
        """The element with these bits."""
        if dtype.is_complex:
            both, half = self.num(bits), f"i{dtype.bits}"
            return (
                both.cast("trunc", half).as_float().v,
                both.lshr(dtype.bits).cast("trunc", half).as_float().v,
            )
        if dtype.kind == "bool":
            return self.from_memory(dtype, bits)
        x = self.num(bits)
        return x.as_float().v if dtype.is_float and dtype.bits >= 32 else self.from_memory(dtype, bits)

    def bitcast(self, source: DType, target: DType, a: Lane) -> Lane:
        """The same bits as an element of another type of the same width."""
        return self.from_bits(target, self.to_bits(source, a))

    def convert(self, source: DType, target: DType, a: Lane) -> Lane:
        """The value in another type, as StableHLO's `convert` means it."""
        if source == target:
            return a
        if source.is_complex:
            if target.is_complex:
                return self._resize(target, a[0]), self._resize(target, a[1])  # type: ignore[arg-type]
            if target.kind == "bool":
                return (self.num(a[0]).ne(0.0) | self.num(a[1]).ne(0.0)).v  # type: ignore[arg-type]
            return self.convert(source.part, target, a[0])  # type: ignore[arg-type]
        if target.is_complex:
            return self.convert(source, target.part, a), self.const(target.part, 0.0)  # type: ignore[return-value]
        assert isinstance(a, V)
        x = self.num(a)
        if target.kind == "bool":
            return x.ne(0).v
        if target.is_float:
            exact = target.bits == 16 and holds(target, source)  # narrow floats are computed with as f32
            if source.is_float:
                return a if exact else self._resize(target, a)
            value = integers.to_float(source, target, x).v
            return value if exact else self.round(target, value)
        if source.is_float:
            return integers.from_float(target, x).v
        return integers.resize(source, target, x).v

    def _resize(self, target: DType, a: V) -> V:
        return self.round(target, a)

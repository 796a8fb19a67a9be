"""Arithmetic on lanes with Python's operators: what the formulas in `math*` and `formats` are written in.

A `Num` is an operand of one LLVM type with the builder it belongs to. `x * y + 1.0` appends a multiplication and an
addition; Python numbers become constants of the other operand's type. Integers are signed where it matters (`<`, `>>`).
"""

from __future__ import annotations

import math
from functools import cache

from ferrule.codegen.llvm import Builder, V, float_literal, vector

_SHORT = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16", "ptr": "p0"}
_BITS = {"float": 32, "double": 64, "half": 16, "bfloat": 16}


@cache
def split(type: str) -> tuple[str, int]:
    """The scalar type and the number of lanes of a type."""
    if type[0] != "<":
        return type, 1
    lanes, base = type[1:-1].split(" x ")
    return base, int(lanes)


@cache
def suffix(type: str) -> str:
    """How an overloaded intrinsic spells the type: v16f32, i64."""
    base, lanes = split(type)
    return (f"v{lanes}" if lanes > 1 else "") + _SHORT.get(base, base)


@cache
def bits_of(type: str) -> int:
    """The width of one lane in bits."""
    base = split(type)[0]
    return _BITS.get(base) or int(base[1:])


@cache
def _literal(type: str, value: int | float, negative_zero: bool) -> str:
    base, lanes = split(type)
    if base[0] == "i":
        bits = int(base[1:])
        value = int(value) & ((1 << bits) - 1)
        if bits > 1 and value >= 1 << (bits - 1):
            value -= 1 << bits
        text = ("false", "true")[value] if bits == 1 else str(value)
    else:
        text = float_literal(-0.0 if negative_zero else float(value), _BITS[base])
    return text if lanes == 1 else f"splat ({base} {text})"


def constant(type: str, value: int | float) -> V:
    """A number in every lane; integers wrap to the type, floats are rounded to it."""
    # 0.0 and -0.0 are equal, so the cache needs to be told which one it is.
    return V(type, _literal(type, value, value == 0 and isinstance(value, float) and math.copysign(1, value) < 0))


class Num:
    """A lane value with operators. `v` is the plain operand."""

    __slots__ = ("b", "v", "base", "lanes")

    def __init__(self, b: Builder, v: V) -> None:
        self.b, self.v = b, v
        self.base, self.lanes = split(v.type)

    @property
    def is_float(self) -> bool:
        return self.base[0] != "i"

    @property
    def bits(self) -> int:
        return bits_of(self.base)

    def const(self, value: int | float) -> Num:
        """A constant of this type."""
        return Num(self.b, constant(self.v.type, value))

    def lift(self, other: Num | int | float) -> V:
        return other.v if isinstance(other, Num) else constant(self.v.type, other)

    def _two(self, opcode: str, other: Num | int | float) -> Num:
        b = self.lift(other)
        return Num(self.b, self.b.emit(self.v.type, f"{opcode} {self.v.type} {self.v.ref}, {b.ref}"))

    def _reversed(self, opcode: str, other: int | float) -> Num:
        return self.const(other)._two(opcode, self)

    def __add__(self, other: Num | int | float) -> Num:
        return self._two("fadd" if self.is_float else "add", other)

    __radd__ = __add__

    def __sub__(self, other: Num | int | float) -> Num:
        return self._two("fsub" if self.is_float else "sub", other)

    def __rsub__(self, other: int | float) -> Num:
        return self._reversed("fsub" if self.is_float else "sub", other)

    def __mul__(self, other: Num | int | float) -> Num:
        return self._two("fmul" if self.is_float else "mul", other)

    __rmul__ = __mul__

    def __truediv__(self, other: Num | int | float) -> Num:
        return self._two("fdiv", other)

    def __rtruediv__(self, other: int | float) -> Num:
        return self._reversed("fdiv", other)

    def __neg__(self) -> Num:
        if self.is_float:
            return Num(self.b, self.b.emit(self.v.type, f"fneg {self.v}"))
        return self._reversed("sub", 0)

    def __and__(self, other: Num | int) -> Num:
        return self._two("and", other)

    def __or__(self, other: Num | int) -> Num:
        return self._two("or", other)

    def __xor__(self, other: Num | int) -> Num:
        return self._two("xor", other)

    def __invert__(self) -> Num:
        return self._two("xor", -1 if self.base != "i1" else 1)

    def __lshift__(self, other: Num | int) -> Num:
        return self._two("shl", other)

    def __rshift__(self, other: Num | int) -> Num:
        return self._two("ashr", other)

    def lshr(self, other: Num | int) -> Num:
        """Shift right, zeros come in."""
        return self._two("lshr", other)

    def _compare(self, float_code: str, int_code: str, other: Num | int | float) -> Num:
        code = f"fcmp {float_code}" if self.is_float else f"icmp {int_code}"
        return Num(self.b, self.b.compare(code, self.v, V(self.v.type, self.lift(other).ref)))

    def __lt__(self, other: Num | int | float) -> Num:
        return self._compare("olt", "slt", other)

    def __le__(self, other: Num | int | float) -> Num:
        return self._compare("ole", "sle", other)

    def __gt__(self, other: Num | int | float) -> Num:
        return self._compare("ogt", "sgt", other)

    def __ge__(self, other: Num | int | float) -> Num:
        return self._compare("oge", "sge", other)

    def eq(self, other: Num | int | float) -> Num:
        return self._compare("oeq", "eq", other)

    def ne(self, other: Num | int | float) -> Num:
        """Different; true if either is NaN."""
        return self._compare("une", "ne", other)

    def above(self, other: Num | int) -> Num:
        """Greater as unsigned integers; greater or unordered for floats."""
        return self._compare("ugt", "ugt", other)

    def below(self, other: Num | int) -> Num:
        """Less as unsigned integers; less or unordered for floats."""
        return self._compare("ult", "ult", other)

    def is_nan(self) -> Num:
        return Num(self.b, self.b.compare("fcmp uno", self.v, self.v))

    def where(self, yes: Num | int | float, no: Num | int | float, like: Num | None = None) -> Num:
        """`self` (an i1) chooses; at least one choice, or `like`, gives the type."""
        model = yes if isinstance(yes, Num) else no if isinstance(no, Num) else like
        assert isinstance(model, Num)
        return Num(self.b, self.b.select(self.v, model.lift(yes), model.lift(no)))

    def intrinsic(self, name: str, *others: Num | int | float) -> Num:
        """`llvm.name` of this type, on this value and others of its type."""
        args = [self.v, *(self.lift(o) for o in others)]
        return Num(self.b, self.b.call(self.v.type, f"llvm.{name}.{suffix(self.v.type)}", *args))

    def fma(self, factor: Num | float, term: Num | float) -> Num:
        """self * factor + term, in one rounding where the machine can do it fast."""
        return self.intrinsic(self.b.dialect.fma, factor, term)

    def __abs__(self) -> Num:
        return self.intrinsic("fabs") if self.is_float else (self < 0).where(-self, self)

    def copysign(self, sign: Num | float) -> Num:
        return self.intrinsic("copysign", sign)

    def rint(self) -> Num:
        """To the nearest integer, halves to even."""
        return self.intrinsic("roundeven")

    def cast(self, opcode: str, base: str) -> Num:
        return Num(self.b, self.b.cast(opcode, self.v, vector(base, self.lanes)))

    def raw(self) -> Num:
        """The bits of a float as an integer."""
        return self.cast("bitcast", f"i{self.bits}")

    def as_float(self) -> Num:
        """The float whose bits this integer is."""
        return self.cast("bitcast", {16: "half", 32: "float", 64: "double"}[self.bits])

    def rounded(self) -> Num:
        """A float as the nearest integer of its size, which is far from the largest."""
        integers = vector(f"i{self.bits}", self.lanes)
        name = f"llvm.lrint.{suffix(integers)}.{suffix(self.v.type)}"
        return Num(self.b, self.b.call(integers, name, self.v))

    def f64(self) -> Num:
        return self.cast("fpext" if self.is_float else "sitofp", "double")

    def as_f64_small(self) -> Num:
        """An i64 that fits 32 bits as f64; conversions of 32 bits are the ones that every processor has."""
        return self.cast("trunc", "i32").cast("sitofp", "double")

    def f32(self) -> Num:
        return self.cast("fptrunc" if self.is_float else "sitofp", "float")

    def half(self, which: int) -> Num:
        """The first or the second half of the lanes; of an odd number both have the one in the middle."""
        count = -(-self.lanes // 2)
        picks = ", ".join(f"i32 {which * (self.lanes - count) + i}" for i in range(count))
        text = f"shufflevector {self.v}, {self.v.type} poison, <{count} x i32> <{picks}>"
        return Num(self.b, self.b.emit(vector(self.base, count), text))

    def int(self) -> Num:
        """To an integer of the same width, toward zero; the value must fit."""
        return self.cast("fptosi", f"i{self.bits}")

    def poly(self, coefficients: tuple[float, ...]) -> Num:
        """c₀ + c₁x + c₂x² + …, by Horner's rule."""
        total: Num | float = coefficients[-1]
        for c in reversed(coefficients[:-1]):
            total = self.fma(total, c)
        return total if isinstance(total, Num) else self.const(total)


def first_lanes(width: int, count: int) -> V:
    """The mask of the first `count` lanes."""
    return V(f"<{width} x i1>", f"<{', '.join(f'i1 {str(lane < count).lower()}' for lane in range(width))}>")

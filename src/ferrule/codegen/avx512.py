"""The dialect of x86 processors with AVX-512: what they do in one instruction and LLVM does not find by itself."""

from __future__ import annotations

from ferrule.codegen.dialect import FusedDialect, rsqrt_error
from ferrule.codegen.lanes import Num
from ferrule.codegen.llvm import Builder, V

# Bits of the registers that the instructions take.
_REGISTERS = (512, 256, 128)


class Avx512(FusedDialect):
    register_bits = _REGISTERS[0]

    def __init__(self, gathers: bool = False) -> None:
        self.gathers = gathers

    def choose(self, x: Num, y: Num, larger: bool) -> Num:
        if x.lanes * x.bits < _REGISTERS[0]:
            return super().choose(x, y, larger)
        # The plain form would be joined with the test for NaN that follows, to two comparisons and a move.
        return instruction(f"llvm.x86.avx512.{'max' if larger else 'min'}", x, y, rounding=True, masked=False)

    def scaled(self, x: Num, n: Num, whole: Num) -> Num:
        if x.lanes * x.bits < _REGISTERS[-1]:
            return super().scaled(x, n, whole)
        return instruction("llvm.x86.avx512.mask.scalef", x, n, rounding=True)

    def rsqrt(self, x: Num) -> Num:
        """From 14 bits by one step of the third order."""
        y = instruction("llvm.x86.avx512.rsqrt14", x)
        error = rsqrt_error(x, y)
        # NaN at zero and infinity, where the estimate is the answer.
        return error.is_nan().where(y, (y * error).fma(error.fma(0.375, 0.5), y))

    def binary_parts(self, x: Num) -> tuple[Num, Num]:
        k = instruction("llvm.x86.avx512.mask.getexp", x, rounding=True)
        # Of the fraction between ¾ and 1½; the sign is left out for -0, and otherwise gives NaN.
        m = instruction("llvm.x86.avx512.mask.getmant", x, choice=0b1111, rounding=True)
        return (m < 1.0).where(k + 1.0, k), m

    def ratio(self, x: Num, y: Num) -> Num:
        """By an inverse of 14 bits, and what the quotient that it gives leaves: a division takes sixteen cycles."""
        inverse = instruction("llvm.x86.avx512.rcp14", y)
        about = x * inverse
        return (-about).intrinsic("fma", y, x).fma(inverse, about)

    def quotient(self, x: Num, y: Num) -> Num:
        """By an inverse of 14 bits and one step of the third order."""
        inverse = instruction("llvm.x86.avx512.rcp14", y)
        error = (-y).intrinsic("fma", inverse, 1.0)
        return x * inverse.fma(error.fma(error, error), inverse)

    def any_beyond(self, x: Num, limit: float) -> V:
        """Registers are joined by their largest magnitudes, numbers before NaN, before lanes are compared."""
        while x.lanes * x.bits > _REGISTERS[0]:
            x = instruction("llvm.x86.avx512.mask.range", x.half(0), x.half(1), choice=0b1011, rounding=True)
        return super().any_beyond(x, limit)


def instruction(
    name: str,
    x: Num,
    *others: Num,
    choice: int | None = None,
    rounding: bool = False,
    masked: bool = True,
    registers: tuple[int, ...] = _REGISTERS,
) -> Num:
    """An instruction on f32 or f64 lanes by its intrinsic, with, as last arguments, a default, a mask, a rounding.

    `choice` is what some take before them.

    `registers`: the sizes in bits that it takes, largest first. Longer vectors go through it by registers; the code
    generator splits them there, so the cuts cost nothing.
    """
    b, operands = x.b, [x.v, *(o.v for o in others)]
    register = next((size for size in registers if x.lanes * x.bits >= size), registers[-1])
    lanes, kind = register // x.bits, {32: "ps", 64: "pd"}[x.bits]
    type, mask = f"<{lanes} x {x.base}>", V(f"i{max(8, lanes)}", "-1")
    rest = [V(type, "zeroinitializer"), mask] if masked else []
    if choice is not None:
        rest.insert(0, V("i32", str(choice)))
    if rounding and register == 512:
        rest.append(V("i32", "4"))  # as the mode says
    whole = max(lanes, 1 << (x.lanes - 1).bit_length())
    if x.lanes < whole:
        operands = [_widened(b, v, x.base, x.lanes, whole) for v in operands]
    parts = []
    for first in range(0, whole, lanes):
        part = [_cut(b, v, x.base, first, lanes) for v in operands] if whole > lanes else operands
        parts.append(b.call(type, f"{name}.{kind}.{register}", *part, *rest))
    while len(parts) > 1:
        lanes *= 2
        order = ", ".join(f"i32 {i}" for i in range(lanes))
        pairs = zip(parts[::2], parts[1::2], strict=True)
        picks = f"<{lanes} x i32> <{order}>"
        parts = [b.emit(f"<{lanes} x {x.base}>", f"shufflevector {p}, {q}, {picks}") for p, q in pairs]
    return Num(b, _cut(b, parts[0], x.base, 0, x.lanes) if x.lanes < whole else parts[0])


def _cut(b: Builder, v: V, base: str, first: int, lanes: int) -> V:
    if lanes == 1:
        return b.emit(base, f"extractelement {v}, i64 {first}")
    picks = ", ".join(f"i32 {first + i}" for i in range(lanes))
    return b.emit(f"<{lanes} x {base}>", f"shufflevector {v}, {v.type} poison, <{lanes} x i32> <{picks}>")


def _widened(b: Builder, v: V, base: str, lanes: int, wanted: int) -> V:
    """The lanes of `v` and repetitions of them, so that no lane holds what nobody computed."""
    if lanes == 1:
        return b.splat(v, wanted)
    picks = ", ".join(f"i32 {i % lanes}" for i in range(wanted))
    return b.emit(f"<{wanted} x {base}>", f"shufflevector {v}, {v.type} poison, <{wanted} x i32> <{picks}>")


AVX512, GATHERING = Avx512(), Avx512(gathers=True)

"""How one kind of code spells what LLVM leaves to the target: address spaces, fused operations, the math library, and
on devices the names of work-items. Formulas and schedules ask the builder's dialect and stay the same for all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ferrule.codegen.lanes import Num
    from ferrule.codegen.llvm import Builder, V
    from ferrule.targets.machine import Machine


# Intel's server processors since 2023 (those before are slow at it, since they were mended against spies).
FAST_GATHERS = frozenset({"sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d"})
# Below this power of two a result may be denormal.
SMALL = -125.0


class Dialect:
    """A host processor: one address space, threads that are given ranges, the C library."""

    # Types of pointers to arrays, to tables that are stored with the code, and to memory that a group shares.
    pointer = constant_pointer = local_pointer = "ptr"
    # The intrinsic for a * b + c: one rounding where that is fast, and one rounding always.
    fma = "fmuladd"
    # Is one rounding always (the intrinsic `fma`) fast?
    fuses = False
    # Are there integers of 128 bits?
    wide_integers = True
    # Are 64-bit divisions so slow that values known to be small are divided in 32 bits?
    narrow_division = False
    # Does one instruction read from an address for each lane faster than an instruction for each lane?
    gathers = False
    # Bits of a register of lanes, or of two of them.
    register_bits = 256
    # Are arithmetic operations slow that have a denormal result?
    slow_denormals = True
    # Is there arithmetic on f64? Without, the device's own functions replace formulas that need it.
    has_f64 = True

    # Do loops of known length test at the bottom? (Compilers that make vectors of work-items want that.)
    bottom_tested = False
    # Is a NaN that arithmetic gives an operand's, or one whose fraction is its first bit alone?
    hands_nans_on = True
    # Do conversions of floats that are out of range, or NaN, saturate as LLVM says?
    saturates = True

    def before_cast(self, b: Builder, opcode: str, a: V, type: str) -> V:
        """What is cast instead of `a`."""
        return a

    def widened(self, half: Num) -> Num:
        """An f16 as f32, where the machine converts them.

        One lane by an intrinsic for strict code: LLVM 22 puts 16 bits into a register whose other bits it leaves, and
        has to wait for whoever wrote them last, most often the step before; these it moves as 32.
        """
        if half.lanes > 1:
            return half.cast("fpext", "float")
        name = "llvm.experimental.constrained.fpext.f32.f16"
        half.b.declares[name] = f"declare float @{name}(half, metadata)"
        return type(half)(half.b, half.b.emit("float", f'call float @{name}({half.v}, metadata !"fpexcept.ignore")'))

    def extreme(self, x: Num, y: Num, larger: bool) -> Num:
        """The larger or smaller of two floats; NaN if either is NaN, and -0 is below +0."""
        return x.intrinsic("maximum" if larger else "minimum", y)

    def choose(self, x: Num, y: Num, larger: bool) -> Num:
        """The larger or smaller of two floats; `y` if they are equal or one is NaN."""
        return (x > y if larger else x < y).where(x, y)

    def scale(self, x: Num, n: Num, whole: Num) -> Num:
        """x · 2ⁿ in one rounding, positive x up to 2, where 2ⁿ itself may be infinite or denormal.

        `n` is an integer held as a float, from -151 on, `whole` the same as an integer.

        What may be denormal, or too small to be a number, is made as an integer, the multiple of the smallest number:
        many processors take a hundred cycles for a multiplication with such a result.
        """
        from ferrule.codegen.math_wide import any_lane

        if not self.slow_denormals:
            return self.scaled(x, n, whole)
        low = n
        while low.lanes * low.bits > self.register_bits:
            low = self.choose(low.half(0), low.half(1), False)

        def with_small() -> list[V]:
            small = n < SMALL
            result = self.scaled(x, small.where(n + 149.0, n), small.where(whole + 149, whole))
            return [small.where(result.rounded().as_float(), result).v]

        found = x.b.branch(any_lane(low < SMALL), with_small, lambda: [self.scaled(x, n, whole).v])
        return type(x)(x.b, found[0])

    def scaled(self, x: Num, n: Num, whole: Num) -> Num:
        """x · 2ⁿ, see `scale`."""
        from ferrule.codegen.math_wide import power_of_two

        half = whole >> 1
        return x * power_of_two(half) * power_of_two(whole - half)

    def rsqrt(self, x: Num) -> Num:
        """1 / √x of an f32 through f64: right to half an ulp."""
        return (1.0 / x.f64().intrinsic("sqrt")).f32()

    def binary_parts(self, x: Num) -> tuple[Num, Num]:
        """(k, m) with x = 2ᵏ m and ¾ ≤ m < 1½ of an f32, k as f32: -inf of 0, inf of inf, NaN of NaN and below 0.

        With these k the m is a finite number.
        """
        from ferrule.codegen.math_parts import all_parts, any_odd, branch, normal_parts

        k, m = branch(x.b, any_odd(x), lambda: all_parts(x), lambda: normal_parts(x.raw()))
        return k, m

    def ratio(self, x: Num, y: Num) -> Num:
        """x / y of f32 to 0.6 ulp, where neither y nor 1 / y is denormal, and nothing is infinite."""
        return x / y

    def quotient(self, x: Num, y: Num) -> Num:
        """x / y of f64 to 2⁻⁴⁰, for a y that neither is denormal nor has a denormal inverse."""
        return x / y

    def any_beyond(self, x: Num, limit: float) -> V:
        """Whether any float is larger than a limit, above or below zero; NaN is not."""
        from ferrule.codegen.math_wide import any_lane

        return any_lane(abs(x) > limit)

    def function(self, name: str, *xs: Num) -> Num:
        """A function of the math library, by its C name for double."""
        from ferrule.codegen.libm import c_function

        return c_function(name, *xs)


class FusedDialect(Dialect):
    """A host processor that multiplies and adds in one instruction, with one rounding."""

    fuses = True

    def rsqrt(self, x: Num) -> Num:
        """In f32: the quotient and one step of Newton."""
        y = 1.0 / x.intrinsic("sqrt")
        error = rsqrt_error(x, y)
        # NaN at zero and infinity, where the quotient is the answer.
        return error.is_nan().where(y, (y * 0.5).fma(error, y))


def rsqrt_error(x: Num, y: Num) -> Num:
    """The residual 1 - x y² of an estimate y of 1 / √x, in two parts, so that what cancels is not lost."""
    root = x * y
    return (-root).intrinsic("fma", y, 1.0) - x.intrinsic("fma", y, -root) * y


class GroupDialect(Dialect, ABC):
    """What the schedules of devices need besides: the names of a work-item, and ways to work together."""

    hands_nans_on = False  # SPIR-V does not say
    slow_denormals = False
    # How LLVM spells that an atomic operation concerns one device.
    device_scope = ""

    def widened(self, half: Num) -> Num:
        return half.cast("fpext", "float")

    @abstractmethod
    def entry(self, symbol: str, pointers: int, group: int) -> tuple[str, str]:
        """The head of a kernel's definition, before and after its parameters."""

    @abstractmethod
    def group_id(self, b: Builder) -> V:
        """The number of the group, as i64."""

    @abstractmethod
    def local_id(self, b: Builder) -> V:
        """The number of the work-item in its group, as i64."""

    @abstractmethod
    def global_id(self, b: Builder) -> V:
        """The number of the work-item among all, as i64."""

    @abstractmethod
    def barrier(self, b: Builder) -> None:
        """All items of the group come here, and see what the others wrote to the group's memory."""

    @abstractmethod
    def shared(self, b: Builder, type: str, count: int) -> V:
        """An array in the memory that the items of a group share."""

    def atomic(self, b: Builder, operation: str, pointer: V, value: V) -> V:
        """One of LLVM's atomicrmw operations on an array, without an order among different places."""
        return b.emit(
            value.type,
            f"atomicrmw {operation} {pointer}, {value} {self.device_scope}monotonic, align {_size(value.type)}",
        )


def _size(type: str) -> int:
    return {"float": 4, "double": 8, "half": 2}.get(type) or int(type[1:]) // 8


HOST, FUSED = Dialect(), FusedDialect()


def dialect_of(machine: Machine) -> Dialect:
    """The dialect of a machine's code."""
    if machine.triple.startswith("spirv"):
        from ferrule.codegen.spirv import SpirV

        return SpirV(machine.has_f64)
    if machine.vector_bytes == 64 and machine.triple.startswith("x86_64"):
        from ferrule.codegen.avx512 import AVX512, GATHERING

        return GATHERING if machine.cpu in FAST_GATHERS else AVX512
    if "+avx2" in machine.features and "+fma" in machine.features:
        from ferrule.codegen.avx2 import AVX2

        return AVX2
    return FUSED if "+fma" in machine.features or machine.triple.startswith("aarch64") else HOST

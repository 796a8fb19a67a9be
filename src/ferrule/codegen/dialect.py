"""How one kind of code spells what LLVM leaves to the target: address spaces, fused operations, the math library, and
on devices the names of work-items. Formulas and schedules ask the builder's dialect and stay the same for all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ferrule.codegen.lanes import Num
    from ferrule.codegen.llvm import Builder, V
    from ferrule.targets.machine import Machine


class Dialect:
    """A host processor: one address space, threads that are given ranges, the C library."""

    # Types of pointers to arrays, to tables that are stored with the code, and to memory that a group shares.
    pointer = constant_pointer = local_pointer = "ptr"
    # The intrinsic for a * b + c: one rounding where that is fast, and one rounding always.
    fma = "fmuladd"
    # Are there integers of 128 bits?
    wide_integers = True
    # Are 64-bit divisions so slow that values known to be small are divided in 32 bits?
    narrow_division = False
    # Is there arithmetic on f64? Without, the device's own functions replace formulas that need it.
    has_f64 = True

    # Do loops of known length test at the bottom? (Compilers that make vectors of work-items want that.)
    bottom_tested = False
    # Do conversions of floats that are out of range, or NaN, saturate as LLVM says?
    saturates = True

    def before_cast(self, b: Builder, opcode: str, a: V, type: str) -> V:
        """What is cast instead of `a`."""
        return a

    def extreme(self, x: Num, y: Num, larger: bool) -> Num:
        """The larger or smaller of two floats; NaN if either is NaN, and -0 is below +0."""
        return x.intrinsic("maximum" if larger else "minimum", y)

    def function(self, name: str, *xs: Num) -> Num:
        """A function of the math library, by its C name for double."""
        from ferrule.codegen.libm import c_function

        return c_function(name, *xs)


class GroupDialect(Dialect, ABC):
    """What the schedules of devices need besides: the names of a work-item, and ways to work together."""

    # How LLVM spells that an atomic operation concerns one device.
    device_scope = ""

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


HOST = Dialect()


def dialect_of(machine: Machine) -> Dialect:
    """The dialect of a machine's code."""
    if machine.triple.startswith("spirv"):
        from ferrule.codegen.spirv import SpirV

        return SpirV(machine.has_f64)
    return HOST

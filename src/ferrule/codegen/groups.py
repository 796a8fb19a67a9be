"""Kernels of devices: a block of fused ops becomes one function that a grid of groups of work-items runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferrule.codegen import teams
from ferrule.codegen.dialect import GroupDialect, dialect_of
from ferrule.codegen.emitter import Family
from ferrule.codegen.llvm import Builder, V, i64
from ferrule.ir import Block
from ferrule.targets.machine import Machine

if TYPE_CHECKING:
    from ferrule.codegen.kernel import Kernel


def _emit(family: Family, block: Block, outputs: list[V]) -> int:
    """Writes the kernel's body by the schedule that suits it; gives the number of work-items."""
    from ferrule.codegen.kernel import schedule_of

    if (elements := teams.plan(block)) is not None:
        return teams.emit(family, block, outputs, elements)
    return schedule_of(block)(family, block, outputs, i64(0), i64(0), 0.0)[0]


def emit_kernel(block: Block, symbol: str, machine: Machine) -> Kernel:
    """Generates the kernel of a fused block; its pointers are the block's arguments, then its results."""
    from ferrule.codegen.kernel import Kernel, work

    dialect = dialect_of(machine)
    assert isinstance(dialect, GroupDialect)
    count = len(block.args) + len(block.results)
    b = Builder(symbol, "void", [dialect.pointer] * count, dialect=dialect)
    family = Family(b, machine, dict(zip(block.args, b.args, strict=False)))
    outputs = b.args[len(block.args) :]
    flops, nbytes = work(block)
    items = _emit(family, block, outputs)
    size = family.group_size
    start, end = dialect.entry(symbol, count, size)
    pointers = ", ".join(map(str, b.args))
    b.head = f"{start}({pointers}) {end} {{"
    grid = -(-items // size)
    return Kernel(symbol, b.finish(), b.declares, b.globals, grid, size, flops, nbytes, b.local_bytes)

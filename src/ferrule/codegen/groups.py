"""Kernels of devices: a block of fused ops becomes one function that a grid of groups of work-items runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferrule.codegen import rows, teams
from ferrule.codegen.dialect import GroupDialect, dialect_of
from ferrule.codegen.emitter import Family
from ferrule.codegen.llvm import Builder, V, i64
from ferrule.errors import Unsupported
from ferrule.ir import Block, Value, tensor
from ferrule.targets.machine import Machine

if TYPE_CHECKING:
    from ferrule.codegen.kernel import Kernel


def _emit(family: Family, block: Block, outputs: list[V]) -> int:
    """Writes the kernel's body by the schedule that suits it; gives the number of work-items."""
    from ferrule.codegen.kernel import schedule_of

    if (elements := teams.plan(block)) is not None:
        return teams.emit(family, block, outputs, elements)
    if (reductions := rows.plan(block)) is not None:
        return rows.emit(family, block, outputs, reductions)
    return schedule_of(block)(family, block, outputs, i64(0), i64(0), 0.0)[0]


def _lacks_f64(block: Block, machine: Machine) -> Unsupported:
    """The error for a kernel that computes in f64 where there is none; it names the op that asks for it."""
    wide = [op for op in block.ops if any(_is_wide(v) for v in (*op.operands, *op.results))]
    complicated = [op for op in block.ops if any(tensor(v).dtype.is_complex for v in op.operands)]
    op = next(iter(wide or complicated or reversed(block.ops)), None)
    what = op.name if op else "a copy"
    name = getattr(machine, "arch", "") or machine.name
    if wide or not complicated:
        why, fix = "f64 arithmetic is missing in its hardware", "compute in float32 (do not set jax_enable_x64)"
    else:
        why = f"{what} of complex<f32> is computed in f64, which is missing in its hardware"
        fix = "compute with real and imaginary parts, or run this function on the CPU"
    message = f"op {what!r} needs f64, which the device {name!r} does not have"
    return Unsupported(message, where=op.loc if op else None, why=why, fix=fix)


def _is_wide(value: Value) -> bool:
    dtype = tensor(value).dtype
    return dtype.bits == 64 and (dtype.is_float or dtype.is_complex)


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
    text = b.finish()
    if not machine.has_f64 and "double" in text:
        raise _lacks_f64(block, machine)
    size = family.group_size
    start, end = dialect.entry(symbol, count, size)
    pointers = ", ".join(map(str, b.args))
    text = text.replace(b.head, f"{start}({pointers}) {end} {{", 1)
    grid = -(-items // size)
    return Kernel(symbol, text, b.declares, b.globals, grid, size, flops, nbytes, b.local_bytes)

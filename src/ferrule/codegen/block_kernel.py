"""Kernels that a library calls on blocks of a matrix: what follows a matrix product elementwise (passes/finish.py), and
what computes its right side (passes/made_sides.py).

The function is `void symbol(ptr pointers, i64 row, i64 rows_end, i64 column, i64 columns_end)`: it computes these rows
and columns of its results, seen as one matrix of all rows of a batch. Columns begin at a multiple of UNIT and end at
one, or with the row. One that has `i64 step` as well writes the block alone, with its rows so many elements apart.
"""

from __future__ import annotations

from math import prod

from ferrule.codegen import fetch_ahead
from ferrule.codegen.emitter import Emitter
from ferrule.codegen.index import Component, Index
from ferrule.codegen.kernel import Kernel, schedule_of, start, work
from ferrule.codegen.llvm import V
from ferrule.codegen.loop import emit as plain_loop
from ferrule.codegen.loop import grain, lane_count, registers, span
from ferrule.codegen.row_loop import plan as reduces_rows
from ferrule.codegen.runs import loops
from ferrule.codegen.tiles import crossing
from ferrule.ir import Block, Value
from ferrule.targets.machine import Machine

# native/epilogue.h has the same number.
UNIT = 64


def fits(block: Block, columns: int, machine: Machine) -> bool:
    """Can the kernel be computed block by block? Only element expressions, whose loops can be told rows and columns."""
    shape = block.results[0].shape
    if 0 in shape or any(r.shape != shape for r in block.results) or schedule_of(block) is not plain_loop:
        return False
    if reduces_rows(block) or any(op.regions or op.name in _NOT_ELEMENTS for op in block.ops):
        return False
    sizes, along = _loops(block, columns) or ([], [])
    if not sizes or sizes[-1] != columns:
        return False
    width = lane_count(block, machine, columns, prod(sizes[:-1]))
    return width * _wide(block, width, sizes) <= UNIT and crossing(block, along, sizes, width) is None


# Ops that have kernels of their own, with or without a region.
_NOT_ELEMENTS = frozenset(
    {"dot_general", "convolution", "rng_bit_generator", "loop", "running_total", "merge_runs", "dynamic_update_slice"}
)


def _loops(block: Block, columns: int) -> tuple[list[int], list[tuple[Value, int]]] | None:
    """The sizes of the loops, the last one over the columns; None when no dimension begins with a row."""
    shape = block.results[0].shape
    first = next((d for d in range(len(shape) + 1) if prod(shape[d:]) == columns), None)
    if first is None:
        return None
    sizes, along = loops(block.results, shape, [first])
    return (sizes, along) if len(sizes) > 1 else ([1, *sizes], [(v, loop + 1) for v, loop in along])


def _wide(block: Block, width: int, sizes: list[int]) -> int:
    return registers(block.ops, width, sizes[-1], prod(sizes))


def emit_block_kernel(
    block: Block, columns: int, symbol: str, machine: Machine, *, alone: bool = False, ahead: int = 0
) -> Kernel:
    """Generates the function, or the one that writes the block `alone`; `grid` is the number of rows, `grain` how many
    of them are worth a thread. What lies `ahead` elements further than what is read of large arrays is asked for."""
    family, outputs = start(block.args, block.results, symbol, machine, counts=4 + alone)
    found = _loops(block, columns)
    assert found is not None, "passes/finish.py and made_sides.py ask `fits` first"
    sizes, shape = found[0], block.results[0].shape
    rows = prod(sizes[:-1])
    width = lane_count(block, machine, columns, rows)
    wide = _wide(block, width, sizes)
    row, rows_end, column, columns_end, *step = family.b.args[1:]

    def written(em: Emitter, i: V, at: Index, place: tuple[Component, ...]) -> Index:
        if not step:
            return em.ix.flatten(place, sizes)
        b, size = family.b, rows * columns
        first = b.binary("mul nsw", b.binary("sub nsw", i, row), step[0])
        return em.ix.add(em.ix.sub(at, Index(column, 0, 0, columns)), Index(first, 0, 0, size))

    def iteration(i: V, _: list[V]) -> list[V]:
        em = family.at(1)
        with em.scope(), fetch_ahead.asking(family, ahead):
            outer = em.ix.split(Index(i, 0, 0, rows), sizes[:-1])

            def element(em: Emitter, at: Index) -> None:
                # All results are computed before the first is stored: one lies in the product's memory.
                place = (*outer, at)
                index = em.ix.reshape(place, sizes, shape)
                lanes = [em.value(value, index) for value in block.results]
                offset = written(em, i, at, place)
                for value, pointer, lane in zip(block.results, outputs, lanes, strict=True):
                    em.store(pointer, value.dtype, offset, lane)

            first = Index(column, 0, 0, columns, UNIT)
            span(family, width, first, columns_end, columns, element, wide)
        return []

    family.b.loop(row, rows_end, 1, [], iteration, "rows")
    flops, nbytes = work(block)
    text = family.b.finish()
    nanoseconds = max(flops / 8, nbytes / 10)
    b = family.b
    return Kernel(symbol, text, b.declares, b.globals, rows, grain(rows, nanoseconds), flops, nbytes)

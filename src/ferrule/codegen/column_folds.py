"""Reductions over the rows of matrices of few columns, such as the sum of many vectors of three numbers.

Lanes over the results would be as few as the columns. Here they are over the reduced rows: tiles of as many rows as a
vector has lanes are read from contiguous memory and picked apart, so that each column is a vector (short_rows.py), and
all columns are reduced by one loop, which computes once what does not depend on the column.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from math import prod
from typing import TYPE_CHECKING

from ferrule.codegen.index import Component, Index
from ferrule.codegen.lanes import bits_of
from ferrule.codegen.llvm import V
from ferrule.codegen.reduce import Fold
from ferrule.codegen.scalar import compute_type
from ferrule.codegen.short_rows import LANES, PICKED, WRITTEN_OUT, Columns
from ferrule.ir import Block, Op, tensor
from ferrule.ops import OPS
from ferrule.ops.starts import lane_starts
from ferrule.targets.machine import Machine

if TYPE_CHECKING:
    from ferrule.codegen.emitter import Emitter, Family, Key, Lanes


def columns_of(block: Block, machine: Machine, sizes: Sequence[int]) -> Columns | None:
    """The columns, if all of a kernel's reductions are of this kind."""
    found = [op for op in block.ops if op.name == "reduce"]
    count = sizes[-1]
    if machine.grouped or not found or not 1 < count < PICKED or block.results[0].shape[-1] != count:
        return None
    if any(op.regions and op.name != "reduce" for op in block.ops):
        return None
    types = [tensor(v).dtype for v in (*block.args, *(r for op in block.ops for r in op.results)) if v.shape]
    if any(t.is_complex or (t.bits < 8 and t.kind != "bool") for t in types):
        return None
    cost = sum(OPS[op.name].flops for op in block.ops) + sum(len(op.regions[0].ops) for op in found)
    width = min(machine.vector_bytes * 8 // max(8, *(bits_of(compute_type(t)) for t in types)), LANES)
    if cost * count > WRITTEN_OUT or width < 2 or count % width == 0:
        return None
    return Columns(width, count) if all(_fits(op, width, count) for op in found) else None


def _fits(op: Op, width: int, count: int) -> bool:
    shape, dims = op.operands[0].shape, op.attrs["dimensions"]
    if any(r.dtype.kind == "bool" for r in op.results):  # flags have lanes of their own (wide_flags.py)
        return False
    if len(shape) < 2 or shape[-1] != count or len(shape) - 1 in dims or len(shape) - 2 not in dims:
        return False
    start = lane_starts(op)
    return shape[-2] >= 2 * width and start is not None and start.order is None


def emit(
    family: Family, block: Block, columns: Columns, sizes: Sequence[int], outputs: Sequence[V], begin: V, end: V
) -> int:
    """Writes the loop over rows of results; gives the grid."""
    shape, rows = block.results[0].shape, prod(sizes[:-1])
    em = family.at(1)

    def row(i: V, _: list[V]) -> list[V]:
        with em.scope():
            outer = em.ix.split(Index(i, 0, 0, rows), sizes[:-1])
            found: list[list[Lanes]] = []
            family.folded = columns
            for number in range(columns.count):
                index = em.ix.reshape([*outer, columns.at(number)], sizes, shape)
                found.append([em.value(value, index) for value in block.results])
            family.folded = None
            for number, lanes in enumerate(found):
                offset = em.ix.flatten([*outer, em.ix.number(number)], sizes)
                for value, pointer, lane in zip(block.results, outputs, lanes, strict=True):
                    em.store(pointer, tensor(value).dtype, offset, lane)
        return []

    family.b.loop(begin, end, 1, [], row, "grid")
    return rows


def reduce_columns(em: Emitter, op: Op, index: Key, columns: Columns) -> bool:
    """Computes and remembers a reduction's elements of all columns, if `index` is an element of one."""
    last = index[-1]
    if not isinstance(last, Index) or last.base.ref[0] == "%" or last != columns.at(int(last.base.ref)):
        return False
    fold = Fold(em, op)
    family, width, count = em.family, columns.width, columns.count
    wide, each = family.at(width), len(fold.carried)
    places = [(*index[:-1], columns.at(number)) for number in range(count)]
    fold.runs = [[d] for d in fold.gone]

    def combined(at: Emitter, xs: Sequence[Lanes], ys: Sequence[Lanes]) -> list[Lanes]:
        pairs = [(xs[i : i + each], ys[i : i + each]) for i in range(0, len(xs), each)]
        return [lanes for x, y in pairs for lanes in fold.combine(at, x, y)]

    together = copy(fold)
    together.carried, together.combine = fold.carried * count, combined
    *outer, inner = (fold.shape[d] for d in fold.gone)
    whole = inner - inner % width

    def level(at: Emitter, before: list[Component], carried: list[Lanes], first: int, past: int) -> list[Lanes]:
        """Reduces the rows [first, past) of each matrix by vectors or one by one."""
        if len(before) < len(outer):

            def step(i: Index, c: list[Lanes]) -> list[Lanes]:
                return level(at, [*before, i], c, first, past)

            return at.loop(outer[len(before)], carried, step, together.carried)

        def tile(i: Index, c: list[Lanes]) -> list[Lanes]:
            row: Component = at.ix.add(i, first)
            if at is wide:
                row = Index(at.ix.force(at.ix.mul(i, width)).base, 1, 0, inner, width)
            around, family.columns = family.columns, columns if at is wide else None
            news = [lanes for place in places for lanes in fold.inputs(at, place, [*before, row])]
            family.columns = around
            return together.combine(at, c, news)

        return together.in_runs(at, (past - first) // at.width, carried, tile)

    begin, is_init, _ = fold.begin(wide)
    sums = level(wide, [], begin * count, 0, whole)
    totals = [fold.halve(width, sums[i : i + each]) for i in range(0, len(sums), each)]
    flat = [lanes for total in totals for lanes in total]
    if whole < inner:
        flat = level(em, [], flat, whole, inner)
    for i, place in enumerate(places):
        total = flat[i * each : (i + 1) * each]
        if not is_init:
            total = fold.combine(em, fold.inits(em), total)
        for value, lanes in zip(op.results, fold.finish(em, total), strict=True):
            em.remember(value, place, lanes)
    return True

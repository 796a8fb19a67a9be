"""Kernels over rows: a team of work-items has a row, does the reductions along it, then computes its elements."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ferrule.codegen.emitter import Family
from ferrule.codegen.index import Component, Index
from ferrule.codegen.items import dialect
from ferrule.codegen.llvm import V, i64
from ferrule.codegen.teams import limit_of, make_team, team_size, wants_team
from ferrule.ir import Block, Op


def plan(block: Block) -> list[Op] | None:
    """The reductions along the rows of the results, when this kernel is one of these; else None."""
    shape = block.results[0].shape
    found = [op for op in block.ops if op.name == "reduce"]
    if not found or not shape or 0 in shape or any(r.shape != shape for r in block.results):
        return None
    for op in found:
        if op.operands[0].shape != shape or tuple(op.attrs["dimensions"]) != (len(shape) - 1,) or not wants_team(op):
            return None
    return found


def emit(family: Family, block: Block, outputs: Sequence[V], reductions: Sequence[Op]) -> int:
    """Writes the kernel; gives the number of work-items."""
    shape = block.results[0].shape
    rows, columns = prod(shape[:-1]), shape[-1]
    em, b = family.at(1), family.b
    size = team_size(columns, limit_of(family))
    count = 1
    while size * count < limit_of(family) // 2 and count < rows:
        count *= 2
    team = make_team(family, size, count)
    row = em.ix.add(em.ix.mul(Index(dialect(family).group_id(b), 0, 0, -(-rows // count)), count), team.number)
    # Teams past the end do the last row again: all items have to come to the barriers.
    here = em.ix.clamp(row, 0, rows - 1) if rows % count else row._replace(high=rows)
    outer = tuple(em.ix.force(c) for c in em.ix.split(here, shape[:-1])) if shape[:-1] else ()
    for op in reductions:
        em.value(op.results[0], outer)
    family.team = None

    def write(column: Component) -> list[V]:
        with em.scope():
            index = (*outer, column)
            lanes = [em.value(value, index) for value in block.results]
            offset = em.ix.flatten(index, shape)
            for value, pointer, lane in zip(block.results, outputs, lanes, strict=True):
                em.store(pointer, value.dtype, offset, lane)
        return []

    def elements() -> list[V]:
        whole, rest = divmod(columns, size)

        def step(i: V, _: list[V]) -> list[V]:
            return write(em.ix.add(em.ix.mul(Index(i, 0, 0, whole), size), team.lane)._replace(high=columns))

        b.loop(i64(0), i64(whole), 1, [], step, "columns")
        if rest:
            last = em.ix.add(team.lane, whole * size)._replace(high=columns)
            inside = em.ix.less(team.lane, rest)
            assert isinstance(inside, V)
            b.branch(inside, lambda: write(last))
        return []

    exists = em.ix.less(row, rows) if rows % count else True
    if isinstance(exists, V):
        b.branch(exists, elements)
    else:
        elements()
    return -(-rows // count) * family.group_size

"""Scatters of single elements in parts, each into tables of its own (ops/tables.py).

A thread has a group of tables that take turns: an update of a place that was written just before would wait for that
write to arrive, several times longer than the addition takes, and now it finds another table. Places are computed for
as many updates at once as fill a register. What falls outside goes into an element that nobody reads, not around a
branch that nobody foresees.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ferrule.codegen.emitter import Emitter, Family, Lanes, parts, whole
from ferrule.codegen.index import ZERO, Index
from ferrule.codegen.lanes import bits_of, split
from ferrule.codegen.llvm import V, i64
from ferrule.codegen.loop import span
from ferrule.codegen.memory import each_place
from ferrule.codegen.places import combined, place_of
from ferrule.codegen.scalar import compute_type
from ferrule.ir import Block, Op
from ferrule.ops.tables import part

# So many updates at a time, as fill a register of 64 bytes with places of 64 bits.
AT_ONCE = 8


def emit(family: Family, block: Block, outputs: Sequence[V], begin: V, end: V, _: float) -> tuple[int, int]:
    """Writes the loops; gives the grid and the grain."""
    op = block.results[0].op
    assert op is not None
    tables, turns, row = op.attrs["tables"], op.attrs["turns"], op.attrs["row"]
    count, groups, b, pointer = prod(op.operands[1].shape), tables // turns, family.b, outputs[0]

    def group(number: V, _: list[V]) -> list[V]:
        one = family.at(1)
        ix = one.ix
        with one.scope():
            mine = Index(number, 0, 0, groups)
            first = ix.mul(mine, turns * row)
            _clear(family, op, pointer, first, turns * row)
            starts = [ix.add(first, turn * row) for turn in range(turns)]
            low = ix.clamp(ix.mul(mine, part(op)), 0, count)
            high = ix.clamp(ix.add(low, part(op)), 0, count)
            last = ix.sub(high, ix.divmod(ix.sub(high, low)._replace(low=0), AT_ONCE)[1])

            def several(i: V, _: list[V]) -> list[V]:
                with one.scope():
                    found = _updates(family.at(AT_ONCE), op, Index(i, 1, 0, count, AT_ONCE))
                    for turn, (offset, value) in enumerate(found):
                        _apply(one, op, pointer, ix.add(starts[turn % turns], offset), value)
                return []

            def single(i: V, _: list[V]) -> list[V]:
                with one.scope():
                    ((offset, value),) = _updates(one, op, Index(i, 0, 0, count))
                    turn = ix.mul(ix.divmod(Index(i, 0, 0, count), turns)[1], row)
                    _apply(one, op, pointer, ix.add(first, ix.add(turn, offset)), value)
                return []

            b.loop(low.base, last.base, AT_ONCE, [], several, "updates")
            if count % AT_ONCE:
                b.loop(last.base, high.base, 1, [], single, "rest")
        return []

    b.loop(begin, end, 1, [], group, "groups")
    return groups, 1


def _clear(family: Family, op: Op, pointer: V, first: Index, size: int) -> None:
    """Writes the start into so many elements."""
    dtype = op.result.dtype

    def element(em: Emitter, at: Index) -> None:
        em.store(pointer, dtype, em.ix.add(first, at), em.s.const(dtype, op.attrs["start"]))

    width = family.machine.vector_bytes * 8 // max(8, bits_of(compute_type(dtype)))
    span(family, width, ZERO, i64(size), size, element)


def _updates(em: Emitter, op: Op, at: Index) -> list[tuple[Index, Lanes]]:
    """Where, in a table, the updates of each lane go, and what they are."""
    value, shape, dtype = op.operands[1], op.attrs["shape"], op.result.dtype
    size, width = prod(shape), em.width
    index = em.ix.split(at, value.shape)
    place, inside = place_of(em, op, 0, shape, value.shape, index)
    spots = em.ix.lanes(em.ix.flatten(place, shape))
    if inside is not True:
        aside = em.b.splat(i64(size), width)
        spots = aside if inside is False else em.b.select(inside, spots, aside)
    new = em.value(value, index)
    if width == 1:
        return [(Index(spots, 0, 0, size + 1), new)]
    found = []
    for lane, spot in enumerate(each_place(em.ix, Index(spots, None, 0, size + 1))):
        each = [em.b.emit(split(p.type)[0], f"extractelement {p}, i64 {lane}") for p in parts(new)]
        found.append((Index(spot, 0, 0, size + 1), whole(dtype, each)))
    return found


def _apply(em: Emitter, op: Op, pointer: V, offset: Index, value: Lanes) -> None:
    """One update of an element of a table."""
    dtype = op.result.dtype
    with em.scope():
        (new,) = combined(em, op, [em.load_at(pointer, dtype, offset)], [value])
        em.store(pointer, dtype, offset, new)

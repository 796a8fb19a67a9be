"""Scatters of single elements to places that are said to be sorted: many updates of one place come in a row.

What the last update wrote stays in a register beside its place. Read back from memory, where it has just been written,
it is there several times later than the sum. The place is compared by a branch: a selection would wait for memory too.
The promise is used for speed alone; unsorted places give what they would without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ferrule.codegen.emitter import Emitter, Family
from ferrule.codegen.index import Component, Cond, Index
from ferrule.codegen.llvm import V, i64
from ferrule.codegen.places import combined
from ferrule.ir import Op

# Where an element of the updates goes, and whether that is inside the result.
Place = Callable[[Emitter, Sequence[Component]], tuple[list[Component], Cond]]


def emit(family: Family, root: Op, pointer: V, sizes: Sequence[int], place_of: Place) -> None:
    """Works through all updates of a scatter with one result, in order."""
    b, em, update = family.b, family.at(1), root.operands[2]
    dtype, whole, count = root.result.dtype, root.result.shape, prod(sizes)
    nothing = em.s.const(dtype, 0)
    assert isinstance(nothing, V)  # complex numbers are two

    def step(i: V, last: list[V]) -> list[V]:
        """`last` is the place that was written last and what it holds."""
        with em.scope():
            at = em.ix.split(Index(i, 0, 0, count), sizes) if update.shape else ()
            place, inside = place_of(em, at)

            def write() -> list[V]:
                with em.scope():
                    offset = em.ix.force(em.ix.flatten(place, whole))
                    same = b.compare("icmp eq", offset.base, last[0])
                    (old,) = b.branch(same, lambda: [last[1]], lambda: [em.load_at(pointer, dtype, offset)])
                    value = em.s.convert(update.dtype, dtype, em.value(update, at))
                    (new,) = combined(em, root, [old], [value])
                    em.store(pointer, dtype, offset, new)
                    return [offset.base, new]

            if isinstance(inside, bool):
                return write() if inside else last
            return b.branch(inside, write, lambda: last)

    b.loop(i64(0), i64(count), 1, [i64(-1), nothing], step, "updates")

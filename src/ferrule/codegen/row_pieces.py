"""Loops over short rows with a row in each vector lane: the grid's pieces, in them vectors of rows, then the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING

from ferrule.codegen.index import Component, Index
from ferrule.codegen.llvm import V

if TYPE_CHECKING:
    from ferrule.codegen.emitter import Emitter, Family

    # Given the indices of the outer loops and the number of the row, or of the first one of a vector.
    Rows = Callable[[Emitter, Sequence[Component], Index], None]

# About so many elements are one iteration of the grid.
PIECE = 8192


def in_pieces(family: Family, sizes: Sequence[int], width: int, begin: V, end: V, several: Rows, single: Rows) -> int:
    """Writes the loops of `sizes`, whose last two are the rows and their length: `several` is for `width` rows in the
    lanes, `single` for one. Gives the grid, of which [begin, end) is done."""
    b, (*outer_sizes, rows, count) = family.b, sizes
    high = max(PIECE // count // width, 1) * width
    pieces = -(-rows // high)

    def iteration(i: V, _: list[V]) -> list[V]:
        em = family.at(1)
        with em.scope():
            *outer, piece = em.ix.split(Index(i, 0, 0, prod(outer_sizes) * pieces), [*outer_sizes, pieces])
            top = em.ix.mul(piece, high)
            bottom = em.ix.clamp(em.ix.add(top, high), 0, rows)
            whole = em.ix.sub(bottom, em.ix.divmod(bottom, width)[1])

            def vector(first: V, _: list[V]) -> list[V]:
                many = family.at(width)
                with many.scope():
                    several(many, outer, Index(first, 1, 0, rows, width))
                return []

            def one(row: V, _: list[V]) -> list[V]:
                with em.scope():
                    single(em, outer, Index(row, 0, 0, rows))
                return []

            b.loop(top.base, whole.base, width, [], vector, "rows")
            if rows % width:
                b.loop(whole.base, bottom.base, 1, [], one, "rest")
        return []

    b.loop(begin, end, 1, [], iteration, "grid")
    return prod(outer_sizes) * pieces

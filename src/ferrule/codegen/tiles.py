"""The tiled form of the loop schedule, for kernels that read an operand across the direction in which they write.

Rows along the operand's contiguous loop and lanes along the result's make squares; in a square every line of memory is
read and written once, and the exchange of rows and lanes happens in registers (`Emitter` does that where it loads).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ferrule.codegen.emitter import Emitter, Family, Tile
from ferrule.codegen.index import Component, Index
from ferrule.codegen.llvm import V
from ferrule.ir import Block, Value
from ferrule.ops import OPS

# Squares in one iteration of the grid, in each direction.
ROWS, COLUMNS = 4, 16
# A square's rows are written out one by one: expressions beyond this cost are left to plain loops.
CHEAP = 40.0


def crossing(block: Block, along: Sequence[tuple[Value, int]], sizes: Sequence[int], width: int) -> int | None:
    """The loop across which an operand as large as the result is contiguous, if that is not the innermost one."""
    if width < 4 or len(sizes) < 2 or sizes[-1] < width or any(op.name == "reduce" for op in block.ops):
        return None
    if sum(OPS[op.name].flops for op in block.ops) > CHEAP or any(op.regions for op in block.ops):
        return None
    total = prod(sizes)
    for value, loop in along:
        if loop != len(sizes) - 1 and sizes[loop] >= width and value.type.size * 4 >= total:  # type: ignore[union-attr]
            return loop
    return None


def square_side(block: Block, width: int) -> int:
    """Of complex numbers as many as fill one register with both parts, where those are four."""
    mixed = any(arg.dtype.is_complex for arg in block.args)
    return max(4, min(width, 16) // 2) if mixed else min(width, 16)


def tiles(
    family: Family,
    sizes: Sequence[int],
    across: int,
    width: int,
    begin: V,
    end: V,
    body: Callable[[Emitter, Sequence[Component]], None],
) -> int:
    """Loops over the index space in squares of `width` rows of the loop `across` by `width` lanes; gives the grid."""
    from ferrule.codegen.loop import span

    b, rows, inner = family.b, sizes[across], sizes[-1]
    others = [s for d, s in enumerate(sizes[:-1]) if d != across]
    high, wide = ROWS * width, COLUMNS * width
    down, right = -(-rows // high), -(-inner // wide)
    edge_width = 1 if family.machine.grouped else width  # there are no loads from many addresses in SPIR-V

    def iteration(i: V, _: list[V]) -> list[V]:
        em = family.at(1)
        with em.scope():
            *outer, row, column = em.ix.split(Index(i, 0, 0, prod(others) * down * right), [*others, down, right])
            top, left = em.ix.mul(row, high), em.ix.mul(column, wide)
            bottom = em.ix.clamp(em.ix.add(top, high), 0, rows)
            edge = em.ix.clamp(em.ix.add(left, wide), 0, inner)
            whole_rows = em.ix.sub(bottom, em.ix.divmod(bottom, width)[1])
            whole_lanes = em.ix.sub(edge, em.ix.divmod(edge, width)[1])

            def place(row: Component, lane: Component) -> list[Component]:
                at = list(outer)
                at.insert(across, row)
                return [*at, lane]

            def square(y: V, x: V) -> None:
                vectors = family.at(width)
                with em.scope():
                    first, lanes = Index(y, 0, 0, rows, width), Index(x, 1, 0, inner, width)
                    tile = Tile(width, first, first, 0, family.depth)
                    for number in range(width):
                        tile.number = number
                        tile.row = em.ix.add(first, number)._replace(high=rows)
                        family.tile = tile
                        body(vectors, place(tile.row, lanes))
                    family.tile = None

            def strip(y: V, _: list[V]) -> list[V]:

                def one(x: V, _: list[V]) -> list[V]:
                    square(y, x)
                    return []

                b.loop(left.base, whole_lanes.base, width, [], one, "squares")
                return []

            b.loop(top.base, whole_rows.base, width, [], strip, "strips")

            def single(y: V, first: Index, last: Index) -> None:
                with em.scope():
                    row = Index(y, 0, 0, rows)
                    span(family, edge_width, first, last.base, inner, lambda e, at: body(e, place(row, at)))

            if inner % width:  # the lanes right of the squares

                def right_of(y: V, _: list[V]) -> list[V]:
                    start = whole_lanes._replace(align=width)
                    single(y, start, edge)
                    return []

                b.loop(top.base, whole_rows.base, 1, [], right_of, "right")
            if rows % width:  # the rows below

                def below(y: V, _: list[V]) -> list[V]:
                    single(y, left, edge)
                    return []

                b.loop(whole_rows.base, bottom.base, 1, [], below, "below")
        return []

    b.loop(begin, end, 1, [], iteration, "grid")
    return prod(others) * down * right

"""The tiled form of the loop schedule, for kernels that read an operand across the direction in which they write.

Rows along the operand's contiguous loop and lanes along the result's make squares; in a square every line of memory is
read and written once, and the exchange of rows and lanes happens in registers (`Emitter` does that where it loads).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from ferrule.codegen import streams, whole_lines
from ferrule.codegen.emitter import Emitter, Family, Lanes, Tile
from ferrule.codegen.index import ZERO, Component, Index
from ferrule.codegen.llvm import V, i64
from ferrule.codegen.runs import Side, orders
from ferrule.ir import Block, Value, tensor
from ferrule.ir.types import DType
from ferrule.ops import OPS
from ferrule.targets.machine import Machine

# Squares in one iteration of the grid, in each direction; rows of them where whole lines go past the cache.
ROWS, COLUMNS = 4, 16
TALL = 64
# Bytes of rows that wait until their lines are whole: where there are many rows, of larger elements, and the nearer
# caches do not hold the result so many times.
WAITING, WAITING_ROWS, WAITING_ELEMENT, CACHES = 1 << 15, 8, 4, 2
# Larger copies, of rows that do not begin with half a line, are read by columns, if these have up to so many elements,
# so many bytes apart and not a number of these, on processors that were asked (not on these).
NEARER, HALF, PLACES, WIDE, SAME, UNKNOWN = 0.6, 32, 1536, 1024, 128, "znver"
# Runs of lanes that are shorter than so many squares go together with the next ones.
LANES = 4
# Runs of less than a line: so many of them in one iteration of the grid, in each direction.
LINE, DOWN, ALONG, FEW = 64, 16, 64, 8
# Fewer of larger elements: rows of 2^n bytes share few places of a cache.
LARGE, ALONG_LARGE = 4, 16
# Lanes of 8 and 16 bits, so many of them apart, are picked from whole vectors (codegen/memory.py) faster.
CLOSE = 4
# A square's rows are written out one by one: expressions beyond this cost are left to plain loops.
CHEAP = 40.0


@dataclass(frozen=True)
class Squares:
    """`rows`: the loops along which an operand is contiguous, in the order of its memory, the innermost one first.
    `lanes`: the first of the loops along which the result is. `side`: how many of each a square has. `again`: whether
    elements may be computed twice, since the result does not lie where an operand is read in its order. `pitch`: bytes
    of the operand from one of the result's neighbours to the next, where that is known."""

    rows: tuple[int, ...]
    lanes: int
    side: int
    again: bool = False
    pitch: int = 0


def crossing(block: Block, along: Sequence[tuple[Value, int]], sizes: Sequence[int], width: int) -> int | None:
    """The loop across which an operand as large as the result is contiguous, if that is not the innermost one."""
    if width < 4 or len(sizes) < 2 or sizes[-1] < width or not _cheap(block):
        return None
    total = prod(sizes)
    for value, loop in along:
        if loop != len(sizes) - 1 and sizes[loop] >= width and value.type.size * 4 >= total:  # type: ignore[union-attr]
            return loop
    return None


def _cheap(block: Block) -> bool:
    if any(op.regions or op.name == "reduce" for op in block.ops):
        return False
    return sum(OPS[op.name].flops for op in block.ops) <= CHEAP


def _whole(order: Sequence[Side]) -> list[list[int]]:
    """The loops of the first dimensions that have all of their elements, of which what follows is a multiple."""
    return [side.loops for side in itertools.takewhile(lambda side: side.whole, order)]


def plan(block: Block, sizes: Sequence[int], width: int) -> Squares | None:
    """The squares of a kernel that reads an operand across; None for others.

    A loop that is shorter than a square's side goes together with the next ones in the operand's or result's memory.
    """
    last, total = len(sizes) - 1, prod(sizes)
    if width < 4 or not last or not _cheap(block):
        return None
    lying = orders(block.results, block.results[0].shape, sizes)
    along = [(v, order[0].loops[0]) for v, order in lying if order and order[0].even and order[0].loops]
    if not any(loop != last and 4 * tensor(v).size >= total for v, loop in along):
        return None
    width = square_side(block, width)
    # The result may lie in the memory of what is as large as it and is read in its order.
    crossed = {v for v, loop in along if loop != last} - {v for v, loop in along if loop == last}
    again = all(arg in crossed for arg in block.args if tensor(arg).size >= total)
    if (across := crossing(block, along, sizes, width)) is not None:
        lanes = _longer(sizes, last, LANES * width, (across,)) if sizes[last] % width else last
        pitches = [_pitch(v, order, last) for v, order in lying if (v, across) in along]
        return Squares((across,), lanes, width, again, max(pitches))
    for value, order in lying:
        if 4 * tensor(value).size < total or not order or not order[0].even:
            continue
        if not order[0].loops or last in order[0].loops:
            continue
        rows, dims = [*order[0].loops], iter(_whole(order)[1:])
        close = prod(sizes[r] for r in rows) <= CLOSE and [side.loops for side in order[1:2]] == [[last]]
        if close and tensor(value).dtype.itemsize < 4:
            continue
        lanes = _longer(sizes, last, width, rows)
        while prod(sizes[r] for r in rows) < width and (dim := next(dims, None)) and max(dim) < lanes:
            rows += dim
        lanes, side = _longer(sizes, lanes, LANES * width, rows), width
        while side > min(prod(sizes[r] for r in rows), prod(sizes[lanes:])):
            side //= 2
        if side >= 4:
            return Squares(tuple(rows), lanes, side, again)
    return None


def _pitch(value: Value, order: Sequence[Side], loop: int) -> int:
    """Bytes between the elements of an operand that are neighbours along a loop; 0 where that is not seen."""
    inside = next((i for i, side in enumerate(order) if side.loops and side.loops[0] == loop), None)
    if inside is None:
        return 0
    long = [n for n in value.shape if n > 1]
    return prod(long[len(long) - inside :]) * tensor(value).dtype.itemsize


def better_by_rows(block: Block, sizes: Sequence[int], squares: Squares, machine: Machine) -> bool:
    """Is each row of the result better read down a column of the operand, whose lines a near cache keeps for the next
    rows?

    Squares store a vector of each of many rows in turn; where rows begin anywhere in a line, most of these lie across
    two lines, and in a far cache that takes several times as long. Columns need lines in many places of a cache.
    """
    result = tensor(block.results[0])
    near, far = NEARER * machine.second_cache_bytes, CACHES * machine.second_cache_bytes * machine.threads
    if machine.grouped or machine.cpu.startswith(UNKNOWN) or not near < result.nbytes < far:
        return False
    lanes = prod(sizes[squares.lanes :])
    if result.dtype.itemsize < WAITING_ELEMENT or lanes * result.dtype.itemsize % HALF == 0 or lanes > PLACES:
        return False
    moves = len(block.args) == 1 and all(OPS[op.name].flops == 0 for op in block.ops)
    return moves and squares.pitch >= WIDE and squares.pitch % SAME != 0


def plan_runs(block: Block, along: Sequence[tuple[Value, int]], sizes: Sequence[int]) -> tuple[int, ...] | None:
    """The loops that come next in an operand's memory, where it has the same short runs as the result, which are less
    than a line, but in another order; None for other kernels."""
    last, total = len(sizes) - 1, prod(sizes)
    if last < 2 or not any(loop == last and 4 * tensor(v).size >= total for v, loop in along) or not _cheap(block):
        return None
    if any(sizes[last] * v.dtype.itemsize >= LINE for v in block.results):
        return None
    for value, order in orders(block.results, block.results[0].shape, sizes):
        if 4 * tensor(value).size < total:
            continue
        if len(order) > 1 and order[0].loops == [last] and order[1].loops and max(order[1].loops) < last - 1:
            return tuple(order[1].loops)
    return None


def _place(
    em: Emitter, sizes: Sequence[int], outer: dict[int, Component], rows: Sequence[int], row: Index
) -> list[Component]:
    """An index whose loops `rows`, the innermost one first, are parts of one number; zeros where nothing is said."""
    at: list[Component] = [outer.get(loop, ZERO) for loop in range(len(sizes))]
    stride = 1
    for loop in rows:
        at[loop] = em.ix.part(row, stride, sizes[loop])
        stride *= sizes[loop]
    return at


def tiles_of_runs(
    family: Family,
    sizes: Sequence[int],
    rows: tuple[int, ...],
    begin: V,
    end: V,
    body: Callable[[Sequence[Component]], None],
    large: bool,
) -> int:
    """Loops over the index space in tiles of so many runs along `rows` by as many along the last but one loop, so that
    lines of which a run is a part are still near for the next part; gives the grid. `large`: elements are."""
    b, beside = family.b, len(sizes) - 2
    high, wide = prod(sizes[r] for r in rows), sizes[beside]
    outside = [d for d in range(beside) if d not in rows]
    others = [sizes[d] for d in outside]
    long = ALONG_LARGE if large else ALONG
    tall = DOWN if wide >= FEW else ALONG
    down, right = -(-high // tall), -(-wide // long)

    def iteration(i: V, _: list[V]) -> list[V]:
        em = family.at(1)
        with em.scope():
            *outer, row, column = em.ix.split(Index(i, 0, 0, prod(others) * down * right), [*others, down, right])
            top, left = em.ix.mul(row, tall), em.ix.mul(column, long)
            bottom = em.ix.clamp(em.ix.add(top, tall), 0, high)
            edge = em.ix.clamp(em.ix.add(left, long), 0, wide)

            def run(y: V, x: V) -> None:
                at = _place(em, sizes, dict(zip(outside, outer, strict=True)), rows, Index(y, 0, 0, high))
                at[beside] = Index(x, 0, 0, wide)
                with em.scope():
                    body(at[:-1])

            spans = [(top.base, bottom.base), (left.base, edge.base)]
            turned = wide < FEW <= high  # the longer loop goes inside

            def line(i: V, _: list[V]) -> list[V]:

                def one(j: V, _: list[V]) -> list[V]:
                    run(*((j, i) if turned else (i, j)))
                    return []

                b.loop(*spans[not turned], 1, [], one, "runs")
                return []

            b.loop(*spans[turned], 1, [], line, "lines")
        return []

    b.loop(begin, end, 1, [], iteration, "grid")
    return prod(others) * down * right


def _longer(sizes: Sequence[int], first: int, least: int, rows: Sequence[int]) -> int:
    """The first of the loops that make so many lanes, if there are that many that are not rows."""
    while prod(sizes[first:]) < least and first > 0 and first - 1 not in rows:
        first -= 1
    return first


def square_side(block: Block, width: int) -> int:
    """Of complex numbers as many as fill one register with both parts, where those are four."""
    mixed = any(arg.dtype.is_complex for arg in block.args)
    return max(4, min(width, 16) // 2) if mixed else min(width, 16)


@dataclass(frozen=True)
class Wait:
    """Where rows of squares wait until lines of the result are whole: `columns` elements of each, after as many as a
    square has. `compute` gives an element's lanes; lines of the result have `line` elements."""

    memory: V
    result: V
    dtype: DType
    columns: int
    line: int
    compute: Callable[[Emitter, Sequence[Component]], list[Lanes]]


def waits_for_lines(family: Family, block: Block, sizes: Sequence[int], squares: Squares, flops: float) -> int:
    """The elements of a line, if rows of the result begin anywhere in one and are better written by lines; else 0."""
    machine, result = family.machine, tensor(block.results[0])
    rows = prod(sizes[r] for r in squares.rows)
    near = CACHES * machine.second_cache_bytes * machine.threads
    if result.dtype.itemsize < WAITING_ELEMENT or result.nbytes < near or rows < WAITING_ROWS * squares.side:
        return 0
    return whole_lines.lanes(family, block, prod(sizes[squares.lanes :]), flops) if squares.again else 0


def wait(
    family: Family,
    squares: Squares,
    result: V,
    dtype: DType,
    line: int,
    compute: Callable[[Emitter, Sequence[Component]], list[Lanes]],
) -> Wait:
    """The memory, on the stack of the thread."""
    columns = WAITING // (squares.side * dtype.itemsize)
    nbytes = squares.side * (columns + squares.side) * dtype.itemsize
    memory = family.b.emit("ptr", f"alloca [{nbytes} x i8], align 64")
    return Wait(memory, result, dtype, columns, line, compute)


def tiles(
    family: Family,
    sizes: Sequence[int],
    squares: Squares,
    begin: V,
    end: V,
    body: Callable[[Emitter, Sequence[Component]], None],
    abreast: int = 1,
    waits: Wait | None = None,
) -> int:
    """Loops over the index space in squares of `side` rows by `side` lanes; gives the grid.

    `abreast`: with so many squares beside each other, whose lanes are written as one line of memory, in the order in
    which the operand is read. Such lines can go past the cache; then nobody waits for the places that are written, far
    from each other, and what is read comes in order.

    Where that is allowed, the last square of a row or column that is no multiple of the side begins within the one
    before it, and computes the same again. Else what is left is done line by line.
    """
    from ferrule.codegen.loop import span

    b, width = family.b, squares.side
    rows, inner = prod(sizes[r] for r in squares.rows), prod(sizes[squares.lanes :])
    outside = [d for d in range(squares.lanes) if d not in squares.rows]
    others = [sizes[d] for d in outside]
    high, wide = (ROWS * width, COLUMNS * width) if abreast == 1 else (TALL * width, abreast * width)
    if waits:
        high, wide = TALL * width, waits.columns
    down, right = -(-rows // high), -(-inner // wide)
    edge_width = 1 if family.machine.grouped else width  # there are no loads from many addresses in SPIR-V

    def iteration(i: V, _: list[V]) -> list[V]:
        em = family.at(1)
        with em.scope():
            turns = [down, right] if abreast == 1 else [right, down]
            *outer, row, column = em.ix.split(Index(i, 0, 0, prod(others) * down * right), [*others, *turns])
            if abreast > 1:
                row, column = column, row
            top, left = em.ix.mul(row, high), em.ix.mul(column, wide)
            bottom = em.ix.clamp(em.ix.add(top, high), 0, rows)
            edge = em.ix.clamp(em.ix.add(left, wide), 0, inner)
            last_row, last_lane = bottom, edge
            if not squares.again:
                last_row = em.ix.sub(bottom, em.ix.divmod(bottom, width)[1])
                last_lane = em.ix.sub(edge, em.ix.divmod(edge, width)[1])

            def place(row: Index, lanes: Index) -> list[Component]:
                at = _place(em, sizes, dict(zip(outside, outer, strict=True)), squares.rows, row)
                at[squares.lanes :] = em.ix.split(lanes, sizes[squares.lanes :])
                return at

            def within(place: V, size: int) -> tuple[V, int]:
                """Where a square begins, and what that is a multiple of."""
                if size % width == 0 or not squares.again:
                    return place, width
                return em.ix.clamp(Index(place, 0, 0, size), 0, size - width).base, 1

            def square(y: V, x: V) -> None:
                vectors = family.at(width)
                with em.scope():
                    (y, below), (x, beside) = within(y, rows), within(x, inner)
                    first, lanes = Index(y, 0, 0, rows, below), Index(x, 1, 0, inner, beside)
                    line = [em.ix.add(lanes, n * width)._replace(high=inner) for n in range(abreast)]
                    found = [Tile(width, first, first, 0, family.depth) for _ in line]
                    for number in range(width):
                        for tile, part in zip(found, line, strict=True):
                            tile.number = number
                            tile.row = em.ix.add(first, number)._replace(high=rows)
                            family.tile = tile
                            if waits:
                                with streams.kept_in_cache(family):
                                    (value,) = waits.compute(vectors, place(tile.row, part))
                                    vectors.store(waits.memory, waits.dtype, waiting(vectors, number, part), value)
                            else:
                                body(vectors, place(tile.row, part))
                    family.tile = None

            def waiting(em: Emitter, number: Index | int, lanes: Index) -> Index:
                """The place where an element waits, which a square may have computed again."""
                assert waits is not None
                beside = em.ix.add(em.ix.sub(lanes, left), width)._replace(low=0, high=wide + width)
                row = em.ix.mul(number, wide + width) if isinstance(number, Index) else number * (wide + width)
                return em.ix.add(beside, row)

            def written(y: V) -> None:
                """Rows of squares, as far as they go, from where they wait."""
                first, _ = within(y, rows)

                def one(number: V, _: list[V]) -> list[V]:
                    assert waits is not None
                    with em.scope():
                        here = Index(number, 0, 0, width)
                        row = em.ix.add(Index(first, 0, 0, rows), here)._replace(high=rows)
                        before = em.ix.flatten(place(row, ZERO), sizes)

                        def element(e: Emitter, at: Index) -> None:
                            to = e.ix.flatten(place(row, at), sizes)
                            e.copy(waits.dtype, waits.memory, waiting(e, here, at), waits.result, to)

                        several = max(1, 4 * width // waits.line)
                        ends = (left.base, last_lane.base)
                        whole_lines.span(family, waits.line, several, before, *ends, (0, inner), element)
                    return []

                b.loop(i64(0), i64(width), 1, [], one, "waiting")

            def strip(y: V, _: list[V]) -> list[V]:

                def one(x: V, _: list[V]) -> list[V]:
                    square(y, x)
                    return []

                b.loop(left.base, last_lane.base, abreast * width, [], one, "squares")
                if waits:
                    written(y)
                return []

            b.loop(top.base, last_row.base, width, [], strip, "strips")

            def single(y: V, first: Index, last: Index) -> None:
                with em.scope():
                    row = Index(y, 0, 0, rows)
                    span(family, edge_width, first, last.base, inner, lambda e, at: body(e, place(row, at)))

            if inner % width and not squares.again:  # the lanes right of the squares

                def right_of(y: V, _: list[V]) -> list[V]:
                    single(y, last_lane._replace(align=width), edge)
                    return []

                b.loop(top.base, last_row.base, 1, [], right_of, "right")
            if rows % width and not squares.again:  # the rows below

                def below(y: V, _: list[V]) -> list[V]:
                    single(y, left, edge)
                    return []

                b.loop(last_row.base, bottom.base, 1, [], below, "below")
        return []

    b.loop(begin, end, 1, [], iteration, "grid")
    return prod(others) * down * right

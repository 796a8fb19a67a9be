"""The loop schedule: results of one shape, every element computed by its expression.

Dimensions that every access treats alike are joined (a chain of elementwise ops becomes one flat loop). The innermost
of the joined dimensions runs in vector lanes; the others, and pieces of the innermost where it is long, are the grid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import gcd, prod

from ferrule.codegen import (
    abreast,
    borders,
    column_folds,
    fetch_ahead,
    interleave,
    items,
    math_complex,
    memory,
    moved_rows,
    row_folds,
    short_rows,
    streams,
    tiles_device,
    whole_lines,
)
from ferrule.codegen.emitter import Emitter, Family, Lanes
from ferrule.codegen.index import ZERO, Component, Index
from ferrule.codegen.lanes import bits_of, first_lanes
from ferrule.codegen.llvm import V, i64
from ferrule.codegen.reduce import groups, runs_along_lanes
from ferrule.codegen.runs import loops, viewed
from ferrule.codegen.scalar import compute_type
from ferrule.codegen.tiles import (
    LARGE,
    Squares,
    better_by_rows,
    crossing,
    plan,
    plan_runs,
    tiles,
    tiles_of_runs,
    wait,
    waits_for_lines,
)
from ferrule.errors import Internal
from ferrule.ir import Block, Op, Value, tensor
from ferrule.ops import OPS
from ferrule.targets.machine import Machine

# A thread is woken for no less work than this.
GRAIN_NS = 25_000.0
# A long innermost dimension is cut into pieces of this much work, and never of more elements than PIECE.
PIECE_NS, PIECE = 4_000.0, 4096
# With this many rows there is enough for every core: long rows are not cut into pieces.
ROWS = 256

# Computes and stores what belongs to one index (one component per loop, outermost first).
Body = Callable[[Emitter, Sequence[Component]], None]
Offset = Callable[[Emitter, Sequence[Component]], Index]


def emit(family: Family, block: Block, outputs: Sequence[V], begin: V, end: V, nanoseconds: float) -> tuple[int, int]:
    """Writes the loops; gives the grid and the grain. `nanoseconds` estimates the work of the whole grid."""
    block = _unshaped(block)
    shape = block.results[0].shape
    if any(r.shape != shape for r in block.results):
        raise Internal("a kernel's results differ in shape", where=block.results[0].op and block.results[0].op.loc)
    if 0 in shape:
        return 0, 1
    if row_folds.planned(block, family.machine):
        grid = row_folds.emit(family, block, outputs, begin, end)
        return grid, grain(grid, nanoseconds)
    sizes, along = loops(block.results, shape)
    family.alike = groups(block)

    def compute(em: Emitter, at: Sequence[Component]) -> list[Lanes]:
        index = em.ix.reshape(at, sizes, shape)
        return [em.value(value, index) for value in block.results]

    def write(em: Emitter, at: Sequence[Component], lanes: list[Lanes]) -> None:
        offset = em.ix.flatten(at, sizes)
        for value, pointer, lane in zip(block.results, outputs, lanes, strict=True):
            em.store(pointer, value.dtype, offset, lane)

    fetch = fetch_ahead.rows(family, block, sizes)

    def element(em: Emitter, at: Sequence[Component]) -> None:
        """All results are computed before the first is stored: they may lie in an operand's memory."""
        if fetch is not None:
            fetch(em, at)
        write(em, at, compute(em, at))

    if (row := tiles_device.in_vectors(block, along, sizes, family.machine)) is not None:
        return tiles_device.emit_in_vectors(family, sizes, row, element), 1
    if family.machine.grouped and (row := crossing(block, along, sizes, tiles_device.SIDE)) is not None:
        return tiles_device.emit(family, sizes, row, compute, write), 1
    squares = plan(block, sizes, lane_count(block, family.machine, prod(sizes)))
    if squares and better_by_rows(block, sizes, squares, family.machine):
        squares = None
    if squares and squares.rows != (len(sizes) - 2,):
        return _in_squares(family, block, sizes, squares, outputs, begin, end, element, compute, nanoseconds)
    if not family.machine.grouped and (rows := plan_runs(block, along, sizes)):
        width = lane_count(block, family.machine, sizes[-1])
        run = partial(_run, family, width, sizes[-1], element)
        large = all(tensor(v).dtype.itemsize >= LARGE for v in block.results)
        grid = tiles_of_runs(family, sizes, rows, begin, end, run, large)
        return grid, grain(grid, nanoseconds)
    if moves := moved_rows.plan(block, family.machine, sizes):
        grid = moved_rows.emit(family, moves, outputs[0], begin, end)
        return grid, grain(grid, nanoseconds)
    if lanes := interleave.lanes_along_rows(family, block, along, sizes):
        grid = interleave.emit(family, block, sizes, lanes, outputs, begin, end, compute)
        return grid, grain(grid, nanoseconds)
    if planes := _planes(family, block, sizes):
        grid = nest(family, sizes[1:], planes, begin, end, partial(_all_planes, sizes[0], compute, write), nanoseconds)
        return grid, grain(grid, nanoseconds)
    if not fetch and (columns := column_folds.columns_of(block, family.machine, sizes)) is not None:
        grid = column_folds.emit(family, block, columns, sizes, outputs, begin, end)
        return grid, grain(grid, nanoseconds)
    family.columns = short_rows.reduced(block, family.machine, sizes[-1])
    parts = None if family.columns else borders.parts(block, sizes)
    if family.columns:
        width = family.columns.width
    else:
        width = lane_count(block, family.machine, sizes[-1], prod(sizes[:-1]), whole=parts is None)
    pointers = [family.pointers[a] for a in block.args]
    if squares and not family.columns:
        return _in_squares(family, block, sizes, squares, outputs, begin, end, element, compute, nanoseconds)
    wide = registers(block.ops, width, sizes[-1], prod(sizes))
    alone = len(sizes) == 1
    whole = width if not alone and sizes[-1] % (wide * width) else wide * width
    past = streams.alignment(family, block, whole, sizes[-1], alone=alone)
    cost = sum(OPS[op.name].flops for op in block.ops)
    if parts and width > 1:
        begins = [low for low, _ in parts.columns]
        parts = parts._replace(line=whole_lines.lanes(family, block, sizes[-1], cost, begins))
    if parts and (width == 1 or _better_whole(block, family.machine, parts, width, sizes[-1], past > 0)):
        parts = None
    elif parts and parts.line:
        past = whole_lines.past_the_cache(family, block, parts.line, sizes[-1])
    cuts = borders.pieces(block, sizes[-1], width) if wide == 1 and not parts and not family.columns else ()
    sides = abreast.sides(family, block) if wide > 1 and len(sizes) == 1 else 1
    light = cost <= fetch_ahead.BUSY
    plain = not family.columns and len(cuts) < 2 and not parts and not any(op.regions for op in block.ops)
    some = rows_at_once(sizes, width, cost) if plain else 1
    lines = 0
    if plain and not past and not alone:
        lines = whole_lines.lanes(family, block, sizes[-1], cost)
        past = lines and whole_lines.past_the_cache(family, block, lines, sizes[-1])
    write_rows = partial(
        nest, family, sizes, width, begin, end, element, nanoseconds, wide, cuts, sides, some, parts, lines
    )
    if light and not fetch:
        fetch = fetch_ahead.runs(block, along, sizes)
    asks = not fetch and light and sides == 1 and fetch_ahead.in_order(block)
    with fetch_ahead.asking(family, fetch_ahead.distance(block.args) if asks else 0):
        grid = streams.either(family, pointers, outputs, past, write_rows)
    return grid, grain(grid, nanoseconds)


def _better_whole(block: Block, machine: Machine, parts: borders.Parts, width: int, inner: int, past: bool) -> bool:
    """Are vectors that lie in whole ones of memory better, with masks in those with a border?"""
    masks = machine.vector_bytes == 64 or all(tensor(v).dtype.itemsize >= memory.MASKED for v in block.args)
    aligned = inner % width == 0 and masks
    across = past and not parts.line and any(low % width for low, _ in parts.columns)
    return across or aligned and borders.rolled(block)


def _in_squares(
    family: Family,
    block: Block,
    sizes: Sequence[int],
    squares: Squares,
    outputs: Sequence[V],
    begin: V,
    end: V,
    body: Body,
    compute: Callable[[Emitter, Sequence[Component]], list[Lanes]],
    nanoseconds: float,
) -> tuple[int, int]:
    # How many squares make a line; what is read in the result's order would be read in pieces where they are several.
    lanes, numbers = prod(sizes[squares.lanes :]), (1, 2, 4) if squares.again else (1,)
    lines = {n: streams.alignment(family, block, n * squares.side, lanes, whole_lines=True) for n in numbers}
    abreast = next((n for n in numbers if lines[n]), 1)
    pointers = [family.pointers[a] for a in block.args]
    past, waits = lines[abreast], None
    cost = sum(OPS[op.name].flops for op in block.ops)
    if not past and (line := waits_for_lines(family, block, sizes, squares, cost)):
        waits = wait(family, squares, outputs[0], tensor(block.results[0]).dtype, line, compute)
        past, abreast = whole_lines.past_the_cache(family, block, line, lanes), 1
    loops = partial(tiles, family, sizes, squares, begin, end, body, abreast, waits)
    grid = streams.either(family, pointers, outputs, past, loops)
    return grid, grain(grid, nanoseconds)


def _run(family: Family, width: int, size: int, body: Body, outer: Sequence[Component]) -> None:
    """All of the innermost loop."""
    span(family, width, ZERO, i64(size), size, lambda em, at: body(em, (*outer, at)))


def _unshaped(block: Block) -> Block:
    """The block without a reshape at its end, which leaves the elements where they are.

    The loops go over the dimensions that it joins, not over the joined one, which would be divided into them again.
    """
    ends = [viewed(v) for v in block.results]
    if ends == block.results or len({v.shape for v in ends}) > 1:
        return block
    bare = Block()
    bare.args, bare.ops, bare.results = block.args, block.ops, ends
    return bare


def _planes(family: Family, block: Block, sizes: Sequence[int]) -> int:
    """How many lanes, if most of the work is the same for all of a few planes (an image's channels come first)."""
    count, shape = sizes[0], block.results[0].shape
    if family.machine.grouped or len(sizes) < 2 or not 1 < count <= interleave.SHORT or shape[0] != count:
        return 0
    if any(op.regions for op in block.ops):
        return 0
    work = [(OPS[op.name].flops, op.results[0].shape == shape[1:]) for op in block.ops]
    shared, total = sum([flops for flops, once in work if once]), sum([flops for flops, _ in work])
    if not shared or shared < total / 2 or shared + count * (total - shared) > interleave.JOINED:
        return 0
    return lane_count(block, family.machine, sizes[-1], prod(sizes[1:-1]))


def _all_planes(
    count: int,
    compute: Callable[[Emitter, Sequence[Component]], list[Lanes]],
    write: Callable[[Emitter, Sequence[Component], list[Lanes]], None],
    em: Emitter,
    at: Sequence[Component],
) -> None:
    """An element of each plane; all are computed before the first is stored: they may lie in an operand's memory."""
    places = [(em.ix.number(k), *at) for k in range(count)]
    found = [compute(em, place) for place in places]
    for place, lanes in zip(places, found, strict=True):
        write(em, place, lanes)


def grain(grid: int, nanoseconds: float) -> int:
    """The fewest iterations that a thread is woken for, maybe more than there are."""
    return max(1, min(int(GRAIN_NS * grid / max(nanoseconds, 1.0)), 1 << 62))


def nest(
    family: Family,
    sizes: Sequence[int],
    width: int,
    begin: V,
    end: V,
    body: Body,
    nanoseconds: float = 0.0,
    wide: int = 1,
    cuts: Sequence[tuple[int, int]] = (),
    sides: int = 1,
    some: int = 1,
    parts: borders.Parts | None = None,
    lines: int = 0,
    offset: Offset | None = None,
) -> int:
    """Loops over an index space, `width` lanes along the innermost dimension, `wide` registers; gives the grid.

    `some`: so many rows of the dimension before the innermost are written out, see `rows_at_once`. `parts`: each row is
    gone over in these, in place of `cuts` (codegen/borders.py). `lines`: stores are of whole lines of so many elements,
    wherever rows begin (codegen/whole_lines.py); `offset` is the place of an element in the result, if that has not the
    shape of the index space.
    """
    if family.machine.grouped:
        return items.each(family, sizes, width, body)
    *sizes, inner = sizes
    if some > 1:
        sizes[-1] //= some
    rows = prod(sizes)
    per_element = max(nanoseconds / (rows * some * inner), PIECE_NS / PIECE)
    step, several = width * (parts.wide if parts else wide), max(1, wide * width // max(lines, 1))
    offset = offset or (lambda em, at: em.ix.flatten(at, (*sizes, inner)))
    piece = max(int(PIECE_NS / per_element) // step, 1) * step
    pieces = 1
    if inner > piece and rows < ROWS:
        pieces = sum(borders.runs(part, piece) for part in (parts.columns if parts else [(0, inner)]))

    # Of several loops around a short one each has a counter: a row is over before two divisions are.
    counted = pieces == 1 and rows > 1 and sum(size > 1 for size in sizes) > 1

    def iteration(i: V, counters: list[V]) -> list[V]:
        em = family.at(1)
        with em.scope():
            row, which, first, last = Index(i, 0, 0, rows * pieces), ZERO, ZERO, i64(inner)
            if pieces > 1:
                row, which = em.ix.divmod(row, pieces)
            if pieces > 1 and not parts:
                first = em.ix.mul(which, piece)
                last = em.ix.clamp(em.ix.add(first, piece), 0, inner).base
            outer: Sequence[Component] = em.ix.split(row, sizes)
            if counted:
                outer = [Index(c, 0, 0, size) for c, size in zip(counters, sizes, strict=True)]
            if parts:
                before = offset(em, (*outer, ZERO))
            if parts and pieces > 1:
                borders.each_run(family, parts, width, piece, before, outer, which, body)
                return []
            if parts:
                borders.each(family, parts, width, before, outer, body)
                return _next(family, counters, sizes)
            for k in range(some):
                at = (*outer[:-1], em.ix.add(em.ix.mul(outer[-1], some), k)) if some > 1 else outer
                write = partial(_place, body, at)
                if lines:
                    before = offset(em, (*at, ZERO))
                    whole_lines.span(family, lines, several, before, first.base, last, (0, inner), write)
                else:
                    span(family, width, first, last, inner, write, wide, cuts)
        return _next(family, counters, sizes)

    if rows * pieces == 1:  # a launch does the one iteration; code without loops compiles several times faster
        iteration(i64(0), [])
    elif rows == 1 and not parts:  # neighbouring pieces are one span
        ix = family.at(1).ix
        first = ix.mul(Index(begin, 0, 0, pieces), piece)
        last = ix.clamp(ix.mul(Index(end, 0, 0, pieces + 1), piece), 0, inner)
        row = ix.split(ZERO, sizes)
        if lines:
            before = offset(family.at(1), (*row, ZERO))
            write = partial(_place, body, row)
            whole_lines.span(family, lines, several, before, first.base, last.base, (0, inner), write)
        else:
            span(family, width, first, last.base, inner, partial(_place, body, row), wide, cuts, sides)
    else:
        ix = family.at(1).ix
        start = ix.split(Index(begin, 0, 0, rows + 1), sizes) if counted else ()
        family.b.loop(begin, end, 1, [ix.force(c).base for c in start], iteration, "grid")
    return rows * pieces


def _place(body: Body, outer: Sequence[Component], em: Emitter, at: Index) -> None:
    body(em, (*outer, at))


def rows_at_once(sizes: Sequence[int], width: int, cost: float) -> int:
    """How many rows of the dimension before the innermost are written out, one after the other.

    To count short ones, such as the pixels of a block or halves of channels, would be most of the work.
    """
    vectors = -(-sizes[-1] // width)
    most = int(min(AT_ONCE, fetch_ahead.BUSY / max(cost, 1.0))) // vectors
    if len(sizes) < 3 or most < 2:
        return 1
    return next((n for n in range(most, 1, -1) if sizes[-2] % n == 0 and prod(sizes[:-1]) >= n * ROWS), 1)


# At most so many vectors.
AT_ONCE = 8


def _next(family: Family, counters: Sequence[V], sizes: Sequence[int]) -> list[V]:
    """The counters of nested loops, innermost last, one step on."""
    b, found, step = family.b, list[V](), i64(1)
    for counter, size in zip(reversed(counters), reversed(sizes), strict=False):
        if size == 1:
            found.append(counter)
            continue
        ahead = b.binary("add nsw", counter, step)
        over = b.compare("icmp eq", ahead, i64(size))
        found.append(b.select(over, i64(0), ahead))
        step = b.cast("zext", over, "i64")
    return found[::-1]


# Rows of fewer vectors than this have their rest in a shorter vector, where there are no masks.
SHORT = 4


def span(
    family: Family,
    width: int,
    first: Index,
    last: V,
    size: int,
    body: Callable[[Emitter, Index], None],
    wide: int = 1,
    cuts: Sequence[tuple[int, int]] = (),
    sides: int = 1,
) -> None:
    """`body(emitter, index)` for index in [first, last), in vectors of `width` lanes, then the rest.

    `first` is a multiple of the width. `size` is the upper bound of `last`; when it is a multiple of the width, `last`
    is one too. All this holds for `wide` times the width as well, and that many vectors go side by side. `cuts`: the
    pieces that vectors go over in loops of their own (codegen/borders.py). `sides`: so many equal parts are gone over
    at once (codegen/abreast.py).
    """
    b = family.b
    if sides > 1:
        first = side_by_side(family, wide * width, first, last, size, body, sides)
    if size % (wide * width) == 0:
        width *= wide
    elif wide > 1:
        ix, many = family.at(1).ix, family.at(wide * width)
        end = Index(last, 0, 0, size + 1)
        end = ix.sub(end, ix.divmod(ix.sub(end, first)._replace(low=0), wide * width)[1])

        def vectors(i: V, _: list[V]) -> list[V]:
            with many.scope():
                body(many, Index(i, 1, 0, size, width))
            return []

        b.loop(first.base, end.base, wide * width, [], vectors, "vectors")
        first = end._replace(align=width)
    em, one = family.at(width), family.at(1)

    def vector(i: V, _: list[V], low: int = 0, high: int = size) -> list[V]:
        with em.scope():
            body(em, Index(i, 1 if width > 1 else 0, low, high, width))
        return []

    def within(place: V, low: int, high: int) -> V:
        if place.ref[0] != "%":
            return i64(min(max(int(place.ref), low), high))
        return one.ix.clamp(Index(place, 0, 0, size + 1), low, high).base

    def vectors_to(stop: V) -> None:
        if len(cuts) < 2:
            b.loop(first.base, stop, width, [], vector, "lanes")
            return
        for low, high in cuts:
            begin, until = within(first.base, low, high), within(stop, low, high)
            b.loop(begin, until, width, [], partial(vector, low=low, high=high), "piece")

    if size == width and first.constant == 0:
        vector(i64(0), [])
        return
    if width == 1 or size % width == 0:
        vectors_to(last)
        return
    end = Index(last, 0, 0, size + 1)
    whole = one.ix.sub(end, one.ix.divmod(end, width)[1]).base
    if size > width:
        vectors_to(whole)
    remaining = size % width
    register = family.machine.vector_bytes // 4
    # Below 64-byte vectors masked loads and stores are slow or missing. One element needs no vector; besides, LLVM 22
    # stores too many bytes for a truncation under a mask that is known to have one lane.
    if family.machine.vector_bytes < 64 and remaining > 1 and size < SHORT * width:

        def shorter() -> list[V]:
            # Loops carry vectors whose lanes are no power of two lane by lane (LLVM 22): whole registers first.
            at, left, align = whole, remaining, 0 if size < width else width
            while left:
                lanes = left if left < register else 1 << (left.bit_length() - 1)
                with family.at(lanes).scope():
                    body(family.at(lanes), Index(at, int(lanes > 1), 0, size, align))
                at, left, align = one.ix.add(Index(at, 0, 0, size), lanes).base, left - lanes, gcd(align, lanes)
            return []

        if size < width:
            shorter()
        else:
            b.branch(b.compare("icmp slt", whole, last), shorter)
        return
    if family.machine.vector_bytes < 64 or remaining == 1:

        def scalar(i: V, _: list[V]) -> list[V]:
            with one.scope():
                body(one, Index(i, 0, 0, size))
            return []

        b.loop(whole, last, 1, [], scalar, "rest")
        return

    def rest() -> list[V]:
        with em.scope():
            with em.masked(first_lanes(width, remaining)):
                body(em, Index(whole, 1, 0, size, width))
        return []

    if size < width:
        rest()
    else:
        b.branch(b.compare("icmp slt", whole, last), rest)


def side_by_side(
    family: Family, width: int, first: Index, last: V, size: int, body: Callable[[Emitter, Index], None], count: int
) -> Index:
    """Goes over so many equal parts of [first, last) at once; gives where what is left begins."""
    ix, many = family.at(1).ix, family.at(width)
    length = ix.sub(Index(last, 0, 0, size + 1), first)._replace(low=0)
    part = ix.mul(ix.divmod(length, count * width)[0], width)

    def vectors(i: V, _: list[V]) -> list[V]:
        for k in range(count):
            with many.scope():
                at = ix.add(Index(i, 0, 0, size), ix.mul(part, k))
                body(many, Index(at.base, 1, 0, size, width))
        return []

    family.b.loop(first.base, ix.add(first, part).base, width, [], vectors, "sides")
    return ix.add(first, ix.mul(part, count))._replace(low=0, high=size + 1, align=width)


def lane_count(block: Block, machine: Machine, inner: int, rows: int = 1, whole: bool = True) -> int:
    """How many lanes: as many of the widest type computed with as fill a register, no more than there are elements.

    `rows`: how many loops over `inner` elements there are for threads to share. `whole`: half as many, where rows
    are whole vectors then.
    """
    if machine.grouped:
        return 1
    if any(op.name == "reduce" and runs_along_lanes(op) for op in block.ops):
        return 1
    bits = [8]
    for op in block.ops:
        bits += [max(8, bits_of(compute_type(r.dtype))) for r in op.results if r.shape]
    bits += [max(8, bits_of(compute_type(a.dtype))) for a in block.args if a.shape]
    width = machine.vector_bytes * 8 // max(bits)
    if any(op.name == "reduce" for op in block.ops):
        width *= _columns(block, width, inner, machine.threads if rows < 4 * machine.threads else 1)
    width *= _chains(block, width, inner)
    while width > 1 and width // 2 >= inner:
        width //= 2
    if whole and inner % width and inner % (width // 2 or 1) == 0 and inner > width:
        width //= 2
    return width


def _columns(block: Block, width: int, inner: int, threads: int) -> int:
    """How many registers wide a reduction with lanes over the outputs is: long runs of memory per step of its loop are
    read several times faster than short ones, but the code grows with them, and every core wants a part."""
    cost = sum(OPS[op.name].flops for op in block.ops)
    plain = all(OPS[op.name].elementwise or op.name in _PLAIN for op in block.ops)
    factor = 16 if plain and cost <= 4 else 4 if plain and cost <= 40 else 1
    while factor > 1 and inner < factor * width * (1 if factor <= 4 else threads):
        factor //= 2
    return factor


def _chains(block: Block, width: int, inner: int) -> int:
    """How many registers wide a kernel with a loop in it is: an iteration waits for the one before it, so that several
    chains of them run side by side as fast as one. What they carry has to stay in registers."""
    loops = [op for op in block.ops if op.name == "loop"]
    if not loops:
        return 1
    carried = sum(bool(r.shape) * (2 if r.dtype.is_complex else 1) for op in loops for r in op.results)
    cost = sum(OPS[o.name].flops for op in loops for region in op.regions for o in region.ops)
    factor = CHAINS
    while factor > 1 and (factor * (carried + 1) > REGISTERS or factor * cost > CHAIN_COST or inner < factor * width):
        factor //= 2
    return factor


def registers(ops: Sequence[Op], width: int, inner: int, total: int) -> int:
    """How many registers of each value a loop over a large array goes on by.

    One register after the other is slow twice: much of a light loop is counting, and in a heavy one each instruction
    waits for the one before, further than the processor looks ahead for the next iteration's.
    """
    cost = sum(OPS[op.name].flops for op in ops)
    same = _same_everywhere(ops, total)
    plain = all(
        (OPS[op.name].elementwise or op.name in _STRAIGHT or op in same or fetch_ahead.contiguous(op))
        and not op.regions
        for op in ops
    )
    if not plain or width == 1 or total < LONG:
        return 1
    most = min([math_complex.registers(op) for op in ops], default=4)
    ways = [n for n in (4, 2) if n <= most and n * cost <= SPREAD_COST]
    return next((n for n in ways if inner % (n * width) == 0 or inner > 8 * width), 1)


def _same_everywhere(ops: Sequence[Op], total: int) -> set[Op]:
    """The ops of which single elements alone are used, such as the key of a random generator in a joined array."""
    users: dict[Value, list[Op]] = {}
    for op in ops:
        for value in op.operands:
            users.setdefault(value, []).append(op)
    found: set[Op] = set()
    for op in reversed(ops):
        small = all(prod(r.shape) < total and r in users for r in op.results)
        if small and all(prod(r.shape) == 1 or found.issuperset(users[r]) for r in op.results):
            found.add(op)
    return found


# Shorter arrays are not worth the code; nor are more operations than this.
LONG, SPREAD_COST = 1 << 14, 1000
# Ops that leave neighbours neighbours, spread one value over all lanes, or count.
_STRAIGHT = frozenset(
    {
        *("constant", "reshape", "broadcast_in_dim", "transpose", "slice", "dynamic_slice"),
        *("iota", "bitcast_convert", "rng_bit_generator"),
    }
)


# At most so many vectors of a value side by side, so many that are carried, and so many operations in an iteration.
CHAINS, REGISTERS, CHAIN_COST = 8, 24, 400
_PLAIN = ("reduce", "constant", "reshape", "broadcast_in_dim")

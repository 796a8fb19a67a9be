"""The update schedule: dynamic_update_slice and scatter in place.

The result's buffer holds operand 0's content already; only what the update touches is read and written. The update is
an element expression like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from ferrule.codegen import concurrent, fetch_ahead, places, short_rows, sorted_places, streams, whole_lines
from ferrule.codegen.emitter import Emitter, Family
from ferrule.codegen.index import ZERO, Component, Cond, Index, strides
from ferrule.codegen.interleave import SHORT
from ferrule.codegen.lanes import bits_of
from ferrule.codegen.llvm import V, i64
from ferrule.codegen.loop import GRAIN_NS, grain, lane_count, nest, registers, span
from ferrule.codegen.row_pieces import in_pieces
from ferrule.codegen.runs import joined
from ferrule.codegen.scalar import compute_type
from ferrule.ir import Block, Op, ScatterDims, Value, tensor
from ferrule.ops import OPS

# Registers of a window that are worth a thread.
SHARED = 4
# With fewer updates of each place, where the next one begins is foreseen too rarely for sorted_places.
IN_A_ROW = 8


def emit(family: Family, block: Block, outputs: Sequence[V], begin: V, end: V, nanoseconds: float) -> tuple[int, int]:
    """Writes the loops; gives the grid and the grain."""
    root = block.results[0].op
    assert root is not None
    if any(0 in v.shape for v in root.operands) and 0 in root.operands[-1 if root.name == "scatter" else 1].shape:
        return 0, 1
    if 0 in root.results[0].shape:
        return 0, 1
    # the work is proportional to the update, not to the whole result
    part = root.operands[-1 if root.name == "scatter" else 1].type.size / max(1, root.results[0].type.size)  # type: ignore[union-attr]
    schedule = _slice if root.name == "dynamic_update_slice" else _scatter
    return schedule(family, block, root, outputs, begin, end, nanoseconds * min(1.0, part))


def _slice(
    family: Family, block: Block, root: Op, outputs: Sequence[V], begin: V, end: V, nanoseconds: float
) -> tuple[int, int]:
    whole, update = root.operands[0].shape, root.operands[1]
    shape = update.shape
    one = family.at(1)
    starts = [one.index_of(root, 2 + d, (), 0, whole[d] - shape[d]) for d in range(len(shape))]
    base = one.ix.flatten(starts, whole)
    sizes = joined([update], shape, [d for d in range(len(shape)) if shape[d] != whole[d]])

    def offset(em: Emitter, at: Sequence[Component]) -> Index:
        return em.ix.add(em.ix.flatten(em.ix.reshape(at, sizes, shape), shape, strides(whole)), base)

    def element(em: Emitter, at: Sequence[Component]) -> None:
        lanes = em.value(update, em.ix.reshape(at, sizes, shape))
        em.store(outputs[0], update.dtype, offset(em, at), lanes)

    bare = [op for op in block.ops if op is not root]
    dense = _dense(shape, whole)
    if dense and (columns := _short_rows(family, bare, update, sizes)) is not None:

        def rows(em: Emitter, outer: Sequence[Component], first: Index) -> None:
            with short_rows.by_number(family, columns, bare, em) as number:
                places = [em.ix.reshape([*outer, first, number(k)], sizes, shape) for k in range(columns.count)]
                found = [em.value(update, place) for place in places]
            columns.store_apart(em, outputs[0], update.dtype, offset(em, [*outer, first, number(0)]), found)

        grid = in_pieces(family, sizes, columns.width, begin, end, rows, rows)
        return grid, grain(grid, nanoseconds)
    width = lane_count(block, family.machine, sizes[-1])
    wide = registers(bare, width, sizes[-1], prod(sizes))
    part = Block()  # what is written, and what is read for it
    part.args, part.ops, part.results = [a for a in block.args if a is not root.operands[0]], bare, [update]
    cost = sum(OPS[op.name].flops for op in bare)
    plain = dense and width > 1 and not any(op.regions for op in bare)
    lines = whole_lines.lanes(family, part, sizes[-1], cost, begins=[1]) if plain else 0  # may begin anywhere
    past = lines and whole_lines.past_the_cache(family, part, lines, sizes[-1])
    write = partial(nest, family, sizes, width, begin, end, element, nanoseconds, wide, lines=lines, offset=offset)
    grid = streams.either(family, [family.pointers[a] for a in part.args], outputs, past, write)
    return grid, grain(grid, nanoseconds)


def _dense(shape: Sequence[int], whole: Sequence[int]) -> bool:
    """Whether elements along the update's innermost loop lie side by side, not one in each row of the whole, say."""
    inner = max((d for d in range(len(shape)) if shape[d] > 1), default=0)
    return prod(whole[inner + 1 :]) == 1


def _short_rows(family: Family, ops: Sequence[Op], update: Value, sizes: Sequence[int]) -> short_rows.Columns | None:
    """The columns, if rows too short for vectors of their own are written and there is something to compute."""
    if family.machine.grouped or len(sizes) < 2 or not 1 < sizes[-1] <= SHORT or any(op.regions for op in ops):
        return None
    types = [tensor(v).dtype for op in ops for v in (*op.operands, *op.results) if v.shape]
    if not types or any(t.is_complex or (t.bits < 8 and t.kind != "bool") for t in (*types, tensor(update).dtype)):
        return None
    width = family.machine.vector_bytes * 8 // max(8, *(bits_of(compute_type(t)) for t in types))
    return short_rows.Columns(width, sizes[-1]) if sizes[-2] >= 2 * width else None


def _scatter(
    family: Family, block: Block, root: Op, outputs: Sequence[V], begin: V, end: V, nanoseconds: float
) -> tuple[int, int]:
    count = (len(root.operands) - 1) // 2
    updates = root.operands[count + 1 :]
    dims: ScatterDims = root.attrs["scatter_dimension_numbers"]
    whole, shape = root.operands[0].shape, updates[0].shape
    dtypes = [r.dtype for r in root.results]

    together = None
    if family.machine.grouped and not root.attrs.get("unique_indices"):
        together = concurrent.operation(root, family.machine)

    def place_of(em: Emitter, at: Sequence[Component]) -> tuple[list[Component], Cond]:
        return places.place_of(em, root, count, whole, shape, at)

    def element(em: Emitter, at: Sequence[Component]) -> None:
        index = at if shape else ()
        place, inside = place_of(em, at)

        def write() -> list[V]:
            with em.scope():
                offset = em.ix.flatten(place, whole)
                if together is not None:
                    value = em.s.convert(updates[0].dtype, dtypes[0], em.value(updates[0], index))
                    concurrent.apply(em, together, outputs[0], dtypes[0], offset, value)
                    return []
                old = [em.load_at(p, d, offset) for p, d in zip(outputs, dtypes, strict=True)]
                new = [em.s.convert(u.dtype, d, em.value(u, index)) for u, d in zip(updates, dtypes, strict=True)]
                for pointer, d, lanes in zip(outputs, dtypes, places.combined(em, root, old, new), strict=True):
                    em.store(pointer, d, offset, lanes)
            return []

        if inside is True:
            write()
        elif inside is not False:
            assert inside.type == "i1"
            em.b.branch(inside, write)

    sizes = list(shape) or [1]
    last = len(shape) - 1
    # Lanes need distinct places: they run along a dimension of the window, where the index vector is one for all.
    in_window = last in dims.update_window_dims
    width = lane_count(block, family.machine, sizes[-1]) if in_window else 1
    if root.attrs.get("unique_indices"):
        grid = nest(family, sizes, width, begin, end, element, nanoseconds)
        return grid, grain(grid, nanoseconds)
    if together is not None:
        return nest(family, sizes, 1, begin, end, element, nanoseconds), 1
    if family.machine.grouped:
        return concurrent.by_window(family, root, shape, element), 1
    many = prod(sizes) >= IN_A_ROW * prod(whole)
    if root.attrs.get("indices_are_sorted") and many and count == 1 and not in_window and not dtypes[0].is_complex:
        sorted_places.emit(family, root, outputs[0], sizes, place_of)
        return 1, 1
    # Places may repeat: who works through the updates does so in order. Threads share them by parts of the windows.
    b, inner, total = family.b, sizes[-1], prod(sizes[:-1])
    wanted = min(family.machine.threads, inner // (SHARED * width)) if in_window and nanoseconds > 2 * GRAIN_NS else 1
    piece = -(-inner // (max(wanted, 1) * width)) * width
    pieces = -(-inner // piece)

    run = piece * dtypes[0].itemsize if in_window and whole[-1] == shape[-1] else 0
    ahead = fetch_ahead.rows_ahead(root.operands[0], run)

    def part(p: V, _: list[V]) -> list[V]:
        ix = family.at(1).ix
        first, last = ZERO, Index(i64(inner), 0, inner, inner + 1)
        if pieces > 1:
            first = ix.mul(Index(p, 0, 0, pieces), piece)
            last = ix.clamp(ix.add(first, piece), 0, inner)

        def row(i: V, _: list[V]) -> list[V]:
            em = family.at(1)
            with em.scope():
                outer = em.ix.split(Index(i, 0, 0, total), sizes[:-1])
                if ahead:
                    then = em.ix.clamp(em.ix.add(Index(i, 0, 0, total), ahead), 0, total - 1)
                    spot = place_of(em, (*em.ix.split(then, sizes[:-1]), first))[0]
                    fetch_ahead.ask_run(em, outputs[0], dtypes[0], em.ix.flatten(spot, whole), run)
                if in_window:
                    place_of(em, (*outer, ZERO))  # read once for the row
                span(family, width, first, last.base, inner, lambda em, at: element(em, (*outer, at)))
            return []

        b.loop(i64(0), i64(total), 1, [], row, "rows")
        return []

    if pieces == 1:
        part(i64(0), [])
        return 1, 1
    b.loop(begin, end, 1, [], part, "parts")
    return pieces, 1

"""The scan schedule: a reduce_window whose windows grow by one element is a running total along one dimension.

So is the op `running_total`, whose lines, or whose parts of lines, each start with a value of their own.

A processor goes along a dimension whose elements are neighbours in memory by vectors: the totals within a vector in
log2(lanes) steps, each of which combines what stands 1, 2, 4, … lanes before, and what came before the vector joins
them all. Only that last operation waits for the vector before.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ferrule.codegen import items
from ferrule.codegen.emitter import Emitter, Family, Lanes
from ferrule.codegen.index import Component, Index
from ferrule.codegen.lanes import bits_of, split
from ferrule.codegen.llvm import V, i64
from ferrule.codegen.loop import grain, lane_count, nest
from ferrule.codegen.memory import shuffle
from ferrule.codegen.reduce import combiner
from ferrule.codegen.scalar import compute_type
from ferrule.ir import Block, Op
from ferrule.ops import OPS
from ferrule.ops.bodies import monoid, total_type
from ferrule.ops.checks import per_axis
from ferrule.ops.starts import constant_operand, evaluate_body, neutral_of

# Where a processor stands in for a GPU, fewer lines than this that are neighbours in memory are not made a vector of,
# which would be gathered and scattered element by element.
NEIGHBOURS = 8
# So many vectors of totals side by side, where an operation costs as much.
CHAINS, HEAVY = 4, 10.0


def direction(op: Op) -> tuple[int, bool] | None:
    """(dimension, backward) when the windows reach from each element to the beginning, or to the end, of a dimension
    and the initial values may be combined in any number of times."""
    shape = op.operands[0].shape
    rank, count = len(shape), len(op.operands) // 2
    window, padding = op.attrs["window_dimensions"], per_axis(op, "padding", rank, (0, 0))
    for name in ("window_strides", "base_dilations", "window_dilations"):
        if any(v != 1 for v in per_axis(op, name, rank, 1)):
            return None
    long = [d for d in range(rank) if window[d] != 1]
    if len(long) != 1 or 0 in shape or any(tuple(padding[d]) != (0, 0) for d in range(rank) if d != long[0]):
        return None
    axis, reach = long[0], shape[long[0]] - 1
    if window[axis] != reach + 1 or tuple(padding[axis]) not in ((reach, 0), (0, reach)):
        return None
    inits = [constant_operand(op, count + i) for i in range(count)]
    if any(i is None for i in inits) or op.regions[0].free():
        return None
    values = [np.asarray(i).reshape(1) for i in inits]
    try:
        twice = evaluate_body(op.regions[0], [*values, *values])
    except KeyError:
        return None
    if any(a.tobytes() != b.tobytes() for a, b in zip(twice, values, strict=True)):
        return None
    return axis, tuple(padding[axis]) == (0, reach)


def emit(family: Family, block: Block, outputs: Sequence[V], begin: V, end: V, nanoseconds: float) -> tuple[int, int]:
    """Writes the loops; gives the grid and the grain."""
    root = block.results[0].op
    assert root is not None
    own_starts = root.name == "running_total"
    found = (root.attrs["dimension"], root.attrs["backward"]) if own_starts else direction(root)
    assert found is not None
    axis, backward = found
    shape, body = root.operands[0].shape, root.regions[0]
    count, length = len(root.operands) // 2, shape[axis]
    dtypes = [r.dtype for r in root.results]
    combine, carried = combiner(body, dtypes)[0], list(dtypes)
    if count == 1:
        carried = [total_type(dtypes[0], monoid(body), family.b.dialect.has_f64)]
    wide = carried[0]
    exact = wide != dtypes[0]
    inner, outer = prod(shape[axis + 1 :]), prod(shape[:axis])
    part = root.attrs.get("part", length)
    parts = -(-length // part)

    kind, lanes = monoid(body), 1
    neutral = neutral_of(kind, wide) if kind is not None and not wide.is_complex else None
    if neutral is not None and inner == 1 and count == 1 and not family.machine.grouped:
        lanes = family.machine.vector_bytes * 8 // max(8, bits_of(compute_type(wide)))
        if length < 2 * lanes or parts > 1 and part % lanes:
            lanes = 1
    whole = length - length % lanes if lanes > 1 else 0

    def apply(em: Emitter, totals: list[Lanes], news: list[Lanes]) -> list[Lanes]:
        if exact:
            return [(em.s.add if kind == "add" else em.s.mul)(wide, totals[0], news[0])]
        return combine(em, totals, news)

    def vectors(em: Emitter, at: Sequence[Component], start: Lanes, span: tuple[V, V]) -> Lanes:
        """The total before the end of a span of whole vectors; writes the totals up to there."""
        many = family.at(lanes)
        fill = many.s.const(wide, neutral)
        assert isinstance(fill, V)

        def vector(i: V, carried: list[V]) -> list[V]:
            with many.scope():
                place = Index(i, 1, 0, whole, lanes)
                totals, distance = element(many, at, place), 1
                while distance < lanes:
                    earlier = [lane - distance if lane >= distance else lanes + lane for lane in range(lanes)]
                    totals = apply(many, [shuffle(family.b, totals[0], fill, earlier)], totals)
                    distance *= 2
                before = carried[0]
                write(many, at, place, apply(many, [before], totals))
                last = shuffle(family.b, totals[0], totals[0], [lanes - 1] * lanes)
                return apply(many, [before], [last])

        found = family.b.loop(*span, lanes, [many.spread(start)], vector, "vectors")
        return family.b.emit(split(found[0].type)[0], f"extractelement {found[0]}, i64 0")

    def read(em: Emitter, i: int, index: Sequence[Component]) -> Lanes:
        value = root.operands[i]
        found = em.value(value, index)
        if exact and value.dtype == wide:
            return found
        found = em.s.convert(value.dtype, dtypes[i % count], found)
        return em.s.convert(dtypes[0], wide, found) if exact else found

    def place_of(em: Emitter, at: Sequence[Component], i: Index) -> list[Component]:
        return [at[0], em.ix.sub(em.ix.number(length - 1), i) if backward else i, at[2]]

    def element(em: Emitter, at: Sequence[Component], i: Index) -> list[Lanes]:
        index = em.ix.reshape(place_of(em, at, i), [outer, length, inner], shape)
        return [read(em, k, index) for k in range(count)]

    def write(em: Emitter, at: Sequence[Component], i: Index, totals: list[Lanes]) -> None:
        offset = em.ix.flatten(place_of(em, at, i), [outer, length, inner])
        for k, value in enumerate(block.results):
            em.store(outputs[k], value.dtype, offset, em.s.round(dtypes[0], totals[k]) if exact else totals[k])

    def line(em: Emitter, at: Sequence[Component]) -> None:
        """One total (or one per lane) from end to end of the dimension, or of a part of it."""

        def step(i: Index, totals: list[Lanes]) -> list[Lanes]:
            news = element(em, at, i)
            totals = apply(em, news, totals) if backward else apply(em, totals, news)  # in the order of elements
            write(em, at, i, totals)
            return totals

        start: Sequence[Component] = ()
        if own_starts:
            which = em.ix.sub(em.ix.number(parts - 1), at[1]) if backward else at[1]
            start = em.ix.reshape([at[0], which, at[2]], [outer, parts, inner], root.operands[1].shape)
        begins = [read(em, count + k, start) for k in range(count)]
        first, stop, last = i64(0), i64(whole), i64(length)
        if parts > 1:
            begin = em.ix.mul(at[1], part)
            end = em.ix.clamp(em.ix.add(begin, part), 0, length)
            first, stop, last = begin.base, em.ix.clamp(end, 0, whole).base, end.base
        if lanes > 1:
            begins = [vectors(em, at, begins[0], (first, stop))]
        if whole < length:
            em.loop(length, begins, step, carried, whole, (stop if lanes > 1 else first, last))

    if family.machine.grouped and inner < NEIGHBOURS and family.machine.kind == "cpu":  # type: ignore[attr-defined]
        return items.each(family, [outer, parts, inner], 1, line, alone=True), 1
    width = lane_count(block, family.machine, inner)
    cost = sum(OPS[op.name].flops for op in body.ops if op.name in OPS)
    if count == 1 and cost >= HEAVY and not family.machine.grouped:
        # An operation of many steps waits for each of them; several vectors side by side do not.
        most = min(CHAINS * width, inner, inner * outer // family.machine.threads)
        while 1 < width <= most // 2:
            width *= 2
    grid = nest(family, [outer, parts, inner], width, begin, end, line, nanoseconds)
    return grid, grain(grid, nanoseconds)

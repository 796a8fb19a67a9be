"""Reductions inside element expressions: many input elements, combined by a region, make one element.

With lanes over the outputs, or a body whose order matters, each lane combines its elements one after the other. A
scalar expression that reduces the innermost, contiguous dimension uses vectors along that dimension instead:
accumulators in the lanes, combined in halves at the end. That needs a body that is associative (StableHLO demands
it) and commutative, and a value to start all lanes with that may be combined in any number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from math import prod

from ferrule.codegen import fetch_ahead, pairs, row_vectors, wide_flags
from ferrule.codegen.abreast import places
from ferrule.codegen.emitter import Emitter, Key, Lanes, parts, whole
from ferrule.codegen.index import Component, Index
from ferrule.codegen.lanes import bits_of
from ferrule.codegen.llvm import V, i64
from ferrule.codegen.runs import joined
from ferrule.codegen.scalar import compute_type
from ferrule.ir import Block, Op, Value, tensor
from ferrule.ir.types import DType, f32
from ferrule.ops.bodies import monoid
from ferrule.ops.starts import lane_starts

# A vector reduction keeps this many registers of each operand's accumulators, to hide the latency of the body.
UNROLL = 4
# One long run of float additions loses digits: so many are added up before their sum joins a total. Sums in vectors
# have runs in each lane; theirs are longer, as fewer of them are joined.
RUN, LANES_RUN = 8, 16
# From this many elements on, lanes along the reduced dimension pay for their combination at the end.
LANES_FROM = 8

Combine = Callable[[Emitter, Sequence[Lanes], Sequence[Lanes]], list[Lanes]]


def reduce_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    """The element rule of `reduce`; all results are computed at once."""
    if em.family.team is not None:
        from ferrule.codegen.teams import reduce_by_team

        results = reduce_by_team(em, op, index)
        for value, lanes in zip(op.results, results, strict=True):
            em.remember(value, index, lanes)
        return results[k]
    if em.family.folded is not None and em.width == 1:
        from ferrule.codegen.column_folds import reduce_columns

        if reduce_columns(em, op, index, em.family.folded):
            return em.memo[op.results[k], tuple(index)]
    group = em.family.alike.get(op, [op])
    fold = Fold(em, op) if len(group) == 1 else Joint(em, group)
    alone = em.width == 1 and not em.family.machine.grouped
    results = fold.along_lanes(index) if alone and fold.lanes else fold.one_by_one(index)
    found = dict(zip([r for one in group for r in one.results], results, strict=True))
    for value, lanes in found.items():
        em.remember(value, index, lanes)
    return found[op.results[k]]


def runs_along_lanes(op: Op) -> bool:
    """Does a scalar loop over this reduction's outputs use vectors along the reduced dimension?"""
    x, dims = op.operands[0], op.attrs["dimensions"]
    if not x.shape or len(x.shape) - 1 not in dims:
        return False
    inner = 1
    for d in reversed(range(len(x.shape))):
        if d not in dims:
            break
        inner *= x.shape[d]
    return inner >= LANES_FROM and lane_starts(op) is not None


def combiner(body: Block, dtypes: Sequence[DType]) -> tuple[Combine, bool]:
    """Applies a body; the flag says that sums of a narrow float stay unrounded until the end."""
    kind = monoid(body)
    if kind == "add" and dtypes[0].is_float and dtypes[0].bits < 32:
        return lambda em, a, b: [em.s.add(f32, a[0], b[0])], True
    if kind in ("maximum", "minimum") and dtypes[0].is_float:
        return lambda em, a, b: [em.s.extreme(a[0], b[0], kind == "maximum")], False
    return lambda em, a, b: em.inline(body, [*a, *b]), False


class Fold:
    """One reduction, as seen from an emitter."""

    def __init__(self, em: Emitter, op: Op) -> None:
        self.em, self.op = em, op
        self.count = len(op.operands) // 2
        self.body = op.regions[0]
        self.shape = op.operands[0].shape
        self.gone = sorted(op.attrs["dimensions"])
        self.dtypes = [r.dtype for r in op.results]
        self.combine, self.unrounded = combiner(self.body, self.dtypes)
        self.carried = [f32] if self.unrounded else self.dtypes
        self.wide = wide_flags.carried(op, em.family)
        if self.wide is not None:
            self.carried, self.combine = [self.wide], wide_flags.combiner(op)
        # runs of neighbouring reduced dimensions: each is one loop
        numbered = groupby(enumerate(self.gone), key=lambda pair: pair[1] - pair[0])
        self.runs = [[d for _, d in group] for _, group in numbered]
        self.lanes = runs_along_lanes(op)
        # Do sums lose digits?
        self.adds = monoid(self.body) == "add" and (self.dtypes[0].is_float or self.dtypes[0].is_complex)
        self.read_from = op.operands[: self.count]

    @property
    def pairs(self) -> bool:
        """Are vectors of bf16 read in pairs?"""
        return pairs.apply(self.op, self.em.family)

    def inputs(
        self, em: Emitter, index: Key, at: Sequence[Component], loops: Sequence[Sequence[int]] = ()
    ) -> list[Lanes]:
        """The input elements at output `index` and positions `at`: one for each of the `loops` that go over a run of
        reduced dimensions, which is one loop if nothing else is said."""
        place: dict[int, Component] = {}
        rest = list(at)
        for run, sizes in zip(self.runs, loops or [()] * len(self.runs), strict=True):
            shape = [self.shape[d] for d in run]
            sizes = sizes or (prod(shape),)
            position, rest = rest[: len(sizes)], rest[len(sizes) :]
            place.update(zip(run, em.ix.reshape(position, sizes, shape), strict=True))
        kept = iter(index)
        full = [place[d] if d in place else next(kept) for d in range(len(self.shape))]
        return [self.read(em, i, full) for i in range(self.count)]

    def read(self, em: Emitter, i: int, index: Sequence[Component]) -> Lanes:
        value = self.op.operands[i]
        lanes = em.value(value, index)
        for kept, pointer in em.family.kept.items():
            if value is kept or (value.op is not None and value.op.name == "convert" and value.op.operands[0] is kept):
                em.store(pointer, tensor(kept).dtype, em.ix.flatten(index, self.shape), em.value(kept, index))
        lanes = em.s.convert(value.dtype, self.dtypes[i % self.count], lanes)
        return lanes if self.wide is None else wide_flags.widen(em, self.wide, lanes)

    def inits(self, em: Emitter) -> list[Lanes]:
        return [self.read(em, self.count + i, ()) for i in range(self.count)]

    def begin(self, em: Emitter) -> tuple[list[Lanes], bool, int | None]:
        """What all lanes start with, whether that is the initial value, and the order of lanes (ops/starts.py)."""
        start = lane_starts(self.op)
        assert start is not None
        if self.wide is not None:
            return [em.s.const(self.wide, -int(start.values[0]))], start.is_init, start.order
        found = [em.s.const(d, v) for d, v in zip(self.carried, start.values, strict=True)]
        return found, start.is_init, start.order

    def nothing(self, em: Emitter) -> list[Lanes]:
        """What a run of additions starts with."""
        return [em.s.const(d, 0.0 if d.is_complex else -0.0) for d in self.carried]

    def rebuild(self, flat: Sequence[V]) -> list[Lanes]:
        """Carried values from their operands."""
        return _rebuild(self.carried, flat)

    def finish(self, em: Emitter, values: list[Lanes]) -> list[Lanes]:
        if self.wide is not None:
            return [wide_flags.flags(em, self.wide, values[0])]
        return [em.s.round(self.dtypes[0], values[0])] if self.unrounded else values

    def one_by_one(self, index: Key) -> list[Lanes]:
        em = self.em
        columns = em.family.columns
        if columns is not None and columns.width == em.width and em.family.mask is None:
            total = row_vectors.reduced(em, self, index) if row_vectors.fits(self, em.family, em.width) else None
            total = total or columns.fold(em, self.combine, lambda at: self.inputs(em, index, [at]))
            return self.finish(em, self.combine(em, self.inits(em), total))
        sizes = [prod(self.shape[d] for d in run) for run in self.runs]

        def level(depth: int, at: list[Component], carried: list[Lanes]) -> Sequence[Lanes]:
            if depth == len(sizes):
                with fetch_ahead.asking(em.family, 0):  # what comes next in memory belongs to other results
                    return self.combine(em, carried, self.inputs(em, index, at))

            def step(i: Index, c: list[Lanes]) -> Sequence[Lanes]:
                return level(depth + 1, [*at, i], c)

            return self.in_runs(em, sizes[depth], carried, step)

        return self.finish(em, list(level(0, [], self.inits(em))))

    def in_runs(
        self,
        em: Emitter,
        count: int,
        carried: list[Lanes],
        step: Callable[[Index, list[Lanes]], Sequence[Lanes]],
        most: int = RUN,
    ) -> list[Lanes]:
        """A loop over `count` elements; sums of many floats are added up in runs, and the runs' sums in runs."""
        if count <= most or not self.adds:
            return em.loop(count, carried, step, self.carried)
        zero = self.nothing(em)

        def run(start: Index, length: int, c: list[Lanes]) -> Sequence[Lanes]:
            def one(i: Index, inner: list[Lanes]) -> Sequence[Lanes]:
                return step(em.ix.add(start, i), inner)

            return self.combine(em, c, em.loop(length, zero, one, self.carried))

        runs, rest = divmod(count, most)
        total = self.in_runs(em, runs, carried, lambda i, c: run(em.ix.mul(i, most), most, c), most)
        if rest:
            with em.scope():
                total = list(run(em.ix.number(runs * most), rest, total))
        return total

    def along_lanes(self, index: Key) -> list[Lanes]:
        em, b = self.em, self.em.b
        loops = self.loops()
        sizes = [size for run in loops for size in run]
        inner = sizes[-1]
        width = self.width(inner)
        wide = em.family.at(width)
        begin, is_init, order = self.begin(wide)
        rebuild = self.rebuild
        registers = width * 4 // em.family.machine.vector_bytes
        paired = registers > 1 and order is None and self.pairs
        count = places(em.family, self.read_from, inner) if order is None else 1
        part = inner // (count * width) * width
        ahead = fetch_ahead.distance(list(em.family.pointers)) if count == 1 else 0

        def along(first: int, past: int, total: list[Lanes], step: Callable[[V, list[V]], list[V]]) -> list[Lanes]:
            """The vectors from element `first` on; `step` takes the one at an element."""

            def vector(i: Index, c: list[Lanes]) -> list[Lanes]:
                return rebuild(step(wide.ix.add(wide.ix.mul(i, width), first).base, _flat(c)))

            return self.in_runs(wide, (past - first) // width, total, vector, LANES_RUN)

        def vectors(at: list[Component], carried: list[Lanes]) -> list[Lanes]:
            def step(count: int, i: V, flat: list[V]) -> list[V]:
                with (
                    em.scope(),
                    fetch_ahead.asking(em.family, ahead),
                    pairs.reading(em.family, width if paired else 0),
                ):
                    here = Index(i, 1, 0, inner if count == 1 else part, width)
                    news = [self.inputs(wide, index, [*at, em.ix.add(here, k * part)], loops) for k in range(count)]
                    while len(news) > 1:
                        news = [self.combine(wide, x, y) for x, y in zip(news[::2], news[1::2], strict=True)]
                    return _flat(self.combine(wide, rebuild(flat), news[0]))

            full, done, total = inner - inner % width, 0, carried
            if count > 1:
                done = count * part
                total = along(0, part, total, partial(step, count))
            if full > done:
                total = along(done, full, total, partial(step, 1))
            if full == inner:
                return total
            with em.scope():
                flags = ", ".join(f"i1 {str(lane < inner - full).lower()}" for lane in range(width))
                mask = V(f"<{width} x i1>", f"<{flags}>")
                with em.masked(mask), pairs.reading(em.family, 0):
                    here = Index(i64(full), 1, full, inner, width)
                    news = self.combine(wide, total, self.inputs(wide, index, [*at, here], loops))
                kept = zip(_flat(news), _flat(total), strict=True)
                return rebuild([b.select(mask, new, old) for new, old in kept])

        def level(depth: int, at: list[Component], carried: list[Lanes]) -> Sequence[Lanes]:
            if depth == len(sizes) - 1:
                return vectors(at, carried)
            return self.in_runs(wide, sizes[depth], carried, lambda i, c: level(depth + 1, [*at, i], c))

        total = self.halve(width, list(level(0, [], begin)), order)
        if not is_init:
            total = self.combine(em, self.inits(em), total)
        return self.finish(em, total)

    def loops(self) -> list[list[int]]:
        """The sizes of the loops over each run of reduced dimensions.

        An innermost run is cut where the operands are (a channel's scale in a group's elements), so that what is the
        same for all of a cut's elements is the same for all lanes.
        """
        found = [[prod(self.shape[d] for d in run)] for run in self.runs]
        (inner,) = found[-1]
        if 0 in self.shape:
            return found
        last = joined(self.read_from, self.shape, [self.runs[-1][0]])[-1]
        if LANES_FROM <= last < inner and inner % last == 0 and last % self.width(inner):
            found[-1] = [inner // last, last]
        return found

    def width(self, inner: int) -> int:
        machine = self.em.family.machine
        bits = max(bits_of(compute_type(d)) for d in (*(v.dtype for v in self.read_from), *self.carried))
        bits = max(bits, 8)
        width = machine.vector_bytes * 8 // bits
        if inner >= width * UNROLL * 2 and not wide_flags.packed(self.body, machine):
            width *= max(1, UNROLL // self.count)
        while width > inner:
            width //= 2
        return width

    def halve(self, width: int, values: list[Lanes], order: int | None = None) -> list[Lanes]:
        """Combines the lanes: the first half with the second, until one is left.

        `order`: of two lanes the one with the smaller value of this operand is the first argument.
        """
        while width > 1:
            width //= 2
            em = self.em.family.at(width)
            first, second = ([self.half(v, width, upper) for v in values] for upper in (False, True))
            if order is not None:
                later = em.s.compare("GT", self.dtypes[order], first[order], second[order])
                swapped = [em.s.select(later, b, a) for a, b in zip(first, second, strict=True)]
                second = [em.s.select(later, a, b) for a, b in zip(first, second, strict=True)]
                first = swapped
            values = self.combine(em, first, second)
        return values

    def half(self, lanes: Lanes, width: int, upper: bool) -> Lanes:
        if not isinstance(lanes, V):
            return tuple(self.half(part, width, upper) for part in lanes)
        b, first = self.em.b, width if upper else 0
        scalar = lanes.type[1:-1].split(" x ")[1]
        if width == 1:
            return b.emit(scalar, f"extractelement {lanes}, i64 {first}")
        picks = ", ".join(f"i32 {first + i}" for i in range(width))
        kind = f"<{width} x {scalar}>"
        return b.emit(kind, f"shufflevector {lanes}, {lanes.type} poison, <{width} x i32> <{picks}>")


class Joint(Fold):
    """Several reductions of one kernel, of which each has one operand, over the same elements: one loop for all."""

    def __init__(self, em: Emitter, ops: Sequence[Op]) -> None:
        super().__init__(em, ops[0])
        self.each = [Fold(em, op) for op in ops]
        self.count, self.adds = len(ops), any(one.adds for one in self.each)
        self.dtypes = [d for one in self.each for d in one.dtypes]
        self.carried = [d for one in self.each for d in one.carried]
        self.read_from = [v for one in self.each for v in one.read_from]

        def combine(em: Emitter, a: Sequence[Lanes], b: Sequence[Lanes]) -> list[Lanes]:
            return [one.combine(em, [x], [y])[0] for one, x, y in zip(self.each, a, b, strict=True)]

        self.combine = combine

    @property
    def pairs(self) -> bool:
        return False

    def inputs(
        self, em: Emitter, index: Key, at: Sequence[Component], loops: Sequence[Sequence[int]] = ()
    ) -> list[Lanes]:
        return [one.inputs(em, index, at, loops)[0] for one in self.each]

    def inits(self, em: Emitter) -> list[Lanes]:
        return [one.inits(em)[0] for one in self.each]

    def begin(self, em: Emitter) -> tuple[list[Lanes], bool, int | None]:
        return [one.begin(em)[0][0] for one in self.each], False, None

    def nothing(self, em: Emitter) -> list[Lanes]:
        return [(one.nothing(em) if one.adds else one.begin(em)[0])[0] for one in self.each]

    def finish(self, em: Emitter, values: list[Lanes]) -> list[Lanes]:
        return [one.finish(em, [value])[0] for one, value in zip(self.each, values, strict=True)]


def alike(a: Op, b: Op) -> bool:
    """Are these reductions of one operand each that one loop does for both?"""
    if a.attrs["dimensions"] != b.attrs["dimensions"] or a.operands[0].shape != b.operands[0].shape:
        return False
    return _joins(a) and _joins(b) and a.result.dtype.bits == b.result.dtype.bits


def _joins(op: Op) -> bool:
    """A monoid of numbers, in which the order does not matter."""
    if len(op.operands) != 2 or op.result.dtype.kind == "bool" or op.operands[0].dtype.kind == "bool":
        return False
    return monoid(op.regions[0]) is not None and (start := lane_starts(op)) is not None and not start.is_init


def groups(block: Block) -> dict[Op, list[Op]]:
    """The reductions of a kernel that are alike, for each one of several."""
    found: list[list[Op]] = []
    chained = _chained(block)
    for op in block.ops:
        if op.name == "reduce" and op not in chained:
            group = next((g for g in found if alike(g[0], op)), None)
            if group is None:
                found.append([op])
            else:
                group.append(op)
    return {op: group for group in found if len(group) > 1 for op in group}


def _chained(block: Block) -> set[Op]:
    """The reductions from which elements of another one are computed, and those others."""
    found, made = set[Op](), dict[Value, frozenset[Op]]()
    for op in block.ops:
        before = frozenset[Op]().union(*(made.get(v, ()) for v in op.operands))
        if op.name == "reduce":
            found |= {op, *before} if before else set()
            before |= {op}
        made.update((r, before) for r in op.results)
    return found


def _flat(values: Sequence[Lanes]) -> list[V]:
    return [p for lanes in values for p in parts(lanes)]


def _rebuild(dtypes: Sequence[DType], flat: Sequence[V]) -> list[Lanes]:
    rest = list(flat)
    return [whole(d, [rest.pop(0) for _ in range(2 if d.is_complex else 1)]) for d in dtypes]

"""Reductions by teams of work-items: the items of a group, or a power-of-two part of them, share one result each.

Each item of a team combines every L-th element, so that neighbours read neighbours; then the partial values go through
the group's memory, in two steps of fan-in of at most 16. All items of the team get the total.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from ferrule.codegen.emitter import Emitter, Family, Key, Lanes
from ferrule.codegen.index import Component, Index
from ferrule.codegen.items import dialect
from ferrule.codegen.llvm import V, i64
from ferrule.codegen.reduce import Fold
from ferrule.codegen.scalar import memory_type
from ferrule.ir import Block, Op, Value
from ferrule.ops import OPS
from ferrule.ops.starts import start_values

# The elements that an item of a team that is not full should have at least.
EACH = 4
# Shorter reductions are done by one item each.
TEAM_FROM = 16
# So many values one item adds up without losing digits that matter.
PLAIN = 256
# Values that one item combines in a step through the group's memory.
FAN = 16


@dataclass
class Team:
    """`size` items; `lane` is this one's number, `number` the team's in the group, of `count`."""

    size: int
    count: int
    lane: Index
    number: Index
    done: dict[tuple[Op, Key], list[Lanes]] = field(default_factory=dict)


def reduced(op: Op) -> int:
    """How many elements make one result."""
    return prod(op.operands[0].shape[d] for d in op.attrs["dimensions"])


def wants_team(op: Op) -> bool:
    """Does this reduction read faster when neighbouring items read neighbouring elements of one result?"""
    shape, dims = op.operands[0].shape, op.attrs["dimensions"]
    if op.name != "reduce" or 0 in shape or reduced(op) < TEAM_FROM or start_values(op) is None:
        return False
    results = op.results[0].type.size  # type: ignore[union-attr]
    inner = 1
    for d in reversed(range(len(shape))):
        if d not in dims:
            break
        inner *= shape[d]
    # Along other dimensions each item has a result of its own, as long as there are enough of them.
    return inner >= TEAM_FROM or results < 64


def team_size(elements: int, limit: int) -> int:
    """The power of two for reductions over so many elements."""
    size = 1
    while size * 2 <= limit and size * 2 * EACH <= elements:
        size *= 2
    return size


def limit_of(family: Family) -> int:
    """The most work-items in a team, or in a group of small teams."""
    machine = family.machine
    return min(machine.team_items, machine.group_size)  # type: ignore[attr-defined]


def plan(block: Block) -> int | None:
    """The number of elements of the reductions, when teams compute this block's results; else None."""
    found = [op for op in block.ops if op.name == "reduce"]
    shape = block.results[0].shape
    if not found or not all(wants_team(op) and op.results[0].shape == shape for op in found):
        return None
    if any(r.shape != shape for r in block.results) or 0 in shape or not _pointwise(block):
        return None
    return max(reduced(op) for op in found)


def _pointwise(block: Block) -> bool:
    """Is each reduction evaluated at the index of the result, and nowhere else?"""
    shape = block.results[0].shape
    stack: list[Value] = list(block.results)
    seen: set[Value] = set()
    while stack:
        value = stack.pop()
        op = value.op
        if value in seen or op is None or op.name == "reduce":
            continue
        seen.add(value)
        if OPS[op.name].elementwise and all(v.shape == shape or not v.shape for v in op.operands):
            stack += op.operands
        elif _contains_reduce(op):
            return False
    return True


def _contains_reduce(op: Op) -> bool:
    stack, seen = list(op.operands), set()
    while stack:
        value = stack.pop()
        if value in seen or value.op is None:
            continue
        seen.add(value)
        if value.op.name == "reduce":
            return True
        stack += value.op.operands
    return False


def emit(family: Family, block: Block, outputs: Sequence[V], elements: int) -> int:
    """Writes the kernel; gives the number of work-items."""
    shape = block.results[0].shape
    rows = prod(shape)
    em, b = family.at(1), family.b
    size = team_size(elements, limit_of(family))
    count = 1
    while size * count < limit_of(family) // 2 and count < rows:
        count *= 2
    team = make_team(family, size, count)
    row = em.ix.add(em.ix.mul(Index(dialect(family).group_id(b), 0, 0, -(-rows // count)), count), team.number)
    # Teams past the end do the last row again: all items have to come to the barriers.
    at = em.ix.clamp(row, 0, rows - 1) if rows % count else row._replace(high=rows)
    index = em.ix.split(at, shape) if shape else ()
    lanes = [em.value(value, index) for value in block.results]

    def write() -> list[V]:
        for value, pointer, lane in zip(block.results, outputs, lanes, strict=True):
            em.store(pointer, value.dtype, at, lane)
        return []

    first = em.ix.is_zero(team.lane)
    exists = em.ix.less(row, rows) if rows % count else True
    condition = em.ix.both(first, exists)
    if isinstance(condition, V):
        b.branch(condition, write)
    elif condition:
        write()
    return -(-rows // count) * family.group_size


def make_team(family: Family, size: int, count: int) -> Team:
    """The team of this work-item, in groups of `count` teams of `size`."""
    em = family.at(1)
    family.group_size = size * count
    item = Index(dialect(family).local_id(family.b) if size * count > 1 else i64(0), 0, 0, size * count)
    number, lane = em.ix.divmod(item, size)
    family.team = Team(size, count, lane, number)
    return family.team


def reduce_by_team(em: Emitter, op: Op, index: Key) -> list[Lanes]:
    """All results of a reduction at one index, the same in all items of the team."""
    team = em.family.team
    assert team is not None
    em.family.team = None  # what an item evaluates by itself is not the team's
    fold = Fold(em, op)
    start = start_values(op)
    assert start is not None
    sizes = [prod(fold.shape[d] for d in run) for run in fold.runs]
    total = prod(sizes)
    begin = [em.s.const(d, v) for d, v in zip(fold.carried, start.values, strict=True)]

    def step(position: Component, carried: Sequence[Lanes]) -> list[Lanes]:
        at = em.ix.split(position, sizes)
        return list(fold.combine(em, carried, fold.inputs(em, index, [em.ix.force(c) for c in at])))

    whole, rest = divmod(total, team.size)

    def one(i: Index, carried: list[Lanes]) -> Sequence[Lanes]:
        return step(em.ix.add(em.ix.mul(i, team.size), team.lane)._replace(high=total), carried)

    if whole <= PLAIN:
        partial = em.loop(whole, begin, one, fold.carried)
    else:
        partial = fold.in_runs(em, whole, begin, one)
    if rest:
        last = em.ix.add(team.lane, whole * team.size)
        inside = em.ix.less(team.lane, rest)
        assert isinstance(inside, V)

        def more() -> list[V]:
            with em.scope():
                return flat(step(last._replace(high=total), partial))

        partial = fold.rebuild(em.b.branch(inside, more, lambda: flat(partial)))
    results = exchange(em, fold, list(partial), team)
    if not start.is_init:
        results = list(fold.combine(em, fold.inits(em), results))
    em.family.team = team
    return fold.finish(em, results)


def flat(values: Sequence[Lanes]) -> list[V]:
    """The operands of lane values."""
    return [v for lanes in values for v in ([lanes] if isinstance(lanes, V) else list(lanes))]


def exchange(em: Emitter, fold: Fold, partial: list[Lanes], team: Team) -> list[Lanes]:
    """Combines the partial values of the items of each team; every item gets the result."""
    if team.size == 1:
        return partial
    values, size = _publish(em, fold, partial, team, team.size), team.size
    if size > FAN:

        def few() -> list[V]:
            with em.scope():
                return flat(values.sum(team.lane, FAN, size // FAN))

        mine = em.b.branch(_first(em, team, FAN), few, lambda: flat(partial))
        values, size = _publish(em, fold, fold.rebuild(mine), team, FAN), FAN
    return values.sum(em.ix.zero, 1, size)


def _first(em: Emitter, team: Team, size: int) -> V:
    found = em.ix.less(team.lane, size)
    assert isinstance(found, V)
    return found


@dataclass
class _Shared:
    """Values of each team in the group's memory, `size` of them, one array per operand of the reduction."""

    em: Emitter
    fold: Fold
    places: list[V]
    team: Team
    size: int

    def at(self, position: Component) -> list[Lanes]:
        ix, items = self.em.ix, self.size * self.team.count
        spot = ix.add(ix.mul(self.team.number, self.size), position)._replace(low=0, high=items)
        return [self.em.load_at(p, d, spot) for p, d in zip(self.places, self.fold.carried, strict=True)]

    def sum(self, first: Component, stride: int, count: int) -> list[Lanes]:
        values = self.at(first)
        for k in range(1, count):
            values = list(self.fold.combine(self.em, values, self.at(self.em.ix.add(first, k * stride))))
        return values


def _publish(em: Emitter, fold: Fold, values: list[Lanes], team: Team, size: int) -> _Shared:
    """Writes the values of the first `size` items of each team, for all of them to read."""
    items = size * team.count
    words = [items * (2 if d.is_complex else 1) for d in fold.carried]
    places = [dialect(em.family).shared(em.b, memory_type(d), n) for d, n in zip(fold.carried, words, strict=True)]

    def write() -> list[V]:
        with em.scope():
            own = em.ix.add(em.ix.mul(team.number, size), team.lane)._replace(low=0, high=items)
            for place, dtype, lanes in zip(places, fold.carried, values, strict=True):
                em.store(place, dtype, own, lanes)
        return []

    if size == team.size:
        write()
    else:
        em.b.branch(_first(em, team, size), write)
    dialect(em.family).barrier(em.b)
    return _Shared(em, fold, places, team, size)

"""The loop schedule on devices: one work-item per element of an index space, or per few neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ferrule.codegen.dialect import GroupDialect
from ferrule.codegen.emitter import Emitter, Family
from ferrule.codegen.index import Component, Index
from ferrule.codegen.llvm import V, i64


def group_size(family: Family, items: int) -> int:
    """How many work-items a group of independent ones has: a power of two, no more than there is work for."""
    size = _limit(family)
    while size > 1 and size // 2 >= items:
        size //= 2
    return size


def _limit(family: Family) -> int:
    """The most work-items of a group in which each works alone."""
    machine = family.machine
    return min(machine.group_items, machine.group_size)  # type: ignore[attr-defined]


def dialect(family: Family) -> GroupDialect:
    found = family.b.dialect
    assert isinstance(found, GroupDialect)
    return found


def each(
    family: Family,
    sizes: Sequence[int],
    width: int,
    body: Callable[[Emitter, Sequence[Component]], None],
    alone: bool = False,
) -> int:
    """`body` for every index of the space, `width` neighbours along its innermost dimension at once, each by a
    work-item of its own; gives the number of work-items. `alone`: in groups of one."""
    b = family.b
    assert sizes[-1] % width == 0
    spaces = [*sizes[:-1], sizes[-1] // width]
    em = family.at(width)

    def one(outer: Sequence[Component], inner: Component) -> list[V]:
        with em.scope():
            if width > 1:
                inner = Index(em.ix.mul(inner, width).base, 1, 0, sizes[-1], width)
            body(em, (*outer, inner))
        return []

    row = 0 if alone else row_size(family, spaces)
    if row:
        return _by_rows(family, spaces, row, one)
    items = prod(spaces)
    size = family.group_size = 1 if alone else group_size(family, items)
    id = Index(dialect(family).global_id(b) if items > 1 else i64(0), 0, 0, items)

    def found() -> list[V]:
        *outer, inner = em.ix.split(id, spaces)  # parts stay parts: they may join again
        return one(outer, inner)

    if items % size == 0:
        found()
    else:
        b.branch(b.compare("icmp slt", id.base, i64(items)), found)
    return items


def row_size(family: Family, spaces: Sequence[int]) -> int:
    """The size of groups that each lie in one row of a space; 0 when rows are too short for that.

    The index then takes no division in each work-item, and the device's compiler sees what is the same in a group.
    """
    inner = spaces[-1]
    # Shorter rows cost a group each that is hardly worth it, unless several divisions are saved.
    shortest = 32 if len(spaces) > 2 and family.machine.kind == "cpu" else 64  # type: ignore[attr-defined]
    if len(spaces) == 1 or inner < shortest:
        return 0
    limit = _limit(family)
    sizes = [s for s in (1024, 512, 256, 128, 64, 32) if s <= limit]
    best = min(sizes, key=lambda s: (-(-inner // s) * s, -s), default=0)
    return best if best and -(-inner // best) * best <= inner * 1.125 else 0


def _by_rows(
    family: Family, spaces: Sequence[int], size: int, one: Callable[[Sequence[Component], Component], list[V]]
) -> int:
    ix, b, inner = family.at(1).ix, family.b, spaces[-1]
    family.group_size = size
    pieces = -(-inner // size)
    group = Index(dialect(family).group_id(b), 0, 0, prod(spaces[:-1]) * pieces)
    row, piece = ix.divmod(group, pieces)
    outer = [ix.force(c) for c in ix.split(row, spaces[:-1])]
    local = Index(dialect(family).local_id(b), 0, 0, size)
    place = ix.add(ix.mul(piece, size), local)._replace(high=inner)
    if inner % size == 0:
        one(outer, place)
    else:
        b.branch(b.compare("icmp slt", place.base, i64(inner)), lambda: one(outer, place))
    return prod(spaces[:-1]) * pieces * size

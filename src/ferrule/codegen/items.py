"""The loop schedule on devices: one work-item per element of an index space, or per few neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ferrule.codegen.dialect import GroupDialect
from ferrule.codegen.emitter import Emitter, Family
from ferrule.codegen.index import Component, Index
from ferrule.codegen.llvm import V, i64

# Work-items per group where they do not work together: enough to keep every lane of a compute unit busy.
GROUP = 256


def group_size(family: Family, items: int) -> int:
    """How many work-items a group of independent ones has: a power of two, no more than there is work for."""
    size = min(GROUP, family.machine.group_size)  # type: ignore[attr-defined]
    while size > 1 and size // 2 >= items:
        size //= 2
    return size


def dialect(family: Family) -> GroupDialect:
    found = family.b.dialect
    assert isinstance(found, GroupDialect)
    return found


def each(family: Family, sizes: Sequence[int], width: int, body: Callable[[Emitter, Sequence[Component]], None]) -> int:
    """`body` for every index of the space, `width` neighbours along its innermost dimension at once, each by a
    work-item of its own; gives the number of work-items."""
    b = family.b
    assert sizes[-1] % width == 0
    spaces = [*sizes[:-1], sizes[-1] // width]
    items = prod(spaces)
    size = family.group_size = group_size(family, items)
    em = family.at(width)

    def one(id: Index) -> list[V]:
        with em.scope():
            *outer, inner = em.ix.split(id, spaces)
            if width > 1:
                first = em.ix.mul(inner, width)
                inner = Index(first.base, 1, 0, sizes[-1], width)
            body(em, (*outer, inner))
        return []

    id = dialect(family).global_id(b) if items > 1 else i64(0)
    if items % size == 0:
        one(Index(id, 0, 0, items))
    else:
        b.branch(b.compare("icmp slt", id, i64(items)), lambda: one(Index(id, 0, 0, items)))
    return items

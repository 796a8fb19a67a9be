"""The loop schedule on devices for kernels that read an operand across the direction in which they write.

A group does a square of SIDE rows and columns: it reads the operand's square along the operand's own lines into the
memory that its items share, and then computes and writes along the result's lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

from ferrule.codegen.emitter import Emitter, Family, Key, Lanes
from ferrule.codegen.index import Component, Index
from ferrule.codegen.items import dialect
from ferrule.codegen.llvm import V, i64
from ferrule.codegen.scalar import memory_type
from ferrule.ir import Value, tensor

# The side of a square, and the items of its group; a line in shared memory has one place more, so that neither
# direction reads the same bank again and again.
SIDE = 32
PITCH = SIDE + 1


@dataclass
class Square:
    """What is in shared memory. In the first pass loads fill it, in the second, in the same order, they read it."""

    across: Component  # the component of the index that is across the result's lines
    row: Index  # within the square: along the result's line (first pass), across it (second pass)
    item: Index
    filling: bool = True
    places: list[V] = field(default_factory=list)
    next: int = 0

    def load(self, em: Emitter, value: Value, index: Key, plain: Callable[[], Lanes]) -> Lanes | None:
        """A load, when the value lies across; None for other values."""
        if em.ix.innermost(index, value.shape) != self.across:
            return None
        dtype = tensor(value).dtype
        if self.filling:
            if self.next == len(self.places):
                count = SIDE * PITCH * (2 if dtype.is_complex else 1)
                self.places.append(dialect(em.family).shared(em.b, memory_type(dtype), count))
            lanes = plain()
            spot = em.ix.add(em.ix.mul(self.row, PITCH), self.item)
            em.store(self.places[self.next], dtype, spot, lanes)
        else:
            spot = em.ix.add(em.ix.mul(self.item, PITCH), self.row)
            lanes = em.load_at(self.places[self.next], dtype, spot)
        self.next += 1
        return lanes


def emit(
    family: Family,
    sizes: Sequence[int],
    across: int,
    compute: Callable[[Emitter, Sequence[Component]], list[Lanes]],
    write: Callable[[Emitter, Sequence[Component], list[Lanes]], None],
) -> int:
    """Loops over an index space in squares of the loop `across` by the innermost; gives the number of work-items."""
    em, b = family.at(1), family.b
    family.group_size = SIDE
    rows, inner = sizes[across], sizes[-1]
    others = [s for d, s in enumerate(sizes[:-1]) if d != across]
    down, right = -(-rows // SIDE), -(-inner // SIDE)
    groups = prod(others) * down * right
    group = Index(dialect(family).group_id(b), 0, 0, groups)
    *outer, row, column = (em.ix.force(c) for c in em.ix.split(group, [*others, down, right]))
    top, left = em.ix.mul(row, SIDE), em.ix.mul(column, SIDE)
    item = Index(dialect(family).local_id(b), 0, 0, SIDE)
    squares: list[V] = []

    def pass_(filling: bool) -> None:
        def step(i: V, _: list[V]) -> list[V]:
            with em.scope():
                line = Index(i, 0, 0, SIDE)
                # The items lie along the operand's lines when they fill, along the result's when they write.
                down_at, right_at = (item, line) if filling else (line, item)
                y, x = em.ix.add(top, down_at), em.ix.add(left, right_at)
                inside = em.ix.both(em.ix.less(y, rows), em.ix.less(x, inner))
                y, x = y._replace(high=rows), x._replace(high=inner)
                at: list[Component] = [*outer]
                at.insert(across, y)
                at.append(x)

                def work() -> list[V]:
                    with em.scope():
                        family.square = Square(y, line, item, filling, squares)
                        lanes = compute(em, at)
                        family.square = None
                        if not filling:
                            write(em, at, lanes)
                    return []

                if isinstance(inside, V):
                    b.branch(inside, work)
                else:
                    work()
            return []

        b.loop(i64(0), i64(SIDE), 1, [], step, "line")

    pass_(True)
    dialect(family).barrier(b)
    pass_(False)
    return groups * SIDE

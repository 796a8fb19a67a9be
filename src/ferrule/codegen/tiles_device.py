"""The loop schedule on devices for kernels that read an operand across the direction in which they write.

A group does a square of SIDE rows and columns: it reads the operand's square along the operand's own lines into the
memory that its items share, and then computes and writes along the result's lines. Where a processor stands in for a
GPU, plain rearrangements are done in its vector registers instead, by the schedule of the cpu target (tiles.py): what
its compiler makes of work-items that read shared memory across takes two to three times as long.
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
from ferrule.codegen.tiles import Squares, crossing, tiles
from ferrule.ir import Block, Value, tensor
from ferrule.ir import types as t
from ferrule.targets.machine import Machine

# The side of a square, and the items of its group; a line in shared memory has one place more, so that neither
# direction reads the same bank again and again.
SIDE = 32
PITCH = SIDE + 1

# Lanes of a vector, and what kernels in vectors may hold: SPIR-V has vectors of 16, but none of addresses.
LANES = 16
_PLAIN = frozenset({"transpose", "broadcast_in_dim", "constant", "add", "subtract", "multiply", "negate"})
_TYPES = frozenset({t.f32, t.f64, t.i32, t.i64, t.ui32, t.ui64})


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


def in_vectors(block: Block, along: Sequence[tuple[Value, int]], sizes: Sequence[int], machine: Machine) -> int | None:
    """The loop across which an operand is contiguous, when the kernel is one for vector registers; else None."""
    if getattr(machine, "kind", "") != "cpu" or (across := crossing(block, along, sizes, LANES)) is None:
        return None
    values = [*block.args, *(r for op in block.ops for r in op.results)]
    if any(op.name not in _PLAIN for op in block.ops) or any(v.dtype not in _TYPES for v in values):
        return None
    # Others would be read lane by lane, from computed addresses.
    contiguous = {value for value, loop in along if loop in (across, len(sizes) - 1)}
    strided = {value for value, loop in along if loop not in (across, len(sizes) - 1)}
    if strided or any(v not in contiguous and prod(v.shape) > 1 for v in block.args):
        return None
    return across


def emit_in_vectors(
    family: Family, sizes: Sequence[int], across: int, element: Callable[[Emitter, Sequence[Component]], None]
) -> int:
    """Loops over the space in squares of vectors, a work-item for several; gives the number of work-items."""
    family.group_size = 1
    first = dialect(family).group_id(family.b)
    squares = Squares((across,), len(sizes) - 1, LANES)
    return tiles(family, sizes, squares, first, family.b.binary("add", first, i64(1)), element)

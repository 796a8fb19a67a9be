"""Short rows: reductions along rows of a few elements, with a row in each vector lane.

A tile of as many rows as a vector has lanes is read from contiguous memory and transposed in registers, so that each
column is a vector. Reductions are then elementwise, in a tree of neighbours; what is computed of a tile once stays in
registers, and a kernel that finishes the rows (softmax and its like) turns its columns back into rows to store them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING

from ferrule.codegen import fetch_ahead, memory, streams
from ferrule.codegen.index import Component, Index
from ferrule.codegen.lanes import bits_of
from ferrule.codegen.llvm import V, i64
from ferrule.codegen.row_pieces import in_pieces
from ferrule.codegen.scalar import compute_type
from ferrule.ir import Block, Op, Value, tensor
from ferrule.ir.types import DType
from ferrule.ops import OPS
from ferrule.ops.bodies import monoid
from ferrule.targets.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.codegen.emitter import Emitter, Family, Key, Lanes

# Longer rows are not transposed: vectors run along them.
LONGEST = 64
# More columns of a kernel that finishes its rows do not stay in registers.
FINISHED = 31
# Vectors along rows of so many elements read large arrays in order: faster, when one operation is all there is to do.
IN_ORDER = 32
# Rows have this many operations at most; they are written out one by one.
WRITTEN_OUT = 4000.0
# More lanes are not worth the code, where elements are small.
LANES = 16
# Below this rows are whole vectors' elements picked from each other; from it on they are transposed in pieces.
PICKED = 8


@dataclass(frozen=True)
class Columns:
    """The columns of the tile in work: `count` of them, each a vector of `width` lanes."""

    width: int
    count: int

    def at(self, number: int) -> Index:
        """A column's number as an index component: one that is known by its range, not taken for a constant."""
        return Index(i64(number), 0, 0, self.count)

    def pieces(self) -> list[tuple[int, int]]:
        """(first column, how many) of what is transposed together: powers of two, which may overlap."""
        found, done = [], 0
        while done < self.count:
            size = 2
            while size < min(self.width, self.count - done):
                size *= 2
            while size > self.count:
                size //= 2
            start = min(done, self.count - size)
            found.append((start, size))
            done = start + size
        return found

    def load(self, em: Emitter, value: Value, index: Key) -> Lanes | None:
        """Reads a value that lies in rows across the lanes: all columns near the wanted one, which are remembered."""
        dtype, family = tensor(value).dtype, em.family
        column = em.ix.innermost(index, value.shape)
        if family.mask is not None or dtype.is_complex or sum(c == column for c in index) != 1:
            return None
        if not isinstance(column, Index) or column.base.ref[0] == "%" or column != self.at(int(column.base.ref)):
            return None

        def place(number: int) -> tuple[Component, ...]:
            return tuple(self.at(number) if c == column else c for c in index)

        number, pointer = int(column.base.ref), family.pointers[value]
        offset = em.ix.flatten(place(0), value.shape)
        anywhere = offset.step is None and self.count < PICKED  # longer rows are asked for piece by piece
        if not anywhere and (offset.step is None or offset.step < self.count):
            return None
        if self.count < PICKED and offset.step == self.count:
            pieces = [(0, self.count)]
            raw = [memory.load_unmixed(em.ix, pointer, dtype, offset, self.count)]
        else:
            pieces = [p for p in self.pieces() if anywhere or p[0] <= number < p[0] + p[1]][: None if anywhere else 1]
            raw = memory.load_columns(em.ix, pointer, dtype, offset, pieces)
        for (first, _), lanes_of in zip(pieces, raw, strict=True):
            for i, lanes in enumerate(lanes_of):
                em.remember(value, place(first + i), em.s.from_memory(dtype, lanes))
        return em.memo[value, index]

    def store(self, em: Emitter, pointer: V, value: Value, offset: Index, columns: Sequence[Lanes]) -> None:
        """Writes a tile of rows that begin at `offset`."""
        from ferrule.codegen.interleave import mixed

        dtype = tensor(value).dtype
        raw = [em.s.to_memory(dtype, lanes) for lanes in columns]  # type: ignore[arg-type]
        if self.count < PICKED:
            start = offset._replace(step=0)
            for j, part in enumerate(mixed(em.family, raw, self.width)):
                place = em.ix.add(start, j * self.width)._replace(step=1)
                memory.store(em.ix, pointer, dtype, place, [part], None, em.family.stream)
            return
        for first, size in self.pieces():
            memory.store_columns(em.ix, pointer, dtype, em.ix.add(offset, first), raw[first : first + size])

    def store_apart(self, em: Emitter, pointer: V, dtype: DType, offset: Index, columns: Sequence[Lanes]) -> None:
        """Writes rows that are parts of longer ones, at `offset` with a row in each lane, or one row."""
        raw = [em.s.to_memory(dtype, lanes) for lanes in columns]  # type: ignore[arg-type]
        if em.width == 1:
            for number, value in enumerate(raw):
                memory.store(em.ix, pointer, dtype, em.ix.add(offset, number), [value])
            return
        for first, size in self.pieces():
            memory.store_columns(em.ix, pointer, dtype, em.ix.add(offset, first), raw[first : first + size])

    def fold(
        self, em: Emitter, combine: Callable[..., list[Lanes]], read: Callable[[Index], list[Lanes]]
    ) -> list[Lanes]:
        """All columns combined in order, as a tree of neighbours."""

        def between(low: int, high: int) -> list[Lanes]:
            if high - low == 1:
                return read(self.at(low))
            half = 1
            while 2 * half < high - low:
                half *= 2
            left = between(low, low + half)
            return combine(em, left, between(low + half, high))

        return between(0, self.count)


@contextmanager
def by_number(family: Family, columns: Columns, ops: Sequence[Op], em: Emitter) -> Iterator[Callable[[int], Component]]:
    """Within, a row is in each lane; gives what makes index components of the numbers of its elements.

    Where whole rows of other arrays are chosen, as the pixels of an image are, these are numbers that are known, but no
    constants, and the elements of a row are read together. Arrays that are joined along the rows want constants.
    """
    indices = {op.operands[1] for op in ops if op.name == "gather"}
    joined = any(op.name in ("concatenate", "pad") and op.result not in indices for op in ops)
    chosen = any(op.name == "gather" and columns.count in op.operands[0].shape for op in ops)
    if em.width == 1 or joined or not chosen:
        yield em.ix.number
        return
    family.columns = columns
    yield columns.at
    family.columns = None


def _along_short_rows(op: Op) -> bool:
    shape = op.operands[0].shape
    return bool(shape) and tuple(op.attrs["dimensions"]) == (len(shape) - 1,) and 1 < shape[-1] <= LONGEST


def _width(block: Block, machine: Machine, longest: int) -> tuple[int, int]:
    """(lanes, columns) if all reductions of a kernel are along short rows of one length; else zeros."""
    found = [op for op in block.ops if op.name == "reduce"]
    columns = {op.operands[0].shape[-1] for op in found if _along_short_rows(op)}
    if machine.grouped or len(columns) != 1 or not all(_along_short_rows(op) for op in found):
        return 0, 0
    if any(op.regions and op.name != "reduce" for op in block.ops) or max(columns) > longest:
        return 0, 0
    cost = sum(OPS[op.name].flops for op in block.ops) + sum(len(op.regions[0].ops) for op in found)
    types = [tensor(v).dtype for v in (*block.args, *(r for op in block.ops for r in op.results)) if v.shape]
    if cost * max(columns) > WRITTEN_OUT or any(t.is_complex or (t.bits < 8 and t.kind != "bool") for t in types):
        return 0, 0
    width = machine.vector_bytes * 8 // max(8, *(bits_of(compute_type(t)) for t in types))
    return min(width, LANES), columns.pop()


def reduced(block: Block, machine: Machine, rows: int) -> Columns | None:
    """The columns, if this kernel's elements are reductions along short rows; `rows` of them lie beside each other."""
    found = [op for op in block.ops if op.name == "reduce"]
    if not found:
        return None
    width, count = _width(block, machine, LONGEST)
    if count >= IN_ORDER and all(monoid(op.regions[0]) for op in found) and fetch_ahead.distance(block.args):
        return None
    return Columns(width, count) if width > 1 and rows >= 2 * width else None


def finished(block: Block, machine: Machine) -> tuple[Columns, list[int]] | None:
    """The columns and the sizes of the loops, if short rows are reduced and finished by this kernel."""
    from ferrule.codegen.runs import loops

    width, count = _width(block, machine, FINISHED)
    if width < 2 or 0 in block.results[0].shape:
        return None
    sizes, _ = loops(block.results, block.results[0].shape)
    if len(sizes) < 2 or sizes[-1] != count or sizes[-2] < 2 * width:
        return None
    return Columns(width, count), sizes


def emit(
    family: Family,
    block: Block,
    columns: Columns,
    sizes: Sequence[int],
    outputs: Sequence[V],
    begin: V,
    end: V,
    single: Callable[[Index], None],
) -> int:
    """Writes the loops over rows; `single` computes one row, where they do not fill a vector. Gives the grid."""
    alone = prod(sizes[:-2]) == 1
    pointers = [family.pointers[a] for a in block.args]
    past = 0
    if columns.count < PICKED:
        past = streams.alignment(family, block, columns.width, sizes[-2] * sizes[-1], whole_lines=True, alone=alone)
    write = partial(_loops, family, block, columns, sizes, outputs, begin, end, single)
    return streams.either(family, pointers, outputs, past, write)


def _loops(
    family: Family,
    block: Block,
    columns: Columns,
    sizes: Sequence[int],
    outputs: Sequence[V],
    begin: V,
    end: V,
    single: Callable[[Index], None],
) -> int:
    width, count, shape = columns.width, sizes[-1], block.results[0].shape

    def tile(em: Emitter, outer: Sequence[Component], first: Index) -> None:
        """All results are computed before the first is stored: they may lie in an operand's memory."""
        found: list[list[Lanes]] = [[] for _ in block.results]
        family.columns = columns
        for number in range(count):
            index = em.ix.reshape([*outer, first, columns.at(number)], sizes, shape)
            for lanes, value in zip(found, block.results, strict=True):
                lanes.append(em.value(value, index))
        family.columns = None
        offset = em.ix.flatten([*outer, first, em.ix.number(0)], sizes)
        for value, pointer, lanes in zip(block.results, outputs, found, strict=True):
            columns.store(em, pointer, value, offset, lanes)

    def one(em: Emitter, outer: Sequence[Component], row: Index) -> None:
        at = em.ix.flatten([*outer, row], sizes[:-1])
        single(at._replace(low=0, high=prod(sizes[:-1])))

    return in_pieces(family, sizes, width, begin, end, tile, one)

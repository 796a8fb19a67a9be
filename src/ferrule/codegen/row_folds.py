"""Reductions over the rows of matrices whose rows are long, such as the sum of each column.

Processors foresee the next line of memory, not the next row's: a loop over all rows with a few columns in registers
waits for memory at each of its steps. Here some rows are gone over together, from their first element to the last, and
what they come to is combined with the results, which lie in a near cache meanwhile. Rows that share pages, in each
of which processors foresee one place only, are gone over one after another, as memory lies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ferrule.codegen import wide_flags
from ferrule.codegen.index import Component, Index
from ferrule.codegen.lanes import bits_of
from ferrule.codegen.llvm import V, i64
from ferrule.codegen.reduce import Fold
from ferrule.codegen.scalar import compute_type
from ferrule.ir import Block, Op, Value, tensor
from ferrule.ir.types import DType
from ferrule.ops import OPS
from ferrule.ops.bodies import monoid
from ferrule.ops.starts import lane_starts
from ferrule.targets.machine import Machine

if TYPE_CHECKING:
    from ferrule.codegen.emitter import Emitter, Family, Lanes

# Arrays of less than so many times a processor's second-level cache lie there well enough, where the order matters
# little. Many threads have more such caches, and fewer rows each: so many times as much.
LARGE, MANY, FOR_MANY = 1.4, 9, 1.4
# Rows of so many bytes times some number, up to some length, share few places of a cache with each other: such arrays
# do not lie in it well.
CROWDED, CROWDED_ROW, CROWDED_LARGE = 1024, 4096, 7 / 8
# The rows that are added up in turn, one result after the other: more lose digits. Longer sums are of sums of EACH rows
# or so (passes/reduce_parts.py), fewer than FEWEST of which leave too much for the second stage.
MOST, EACH, FEWEST = 256, 128, 32
# Shorter rows fit into registers as a whole.
REGISTERS = 16
# So many rows at once, or the next number that divides the rows.
TOGETHER = 8
# Rows of up to so many bytes are gone over one after another, in runs of so many, which lose fewer digits.
SHORT, RUN = 2048, 16
# Where there are too few matrices for the threads, rows are cut into pieces of no fewer bytes.
PIECE = 4096
# What no result has the type for is carried in lines of at most so many bytes.
OWN = 16 << 10
# Writes a loop over columns; its body gets the matrix, an emitter and the column.
Over = Callable[[Callable[[Index, "Emitter", Index], None]], None]
_IN_ORDER = ("constant", "iota", "broadcast_in_dim", "reshape", "slice", "dynamic_slice")
_ELSEWHERE = ("transpose", "gather", "reverse", "concatenate", "pad")


def is_large(nbytes: int, line: int, machine: Machine) -> bool:
    """Are rows of `line` bytes better gone over as memory lies?"""
    crowded = line % CROWDED == 0 and line <= CROWDED_ROW
    large = LARGE if machine.threads < MANY else FOR_MANY * LARGE
    return nbytes >= (min(CROWDED_LARGE, large) if crowded else large) * machine.second_cache_bytes


def carries(op: Op) -> bool:
    """Do results in memory hold what is carried from row to row? Sums of narrow floats are rounded at the end only."""
    exact = monoid(op.regions[0]) in ("maximum", "minimum") or _is_argmax(op)
    for value, result in zip(op.operands, op.results, strict=False):
        dtype: DType = result.dtype
        if dtype.is_complex or dtype.bits < 8 or dtype.kind == "bool" or value.dtype != dtype:
            return False
        if dtype.bits < 32 and dtype.is_float and not exact:
            return False
    return True


def _is_argmax(op: Op) -> bool:
    start = lane_starts(op)
    return start is not None and start.order is not None


def in_order(value: Value) -> bool:
    """Is what the value is computed from read in the order of its elements?"""
    stack, seen = [value], set[Value]()
    while stack:
        found = stack.pop()
        op = found.op
        if op is None or found in seen:
            continue
        seen.add(found)
        if op.name in _ELSEWHERE:
            return False
        if op.name == "reshape" or (op.name in OPS and OPS[op.name].elementwise):
            stack += op.operands
    return True


def planned(block: Block, machine: Machine) -> bool:
    """Are all results of a kernel reductions of this kind, of matrices of one shape, or made of these alone?"""
    found = [op for op in block.ops if op.name == "reduce"]
    if machine.grouped or not found or holders(block) is None:
        return False
    shape, dims = found[0].operands[0].shape, found[0].attrs["dimensions"]
    line = prod(shape[max(dims, default=-1) + 1 :]) * tensor(found[0].operands[0]).dtype.itemsize
    if not is_large(sum(tensor(a).nbytes for a in block.args), line, machine):
        return False
    alike = all(op.operands[0].shape == shape and op.attrs["dimensions"] == dims for op in found)
    return alike and all(_fits(op, machine) for op in found) and all(_plain(op) for op in block.ops if op not in found)


def holders(block: Block) -> dict[Value, int | None] | None:
    """For each result of a reduction the number of the block's result in whose memory it lies meanwhile, or None where
    it has a line of its own: that memory may be an argument's which is read until the result is written.

    No answer at all where such lines are too long, or where what is made of reductions is not made element by element.
    """
    ops = [op for op in block.ops if op.name == "reduce"]
    totals = [r for op in ops for r in op.results]
    if len(set(block.results)) < len(block.results):
        return None
    later = set(totals)
    for op in block.ops:
        if later & set(op.operands):
            if op.regions or not OPS[op.name].elementwise or op.results[0].shape != totals[0].shape:
                return None
            later.update(op.results)
    found: dict[Value, int | None] = dict.fromkeys(totals)
    if not _reads_as_large(block, totals):
        found.update((v, i) for i, v in enumerate(block.results) if v in found)
        free = {i: v for i, v in enumerate(block.results) if v not in found}
        for total in totals:
            if found[total] is None:
                place = next((i for i, v in free.items() if v.type == total.type), None)
                if place is not None:
                    del free[place]
                found[total] = place
    columns = prod(ops[0].operands[0].shape[max(ops[0].attrs["dimensions"], default=-1) + 1 :])
    return None if any(i is None and columns * v.dtype.itemsize > OWN for v, i in found.items()) else found


def _reads_as_large(block: Block, totals: Sequence[Value]) -> bool:
    """Is an argument as large as the results read where these are made of the reductions?"""
    stack, seen = list(block.results), set(totals)
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        if value.op is None and tensor(value).size >= tensor(totals[0]).size:
            return True
        stack += value.op.operands if value.op is not None else []
    return False


def _plain(op: Op) -> bool:
    return not op.regions and (op.name in _IN_ORDER or OPS[op.name].elementwise)


def _fits(op: Op, machine: Machine) -> bool:
    if not carries(op):
        return False
    shape, dims = op.operands[0].shape, sorted(op.attrs["dimensions"])
    if not dims or dims != list(range(dims[0], dims[-1] + 1)) or dims[-1] == len(shape) - 1:
        return False
    rows, columns = prod(shape[d] for d in dims), prod(shape[dims[-1] + 1 :])
    line = columns * op.results[0].dtype.itemsize
    most = MOST
    if _is_argmax(op) and prod(shape[: dims[0]]) * (line // PIECE) >= machine.threads:
        most = rows  # nothing is lost, and there is enough for all threads
    return line // machine.vector_bytes > REGISTERS and TOGETHER <= rows <= most and lane_starts(op) is not None


def emit(family: Family, block: Block, outputs: Sequence[V], begin: V, end: V) -> int:
    """Writes the loops; gives the grid: matrices, and pieces of their rows where these are few."""
    rows = _Rows(family, block, outputs)
    family.b.loop(begin, end, 1, [], rows.iteration, "grid")
    return rows.lead * rows.pieces


class _Home(NamedTuple):
    """Where something lies: a result's memory, or a line of all columns."""

    pointer: V
    dtype: DType
    line: bool

    def load(self, em: Emitter, offset: Index, column: Index) -> Lanes:
        return em.load_at(self.pointer, self.dtype, column if self.line else offset)

    def store(self, em: Emitter, offset: Index, column: Index, lanes: Lanes) -> None:
        em.store(self.pointer, self.dtype, column if self.line else offset, lanes)


class _Rows:
    """Matrices `lead` by `rows` by `columns`, which the reductions of a kernel go over."""

    def __init__(self, family: Family, block: Block, outputs: Sequence[V]) -> None:
        held, ops = holders(block), [op for op in block.ops if op.name == "reduce"]
        assert held is not None
        one = Fold(family.at(1), ops[0])
        first, last = one.gone[0], one.gone[-1] + 1
        self.before, self.after = one.shape[:first], one.shape[last:]
        self.lead, self.rows, self.columns = prod(self.before), prod(one.shape[first:last]), prod(self.after)
        kinds = [tensor(v).dtype for v in (*block.args, *(r for op in block.ops for r in op.results)) if v.shape]
        nbytes = max(family.machine.vector_bytes, 64)
        if any(wide_flags.packed(op.regions[0], family.machine) for op in ops):
            nbytes = family.machine.vector_bytes
        self.width = nbytes * 8 // max(8, *(bits_of(compute_type(d)) for d in kinds))
        line = self.columns * one.dtypes[0].itemsize
        self.short = line <= SHORT
        together = next((n for n in range(TOGETHER, 2 * TOGETHER) if self.rows % n == 0), TOGETHER)
        self.run = RUN if self.short else together
        pieces = max(1, min(-(-4 * family.machine.threads // self.lead), line // PIECE))
        self.piece = -(-self.columns // (pieces * self.width)) * self.width
        self.pieces = -(-self.columns // self.piece)
        self.family, self.block, self.outputs = family, block, outputs
        places = ((v, held[v]) for op in ops for v in op.results)
        self.homes = {v: self._line(v) if i is None else _Home(outputs[i], v.dtype, False) for v, i in places}
        self.folds = [(Fold(family.at(1), op), [self.homes[v] for v in op.results]) for op in ops]
        # Is there more to write than what lies in the results' memory?
        self.made = any(v not in self.homes or self.homes[v].line for v in block.results)
        # What a run of short rows comes to so far.
        self.subtotals = [[self._line(v) for v in op.results] if self.short else [] for op in ops]

    def _line(self, value: Value) -> _Home:
        pointer = self.family.b.emit("ptr", f"alloca [{self.columns * value.dtype.itemsize} x i8], align 64")
        return _Home(pointer, value.dtype, True)

    def iteration(self, i: V, _: list[V]) -> list[V]:
        """One piece of one matrix."""
        from ferrule.codegen.loop import span

        family, em = self.family, self.family.at(1)
        with em.scope():
            matrix, which = em.ix.divmod(Index(i, 0, 0, self.lead * self.pieces), self.pieces)
            left, right = em.ix.mul(which, self.piece), i64(self.columns)
            if self.pieces > 1:
                right = em.ix.clamp(em.ix.add(left, self.piece), 0, self.columns).base

            def over(body: Callable[[Index, Emitter, Index], None]) -> None:
                span(family, self.width, left, right, self.columns, partial(body, matrix))

            over(self._begin)
            (self._one_by_one if self.short else self._together)(em, over)
            if self.made:
                over(self._finish)
        return []

    def _together(self, em: Emitter, over: Over) -> None:
        """Some rows at once, each time combined with the results."""
        rest = self.rows % self.run

        def some(row: V, _: list[V]) -> list[V]:
            over(partial(self._combine, Index(row, 0, 0, self.rows - self.run + 1), self.run, True, True))
            return []

        self.family.b.loop(i64(0), i64(self.rows - rest), self.run, [], some, "rows")
        if rest:
            over(partial(self._combine, em.ix.number(self.rows - rest), rest, True, True))

    def _one_by_one(self, em: Emitter, over: Over) -> None:
        """Row after row; each run is combined with the results at its end."""
        b, run, rest = self.family.b, self.run, self.rows % self.run

        def add(row: Index, begins: bool, ends: bool) -> None:
            over(partial(self._combine, row, 1, begins, ends))

        def one_run(row: V, _: list[V]) -> list[V]:
            here = Index(row, 0, 0, self.rows - run + 1)

            def inner(k: V, _: list[V]) -> list[V]:
                with em.scope():
                    add(em.ix.add(here, Index(k, 0, 1, run - 1)), False, False)
                return []

            with em.scope():
                add(here, True, False)
                b.loop(i64(1), i64(run - 1), 1, [], inner, "run")
                add(em.ix.add(here, run - 1), False, True)
            return []

        def alone(row: V, _: list[V]) -> list[V]:
            add(Index(row, 0, 0, self.rows), True, True)
            return []

        b.loop(i64(0), i64(self.rows - rest), run, [], one_run, "rows")
        if rest:
            b.loop(i64(self.rows - rest), i64(self.rows), 1, [], alone, "rest")

    def _offset(self, em: Emitter, matrix: Index, column: Index) -> Index:
        return em.ix.flatten((matrix, column), (self.lead, self.columns))

    def _index(self, em: Emitter, matrix: Index, column: Index) -> tuple[Component, ...]:
        return (*em.ix.split(matrix, self.before), *em.ix.split(column, self.after))

    def _begin(self, matrix: Index, em: Emitter, column: Index) -> None:
        offset = self._offset(em, matrix, column)
        for fold, homes in self.folds:
            for home, lanes in zip(homes, fold.inits(em), strict=True):
                home.store(em, offset, column, lanes)

    def _combine(
        self, row: Index, count: int, begins: bool, ends: bool, matrix: Index, em: Emitter, column: Index
    ) -> None:
        """Combines so many rows of some columns with their run's; with the results where the run ends."""
        index, offset = self._index(em, matrix, column), self._offset(em, matrix, column)
        found: list[tuple[_Home, Lanes]] = []
        for (fold, homes), own in zip(self.folds, self.subtotals, strict=True):
            terms = [fold.inputs(em, index, [em.ix.add(row, k)]) for k in range(count)]
            while len(terms) > 1:  # in pairs, which loses fewer digits than in turn
                pairs = zip_longest(terms[::2], terms[1::2])
                terms = [x if y is None else list(fold.combine(em, x, y)) for x, y in pairs]
            total: Sequence[Lanes] = terms[0]
            if not begins:
                total = fold.combine(em, [home.load(em, offset, column) for home in own], total)
            if ends:
                total = fold.combine(em, [home.load(em, offset, column) for home in homes], total)
            found += zip(homes if ends else own, total, strict=True)
        for home, lanes in found:
            home.store(em, offset, column, lanes)

    def _finish(self, matrix: Index, em: Emitter, column: Index) -> None:
        """Writes what is made of the reductions, which are complete."""
        index, offset = self._index(em, matrix, column), self._offset(em, matrix, column)
        for value, home in self.homes.items():
            em.remember(value, index, home.load(em, offset, column))
        found = [em.value(value, index) for value in self.block.results]
        for value, pointer, lanes in zip(self.block.results, self.outputs, found, strict=True):
            em.store(pointer, tensor(value).dtype, offset, lanes)

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
from typing import TYPE_CHECKING

from ferrule.codegen.index import Index
from ferrule.codegen.lanes import bits_of
from ferrule.codegen.llvm import V, i64
from ferrule.codegen.reduce import Fold, start_values
from ferrule.codegen.scalar import compute_type
from ferrule.ir import Block, Op, Value, tensor
from ferrule.ir.types import DType
from ferrule.ops import OPS
from ferrule.ops.bodies import monoid
from ferrule.targets.machine import Machine

if TYPE_CHECKING:
    from ferrule.codegen.emitter import Emitter, Family

# Smaller arrays may lie in the caches of the cores, where the order matters little.
LARGE = 4 << 20
# The rows that are added up in turn, one result after the other: more lose digits. Longer sums are of sums of EACH rows
# or so (passes/expand.py), fewer than FEWEST of which leave too much for the second stage.
MOST, EACH, FEWEST = 256, 128, 32
# Shorter rows fit into registers as a whole.
REGISTERS = 16
# So many rows at once, or the next number that divides the rows.
TOGETHER = 8
# Rows of up to so many bytes are gone over one after another, in runs of so many, which lose fewer digits.
SHORT, RUN = 2048, 16
# Where there are too few matrices for the threads, rows are cut into pieces of no fewer bytes.
PIECE = 4096
_IN_ORDER = ("constant", "iota", "broadcast_in_dim", "reshape", "slice", "dynamic_slice")
_ELSEWHERE = ("transpose", "gather", "reverse", "concatenate", "pad")


def carries(op: Op) -> bool:
    """Do results in memory hold what is carried from row to row? Sums of narrow floats are rounded at the end only."""
    dtype: DType = op.results[0].dtype
    if dtype.is_complex or dtype.bits < 8 or dtype.kind == "bool" or op.operands[0].dtype != dtype:
        return False
    return dtype.bits >= 32 or not dtype.is_float or monoid(op.regions[0]) in ("maximum", "minimum")


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
    """Are all results of a kernel reductions of this kind, of matrices of one shape?"""
    found = [op for op in block.ops if op.name == "reduce"]
    if machine.grouped or not found or {r.op for r in block.results} != set(found):
        return False
    if sum(tensor(a).nbytes for a in block.args) < LARGE:
        return False
    shape, dims = found[0].operands[0].shape, found[0].attrs["dimensions"]
    alike = all(op.operands[0].shape == shape and op.attrs["dimensions"] == dims for op in found)
    return alike and all(_fits(op, machine) for op in found) and all(_plain(op) for op in block.ops if op not in found)


def _plain(op: Op) -> bool:
    return not op.regions and (op.name in _IN_ORDER or OPS[op.name].elementwise)


def _fits(op: Op, machine: Machine) -> bool:
    if len(op.results) != 1 or not carries(op):
        return False
    shape, dims = op.operands[0].shape, sorted(op.attrs["dimensions"])
    if not dims or dims != list(range(dims[0], dims[-1] + 1)) or dims[-1] == len(shape) - 1:
        return False
    rows, columns = prod(shape[d] for d in dims), prod(shape[dims[-1] + 1 :])
    registers = columns * op.result.dtype.itemsize // machine.vector_bytes
    return registers > REGISTERS and TOGETHER <= rows <= MOST and start_values(op) is not None


def emit(family: Family, block: Block, outputs: Sequence[V], begin: V, end: V) -> int:
    """Writes the loops; gives the grid: matrices, and pieces of their rows where these are few."""
    from ferrule.codegen.loop import span

    folds = [(Fold(family.at(1), r.op), pointer) for r, pointer in zip(block.results, outputs, strict=True) if r.op]
    one, b = folds[0][0], family.b
    shape, first, last = one.shape, one.gone[0], one.gone[-1] + 1
    lead, rows, columns = prod(shape[:first]), prod(shape[first:last]), prod(shape[last:])
    kinds = [tensor(v).dtype for v in (*block.args, *(r for op in block.ops for r in op.results)) if v.shape]
    width = max(family.machine.vector_bytes, 64) * 8 // max(8, *(bits_of(compute_type(d)) for d in kinds))
    line = columns * one.op.result.dtype.itemsize
    short = line <= SHORT
    together = 1 if short else next((n for n in range(TOGETHER, 2 * TOGETHER) if rows % n == 0), TOGETHER)
    run = RUN if short else together
    pieces = max(1, min(-(-4 * family.machine.threads // lead), line // PIECE))
    piece = -(-columns // (pieces * width)) * width
    pieces = -(-columns // piece)
    # What a run comes to so far.
    partial_rows = [b.emit("ptr", f"alloca [{columns * fold.dtypes[0].itemsize} x i8], align 64") for fold, _ in folds]

    def begin_with(em: Emitter, place: Index) -> None:
        for fold, pointer in folds:
            em.store(pointer, fold.dtypes[0], place, fold.inits(em)[0])

    def combine(matrix: Index, row: Index, count: int, ends: tuple[bool, bool], em: Emitter, column: Index) -> None:
        """Combines so many rows of some columns with their run's; with the results where the run ends."""
        index = (*em.ix.split(matrix, shape[:first]), *em.ix.split(column, shape[last:]))
        offset = em.ix.flatten((matrix, column), (lead, columns))
        begins, finishes = ends
        found = []
        for (fold, pointer), partial_row in zip(folds, partial_rows, strict=True):
            dtype = fold.dtypes[0]
            terms = [fold.inputs(em, index, [em.ix.add(row, k)]) for k in range(count)]
            while len(terms) > 1:  # in pairs, which loses fewer digits than in turn
                pairs = zip_longest(terms[::2], terms[1::2])
                terms = [x if y is None else list(fold.combine(em, x, y)) for x, y in pairs]
            (total,) = terms
            if not begins:
                total = list(fold.combine(em, [em.load_at(partial_row, dtype, column)], total))
            if finishes:
                total = list(fold.combine(em, [em.load_at(pointer, dtype, offset)], total))
            place = (pointer, dtype, offset) if finishes else (partial_row, dtype, column)
            found.append((*place, total[0]))
        for pointer, dtype, place, lanes in found:
            em.store(pointer, dtype, place, lanes)

    def iteration(i: V, _: list[V]) -> list[V]:
        em = family.at(1)
        with em.scope():
            matrix, which = em.ix.divmod(Index(i, 0, 0, lead * pieces), pieces)
            left = em.ix.mul(which, piece)
            right = em.ix.clamp(em.ix.add(left, piece), 0, columns).base if pieces > 1 else i64(columns)

            def over(body: Callable[[Emitter, Index], None]) -> None:
                span(family, width, left, right, columns, body)

            over(lambda em, column: begin_with(em, em.ix.flatten((matrix, column), (lead, columns))))

            def add(row: Index, count: int, begins: bool = True, finishes: bool = True) -> None:
                over(partial(combine, matrix, row, count, (begins, finishes)))

            def one_run(row: V, _: list[V]) -> list[V]:
                here = Index(row, 0, 0, rows - run + 1)
                if not short:
                    add(here, together)
                    return []

                def inner(k: V, _: list[V]) -> list[V]:
                    with em.scope():
                        add(em.ix.add(here, Index(k, 0, 1, run - 1)), 1, begins=False, finishes=False)
                    return []

                with em.scope():
                    add(here, 1, finishes=False)
                    b.loop(i64(1), i64(run - 1), 1, [], inner, "run")
                    add(em.ix.add(here, run - 1), 1, begins=False)
                return []

            def alone(row: V, _: list[V]) -> list[V]:
                add(Index(row, 0, 0, rows), 1)
                return []

            rest = rows % run
            b.loop(i64(0), i64(rows - rest), run, [], one_run, "rows")
            if rest and short:
                b.loop(i64(rows - rest), i64(rows), 1, [], alone, "rest")
            elif rest:
                add(em.ix.number(rows - rest), rest)
        return []

    b.loop(begin, end, 1, [], iteration, "grid")
    return lead * pieces

"""Rows that fit a register and whose elements only change places: rolled, mirrored, cut and joined anew.

Each row of a result comes from the rows of the same number of one or two arrays. They are loaded as a whole, shuffled
and stored as a whole, under masks where a row does not fill its register.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from ferrule.codegen import memory
from ferrule.codegen.emitter import Family
from ferrule.codegen.lanes import first_lanes
from ferrule.codegen.llvm import V, i64, vector
from ferrule.codegen.scalar import memory_type
from ferrule.ir import Block, Op, Value, tensor
from ferrule.targets.machine import Machine

# Shorter rows are better mixed out of vectors that go across them (codegen/interleave.py), and longer ones are cut.
SHORTEST, LONGEST = 7, 15
# Arrays whose rows are loaded.
SOURCES = 2
# The least register.
LEAST_BYTES = 16
# About so many elements are one iteration of the grid.
PIECE = 8192


class Moves(NamedTuple):
    """For each element of a row which source it comes from, and which element of that one's row it is."""

    rows: int
    sources: list[tuple[Value, int]]  # arguments, and how many elements their rows have
    picks: list[tuple[int, int]]


def plan(block: Block, machine: Machine, sizes: Sequence[int]) -> Moves | None:
    """The longest rows at the end of a result that fit a register and are made of rows; None if there are none."""
    if machine.grouped or machine.vector_bytes < 64 or len(block.results) != 1:
        return None
    (result,) = block.results
    dtype = tensor(result).dtype
    if dtype.bits < 8 and dtype.kind != "bool":
        return None
    for first in range(1, len(sizes)):
        count = prod(sizes[first:])
        each = 2 if dtype.is_complex else 1
        if not SHORTEST <= each * count <= LONGEST or count * dtype.itemsize > machine.vector_bytes:
            continue
        rows = prod(sizes[:first])
        places = _places(result, rows)
        if places is None:
            continue
        sources = list(dict.fromkeys(value for value, _ in places))
        lengths = [tensor(v).size // rows for v in sources]
        if len(sources) > SOURCES or max(lengths) * dtype.itemsize > machine.vector_bytes:
            continue
        if len(sources) == 1 and [at for _, at in places] == list(range(lengths[0])):
            return None  # as it is
        picks = [(sources.index(value), at) for value, at in places]
        return Moves(rows, list(zip(sources, lengths, strict=True)), picks)
    return None


def _places(value: Value, rows: int) -> list[tuple[Value, int]] | None:
    """Where the elements of each row of a value come from: an argument and a place in its row of the same number."""
    shape, op = value.shape, value.op
    size = prod(shape)
    if size % rows or rows not in [prod(shape[:d]) for d in range(len(shape) + 1)]:
        return None
    if op is None:
        return [(value, at) for at in range(size // rows)]
    lead = next(d for d in range(len(shape) + 1) if prod(shape[:d]) == rows)
    return _moved(op, rows, lead, shape[lead:])


def _moved(op: Op, rows: int, lead: int, row: tuple[int, ...]) -> list[tuple[Value, int]] | None:
    """The same for what an op gives, whose rows begin with dimension `lead`."""
    parts = [_places(v, rows) for v in op.operands if v.shape or op.name == "concatenate"]
    if not parts or any(p is None for p in parts):
        return None
    known = [p for p in parts if p is not None]
    source = op.operands[0]
    at = np.arange(len(known[0])).reshape(_row_of(source, rows))
    if op.name == "reshape":
        return known[0]
    if op.name == "concatenate":
        dimension = op.attrs["dimension"] - lead
        if dimension < 0:
            return None
        numbers, begin = [], 0
        for part, operand in zip(known, op.operands, strict=True):
            numbers.append(begin + np.arange(len(part)).reshape(_row_of(operand, rows)[-len(row) :]))
            begin += len(part)
        everything = [place for part in known for place in part]
        return [everything[i] for i in np.concatenate(numbers, dimension).reshape(-1)]
    if len(source.shape) != lead + len(row) or source.shape[:lead] != op.result.shape[:lead]:
        return None
    if op.name == "slice":
        begin, limit, step = (op.attrs[n] for n in ("start_indices", "limit_indices", "strides"))
        cut = at[tuple(map(slice, begin[lead:], limit[lead:], step[lead:]))]
    elif op.name == "reverse" and min(op.attrs["dimensions"], default=0) >= lead:
        cut = np.flip(at, tuple(d - lead for d in op.attrs["dimensions"]))
    elif op.name == "transpose" and tuple(op.attrs["permutation"][:lead]) == tuple(range(lead)):
        cut = at.transpose([d - lead for d in op.attrs["permutation"][lead:]])
    else:
        return None
    return [known[0][i] for i in cut.reshape(-1)]


def _row_of(value: Value, rows: int) -> tuple[int, ...]:
    shape = value.shape
    return tuple(shape[next(d for d in range(len(shape) + 1) if prod(shape[:d]) == rows) :])


def emit(family: Family, moves: Moves, output: V, begin: V, end: V) -> int:
    """Writes the loops; gives the grid."""
    b, dtype = family.b, tensor(moves.sources[0][0]).dtype
    unit, each = memory_type(dtype), 2 if dtype.is_complex else 1
    count, align = len(moves.picks), dtype.part.itemsize
    lanes = LEAST_BYTES // align
    while lanes < each * max(count, *(length for _, length in moves.sources)):
        lanes *= 2
    type = vector(unit, lanes)
    high = max(PIECE // count, 1)
    grid = -(-moves.rows // high)
    picks = [(which, each * at + part) for which, at in moves.picks for part in range(each)]
    picks += picks[:1] * (lanes - len(picks))

    def one(row: V, _: list[V]) -> list[V]:
        registers = []
        for value, length in moves.sources:
            address = b.offset(family.pointers[value], unit, b.binary("mul nsw", row, i64(each * length)))
            if each * length == lanes:
                registers.append(b.load(type, address, align))
            else:
                registers.append(memory.masked_load(b, type, address, align, first_lanes(lanes, each * length)))
        whole = memory.shuffle(b, registers[0], registers[-1], [which * lanes + at for which, at in picks])
        place = b.offset(output, unit, b.binary("mul nsw", row, i64(each * count)))
        if each * count == lanes:
            b.store(whole, place, align)
        else:
            memory.masked_store(b, whole, place, align, first_lanes(lanes, each * count))
        return []

    def iteration(piece: V, _: list[V]) -> list[V]:
        top = b.binary("mul nsw", piece, i64(high))
        bottom = b.call("i64", "llvm.smin.i64", b.binary("add nsw", top, i64(high)), i64(moves.rows))
        b.loop(top, bottom, 1, [], one, "rows")
        return []

    b.loop(begin, end, 1, [], iteration, "grid")
    return grid

"""Rows that fit a register and whose elements only change places: rolled, mirrored, cut and joined anew.

Each row of a result comes from the rows of the same number of one or two arrays. They are loaded as a whole, shuffled
and stored as a whole, under masks; LLVM drops those of rows that fill their register.
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
# Arrays whose rows are loaded, and elements of what rows are made of on the way.
SOURCES, MOST = 2, 64
# The least register.
LEAST_BYTES = 16
# About so many elements are one iteration of the grid.
PIECE = 8192

_MOVING = frozenset({"reshape", "concatenate", "slice", "reverse", "transpose"})


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
        places = _Rows(rows).places(result)
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


class _Rows:
    """Where the elements of each of so many rows of a value come from."""

    def __init__(self, rows: int) -> None:
        self.rows, self.known = rows, dict[Value, list[tuple[Value, int]] | None]()

    def places(self, value: Value) -> list[tuple[Value, int]] | None:
        """For each element of a row an argument and a place in that one's row of the same number; None if not so."""
        if value not in self.known:
            self.known[value] = self._find(value)
        return self.known[value]

    def _find(self, value: Value) -> list[tuple[Value, int]] | None:
        shape, op = value.shape, value.op
        lead = next((d for d in range(len(shape) + 1) if prod(shape[:d]) == self.rows), None)
        if lead is None or prod(shape[lead:]) > MOST:
            return None
        if op is None:
            return [(value, at) for at in range(prod(shape[lead:]))]
        if op.name not in _MOVING:
            return None
        parts = []
        for operand in op.operands:
            places = self.places(operand)
            if places is None:
                return None
            parts.append(places)
        order = _order(op, lead, list(map(len, parts)))
        everything = [place for part in parts for place in part]
        return None if order is None else [everything[i] for i in order.reshape(-1)]


def _order(op: Op, lead: int, lengths: Sequence[int]) -> np.ndarray | None:
    """Which elements of its operands' rows, one behind the other, are those of the result's, whose rows begin with
    dimension `lead`; None if rows do not stay what they are."""
    source = op.operands[0]
    if op.name == "reshape":
        return np.arange(lengths[0])
    if len(source.shape) != len(op.result.shape) or source.shape[:lead] != op.result.shape[:lead]:
        return None
    ends = np.cumsum(lengths)
    rows = [np.arange(e - n, e).reshape(v.shape[lead:]) for e, n, v in zip(ends, lengths, op.operands, strict=True)]
    match op.name:
        case "concatenate":
            return np.concatenate(rows, op.attrs["dimension"] - lead)
        case "slice":
            limits = (op.attrs[name][lead:] for name in ("start_indices", "limit_indices", "strides"))
            return rows[0][tuple(map(slice, *limits))]
        case "reverse":
            dims = [d - lead for d in op.attrs["dimensions"]]
            return np.flip(rows[0], tuple(dims)) if min(dims, default=0) >= 0 else None
        case _:
            order = [d - lead for d in op.attrs["permutation"]]
            return rows[0].transpose(order[lead:]) if order[:lead] == list(range(-lead, 0)) else None


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
            registers.append(memory.masked_load(b, type, address, align, first_lanes(lanes, each * length)))
        whole = memory.shuffle(b, registers[0], registers[-1], [which * lanes + at for which, at in picks])
        place = b.offset(output, unit, b.binary("mul nsw", row, i64(each * count)))
        memory.masked_store(b, whole, place, align, first_lanes(lanes, each * count))
        return []

    def iteration(piece: V, _: list[V]) -> list[V]:
        top = b.binary("mul nsw", piece, i64(high))
        bottom = b.call("i64", "llvm.smin.i64", b.binary("add nsw", top, i64(high)), i64(moves.rows))
        b.loop(top, bottom, 1, [], one, "rows")
        return []

    b.loop(begin, end, 1, [], iteration, "grid")
    return grid

"""Which ops a kernel over rows may hold: softmax, layer norm and their like in one kernel.

A group of work-items, or a thread, has a row. What is one value per row (a reduction along the row, and arithmetic on
such values) is computed once for it; the elements of the row are read again from the cache for each pass
(codegen/rows.py, codegen/row_loop.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ferrule.ir import Op, tensor
from ferrule.ops import OPS
from ferrule.targets.machine import Machine

# Rows shorter than this are not worth a group, longer ones not one group alone.
SHORTEST, LONGEST = 32, 1 << 16
# A processor has shorter ones in the lanes of its vectors, if there are so many (codegen/short_rows.py).
MANY = 64
# A processor needs rows for each of its threads, unless the array is so small that one thread does it.
ROWS_PER_THREAD, SMALL = 4, 1 << 16


def reduces_rows(op: Op, machine: Machine) -> bool:
    """A reduction along the last dimension, by whose results the rows of its operand can be finished."""
    from ferrule.codegen.reduce import runs_along_lanes
    from ferrule.codegen.teams import wants_team

    if op.name != "reduce" or not op.operands[0].shape:
        return False
    shape = op.operands[0].shape
    last = tuple(op.attrs["dimensions"]) == (len(shape) - 1,)
    if not (last and _suits(shape, machine)):
        return False
    if machine.grouped:
        return wants_team(op)
    if shape[-1] < SHORTEST:
        return not any(tensor(v).dtype.is_complex for v in op.operands)
    size = prod(shape)
    return runs_along_lanes(op) and (size <= SMALL or size // shape[-1] >= ROWS_PER_THREAD * machine.threads)


def _suits(shape: Sequence[int], machine: Machine) -> bool:
    """Are the rows of this shape of a length, and are there as many, that one kernel may reduce and finish them?"""
    if 1 < shape[-1] < SHORTEST:
        return not machine.grouped and prod(shape[:-1]) >= MANY
    return SHORTEST <= shape[-1] <= LONGEST


def row_valued(op: Op, shape: Sequence[int], machine: Machine) -> bool:
    """Does the op give one value per row of an array of this shape?"""
    if len(shape) < 1 or not _suits(shape, machine):
        return False
    if op.name == "reduce":
        return reduces_rows(op, machine) and op.operands[0].shape == tuple(shape)
    plain = OPS[op.name].elementwise if op.name in OPS else False
    if op.name == "broadcast_in_dim":  # a last dimension of one is added
        plain = op.result.shape == (*op.operands[0].shape, 1) and _straight(op)
    if op.name == "reshape":
        plain = True
    if not plain:
        return False
    return all(v.shape in ((), tuple(shape[:-1]), (*shape[:-1], 1)) for v in (*op.operands, *op.results))


def spreads(op: Op, shape: Sequence[int]) -> bool:
    """Does the op give each element of a row the row's value?"""
    if op.name != "broadcast_in_dim" or op.result.shape != tuple(shape) or not _straight(op):
        return False
    return op.operands[0].shape in (tuple(shape[:-1]), (*shape[:-1], 1))


def _straight(op: Op) -> bool:
    return tuple(op.attrs.get("broadcast_dimensions", ())) == tuple(range(len(op.operands[0].shape)))

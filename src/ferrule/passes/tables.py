"""A scatter of many single elements into few places: a rule of expand.

Sums, products, extremes and bits of integers are the same in any order, and in which order a scatter adds floats is
open: parts of the updates go into tables of their own, one thread's into a few that take turns (codegen/tables.py), and
the tables are added up. How many there are follows from sizes and the number of threads, so that equal runs give equal
bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ferrule.ir import Block, Op, Tensor, Value, rewrite
from ferrule.ir.types import DType
from ferrule.ops.bodies import monoid
from ferrule.ops.starts import neutral_of
from ferrule.targets.machine import Machine

# Fewer updates are done before tables are; so many are worth a thread.
MANY, SHARE = 1 << 13, 1 << 15
# All tables together have at most so many times as many elements as there are updates, and fit the last cache.
ROOM = 2
# Tables of one thread that take turns fit its nearest caches together: so many, up to so many bytes of all. To sorted
# places, many updates of one come in a row and caches have little to do: all tables may have as many elements as there
# are updates for `SORTED` each.
TURNS, SORTED = {4: 1 << 15, 2: 1 << 19}, 2
# Tables begin a cache line each, and an odd number of them after one another: two threads never write one line, and
# the same place in two tables is not the same place in the cache.
LINE = 64


def in_tables(out: Block, op: Op, operands: Sequence[Value], machine: Machine | None) -> Sequence[Value] | None:
    """The scatter's result, put together from tables."""
    if machine is None or machine.grouped or len(operands) != 3 or op.attrs.get("unique_indices"):
        return None
    (old, indices, updates), kind, dtype = operands, monoid(op.regions[0]), op.result.dtype
    dims = op.attrs["scatter_dimension_numbers"]
    if kind is None or dims.update_window_dims or old.dtype != dtype or updates.dtype != dtype:
        return None
    start, bins, count = _identity(kind, dtype), prod(old.shape), prod(updates.shape)
    if start is None or count < MANY or not bins:
        return None
    unit = LINE // dtype.itemsize
    row = (-(-(bins + 1) // unit) | 1) * unit
    if op.attrs.get("indices_are_sorted"):
        fit = [t for t in TURNS if SORTED * machine.threads * t * row <= count]
    else:
        fit = [t for t, most in TURNS.items() if t * row * dtype.itemsize <= most]
    turns = max(fit, default=1)
    room = min(ROOM * count, machine.cache_bytes // dtype.itemsize)
    groups = max(1, min(machine.threads, count // SHARE, room // (turns * row)))
    tables = groups * turns
    if tables == 1 or tables * row > room:
        return None
    sizes = {"shape": old.shape, "tables": tables, "turns": turns, "row": row}
    attrs = {"scatter_dimension_numbers": dims, "start": start, **sizes}
    bodies = [rewrite(op.regions[0], lambda *_: None) for _ in range(2)]
    made = out.add("scatter_tables", [indices, updates], Tensor((tables, row), dtype), attrs, bodies[:1], op.loc).result
    cut = {"start_indices": (0, 0), "limit_indices": (tables, bins), "strides": (1, 1)}
    used = out.add("slice", [made], Tensor((tables, bins), dtype), cut, (), op.loc).result
    if old.shape != (bins,):
        used = out.add("reshape", [used], Tensor((tables, *old.shape), dtype), {}, (), op.loc).result
    begin = out.add("constant", [], Tensor((), dtype), {"value": start}, (), op.loc).result
    total = out.add("reduce", [used, begin], old.type, {"dimensions": (0,)}, bodies[1:], op.loc).result
    return out.add(kind, [old, total], old.type, {}, (), op.loc).results


def _identity(kind: str, dtype: DType) -> np.ndarray | None:
    """What leaves every number as it is; None where there is nothing, or where products may leave a float's range on
    the way to one that is in it."""
    if dtype.kind != "bool" and dtype.part.bits < (16 if dtype.is_float else 8):
        return None
    if kind == "multiply" and (dtype.is_float or dtype.is_complex):
        return None
    value = neutral_of(kind, dtype)
    if kind == "add" and dtype.is_float:
        value = -0.0
    if kind == "add" and dtype.is_complex:
        value = complex(-0.0, -0.0)
    return None if value is None else np.asarray(value).astype(dtype.numpy)

"""Large arrays read at several places side by side.

A core keeps more lines under way when its reads run through several pages at once: what processors foresee ends with
the page. Nothing need be asked for then (codegen/fetch_ahead.py). Measured without AVX-512, and used there only.
"""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.codegen.emitter import Family
from ferrule.codegen.fetch_ahead import LARGE
from ferrule.ir import Block, Op, Value, tensor
from ferrule.ops import OPS

# Reads side by side, of all arrays together; a part of fewer bytes is over before it is foreseen.
READS, SHORTEST = 4, 4096
# With more operations for an element memory is not what a loop waits for.
LIGHT = 6


def places(family: Family, values: Sequence[Value], run: int) -> int:
    """At how many places at once a loop over a run of so many elements is to compute these."""
    found, ops = _sources(values, family)
    sizes = [tensor(v).dtype.itemsize for v in found if tensor(v).nbytes >= LARGE]
    if family.machine.grouped or family.machine.vector_bytes >= 64 or not sizes:
        return 1
    count = READS // len(sizes)
    if run * min(sizes) < READS * SHORTEST or sum(OPS[op.name].flops for op in ops) > LIGHT:
        return 1
    return max(count, 1)


def sides(family: Family, block: Block) -> int:
    """At how many places at once a loop computes elements of arrays that no cache holds.

    What is written past the cache gathers in few buffers: of more than two runs the lines break up. Narrow elements are
    not bound by memory alone, and lose.
    """
    arrays = [tensor(v) for v in (*block.args, *block.results) if v.shape]
    if len(block.results) > 1 or any(t.dtype.itemsize < 4 for t in arrays):
        return 1
    if sum(t.nbytes for t in arrays) <= family.machine.cache_bytes:
        return 1
    return min(2, places(family, block.results, tensor(block.results[0]).size))


def _sources(values: Sequence[Value], family: Family) -> tuple[set[Value], set[Op]]:
    """The arrays in memory that these are computed from, and the operations."""
    arrays, ops, stack = set[Value](), set[Op](), list(values)
    while stack:
        value = stack.pop()
        if value.op is None or value in family.pointers:
            arrays.add(value)
        elif value.op not in ops:
            ops.add(value.op)
            stack += value.op.operands
    return arrays, ops

"""Sums of scatters: what is scattered into arrays of zeros that are then added up is scattered into one of them.

The gradient of an array that is gathered from at several places is such a sum: of a table for each corner of a cell, of
a picture for each of the pixels that a sample lies between. Each of them cost an array of zeros and an addition of all
its elements. In which order a scatter adds is open, and so it is here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ferrule.ir import Block, Op, Value, is_plain_reduction, rewrite, splat
from ferrule.passes.simplify import eliminate_dead_code


def scatter_sums(block: Block) -> Block:
    """The block, which must not be shared, with such sums as chains of scatters."""
    if not block.holds("scatter"):
        return block
    sums = _Sums(block)
    return eliminate_dead_code(rewrite(block, sums.rule, ours=True))


class _Sums:
    def __init__(self, block: Block) -> None:
        self.uses = block.uses()
        self.results = {v for b in _blocks(block) for v in b.results}
        self.chains: dict[Value, list[Op]] = {}  # what scatters have made of zeros: these, in turn

    def rule(self, out: Block, op: Op, operands: Sequence[Value]) -> Sequence[Value] | None:
        if op.name == "scatter" and _adds(op) and _is_zero(operands[0]):
            self.chains[op.result] = [op]
        if op.name != "add" or operands[0] is operands[1]:
            return None
        ends = [v.op.operands[0] if v.op is not None and v.op.name == "reshape" else v for v in operands]
        chains = [self.chains.get(v) for v in ends]
        # Python's `sum` begins with zero; what was added to zeros is no negative zero, which that would change.
        for value, chain, other in zip(operands, chains, reversed(operands), strict=True):
            if chain and _is_zero(other):
                return [value]
        if chains[0] and chains[1] and ends[0].type == ends[1].type and all(map(self._once, op.operands)):
            return [self._joined(out, op, ends, (chains[0], chains[1]))]
        return None

    def _once(self, value: Value) -> bool:
        if value in self.results or len(self.uses.get(value, ())) != 1:
            return False
        return value.op is None or value.op.name != "reshape" or self._once(value.op.operands[0])

    def _joined(self, out: Block, op: Op, ends: Sequence[Value], chains: tuple[list[Op], list[Op]]) -> Value:
        """The longer chain with what the shorter one adds behind it."""
        more = int(len(chains[1]) > len(chains[0]))
        value, added = ends[more], chains[1 - more]
        for scatter in added:
            regions = [rewrite(r, lambda *_: None) for r in scatter.regions]
            reads = [value, *scatter.operands[1:]]
            value = out.add("scatter", reads, [value.type], scatter.attrs, regions, scatter.loc).result
        self.chains[value] = [*chains[more], *added]
        if value.type == op.result.type:
            return value
        return out.add("reshape", [value], [op.result.type], {}, (), op.loc).result


def _blocks(block: Block) -> list[Block]:
    return [block, *(inner for op in block.ops for region in op.regions for inner in _blocks(region))]


def _adds(op: Op) -> bool:
    """Does a scatter, of one array, add?"""
    (body,) = op.regions
    return len(op.results) == 1 and is_plain_reduction(op) and body.ops[0].name == "add"


def _is_zero(value: Value) -> bool:
    """Is it a constant of zeros? Those with a sign are none: adding to them can leave it."""
    number = splat(value)
    if number is None or number != 0:
        return False
    both = np.asarray(number, np.complex128)
    return not (np.signbit(both.real) or np.signbit(both.imag))

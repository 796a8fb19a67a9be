"""Cut first: of an array that a loop reads part by part, each part is computed when it is read.

dynamic_slice(f(x)) in a loop's body is f(dynamic_slice(x)) when f is cheap and goes element by element: f(x) need not
lie in memory, where nothing else reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ferrule.ir import Block, Op, Tensor, Value, rewrite, splat
from ferrule.passes.simplify import simplify
from ferrule.passes.steps import cheap

# Operations that are repeated for each part.
MOST = 3


def cut_first(block: Block) -> Block:
    """Returns the block with slices before cheap functions in its loops."""
    uses: dict[Value, int] = dict.fromkeys(block.results, 1)
    for op in block.walk():
        for value in [*op.operands, *(v for region in op.regions for v in region.results)]:
            uses[value] = uses.get(value, 0) + 1
    slices: dict[Value, int] = {}
    _count(block, slices)
    chosen = {v for v, count in slices.items() if count == uses[v] and _function(v)}
    if not chosen:
        return block

    def rule(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
        # `operands` are new values, which stand for those that were chosen
        if op.name != "dynamic_slice" or op.operands[0] not in chosen:
            return None
        return [_cut(out, op, operands[0], operands[1:], MOST)]

    return simplify(rewrite(block, rule), ours=True)


def _count(block: Block, slices: dict[Value, int]) -> None:
    """How many slices the bodies of loops take of values that stand in the same block as the loop."""
    here = {r for op in block.ops for r in op.results}
    for op in block.ops:
        if op.name == "while":
            for inner in op.regions[1].ops:
                if inner.name == "dynamic_slice" and inner.operands[0] in here:
                    slices[inner.operands[0]] = slices.get(inner.operands[0], 0) + 1
        for region in op.regions:
            _count(region, slices)


def _function(value: Value) -> bool:
    return 1 <= _operations(value, MOST) <= MOST


def _operations(value: Value, most: int) -> int:
    """Of how many cheap ops the value is computed, counted up to a few more than `most`."""
    op = value.op
    if op is None or not cheap(op) or any(v.shape != value.shape for v in op.operands):
        return 0
    total = 1
    for v in op.operands if total <= most else ():
        total += _operations(v, most - total)
    return total


def _cut(out: Block, at: Op, value: Value, starts: Sequence[Value], left: int) -> Value:
    """The part of the value that the slice `at` takes."""
    type = Tensor(at.result.shape, value.dtype)
    op = value.op
    if (element := splat(value)) is not None:
        attrs = {"value": np.broadcast_to(np.asarray(element), type.shape)}
        return out.add("constant", [], [type], attrs, (), at.loc).result
    if op is not None and left and cheap(op) and all(v.shape == value.shape for v in op.operands):
        parts = [_cut(out, at, v, starts, left - 1) for v in op.operands]
        return out.add(op.name, parts, [type], op.attrs, (), op.loc).result
    return out.add("dynamic_slice", [value, *starts], [type], at.attrs, (), at.loc).result

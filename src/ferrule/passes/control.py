"""Control flow inside kernels: what would be a decision of the host, or one launch per iteration.

* A loop of few iterations is written out: its kernels fuse over all of them.
* A loop whose values are scalars, or elements of arrays that never meet, becomes a `loop` op: one kernel, in which each
  work-item (on a processor: each vector) runs the loop for its own elements.
* On devices both branches of a cheap conditional are computed, and one result is selected.
"""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.ir import Block, Op, Tensor, Value, rewrite
from ferrule.ir import inline as inline_block
from ferrule.ir import types as t
from ferrule.ops import OPS
from ferrule.passes.count import trips_of
from ferrule.passes.simplify import simplify
from ferrule.targets.machine import Machine

# Loops are written out up to this many iterations, and ops altogether: more on a device, where each would be a launch.
UNROLL, UNROLLED_OPS, UNROLLED_OPS_HOST = 8, 640, 64
# Both branches are computed when they have at most so many ops, on at most so many elements.
BRANCH_OPS, BRANCH_SIZE = 32, 1 << 16
# Ops that one work-item should not repeat in a loop or do in vain: they go over many elements, or write in place.
_LONG = frozenset(
    "reduce reduce_window select_and_scatter dot dot_general convolution scatter dynamic_update_slice "
    "rng_bit_generator merge_runs map sort top_k loop running_total digit_counts digit_scatter scatter_tables".split()
)


def flatten_control(block: Block, machine: Machine) -> Block:
    """Returns the block with the loops and conditionals rewritten that kernels do by themselves."""
    if not block.holds("while", "if", "case"):
        return block
    most = UNROLLED_OPS if machine.grouped else UNROLLED_OPS_HOST

    def rule(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
        if op.name == "while":
            return _unrolled(out, op, operands, most) or _loop(out, op, operands)
        if machine.grouped and op.name in ("if", "case"):
            return _selected(out, op, operands)
        return None

    return simplify(rewrite(block, rule), ours=True)


def _plain(block: Block) -> bool:
    """Does the block hold only ops that are expressions of elements?"""
    return all(
        not o.regions and o.name in OPS and OPS[o.name].element is not None and o.name not in _LONG for o in block.ops
    )


def _unrolled(out: Block, op: Op, operands: list[Value], most: int) -> Sequence[Value] | None:
    body = op.regions[1]
    trips = trips_of(op)
    if trips is None or trips > UNROLL or trips * len(body.ops) > most or not _plain(body):
        return None
    for _ in range(trips):
        operands = inline_block(out, body, operands)
    return operands


def _loop(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
    cond, body = op.regions
    if not operands or not all(isinstance(v.type, Tensor) for v in operands):
        return None
    shapes = {v.shape for v in operands} - {()}
    if len(shapes) > 1 or any(0 in s for s in shapes) or not (_plain(cond) and _plain(body)):
        return None
    if not all(_apart(region) for region in (cond, body)):
        return None
    trips = {"trips": op.attrs["trips"]} if "trips" in op.attrs else {}
    return out.add("loop", operands, [v.type for v in operands], trips, op.regions, op.loc).results


def _apart(region: Block) -> bool:
    """Do elements of carried arrays go only into the same elements of others?"""
    carried = {a for a in region.args if a.shape}
    for op in region.ops:
        if any(v in carried for v in op.operands):
            if not OPS[op.name].elementwise:
                return False
            carried.update(op.results)
    return True


def _selected(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
    if not all(isinstance(r.type, Tensor) for r in op.results):
        return None
    for region in op.regions:
        sizes = (r.type.size for o in region.ops for r in o.results if isinstance(r.type, Tensor))
        if not _plain(region) or len(region.ops) > BRANCH_OPS or max(sizes, default=0) > BRANCH_SIZE:
            return None
    if any(r.type.size > BRANCH_SIZE for r in op.results) or len(op.regions) > UNROLL:  # type: ignore[union-attr]
        return None
    (which,) = operands
    results = [inline_block(out, region, []) for region in op.regions]
    if op.name == "if":
        return [_choose(out, op, which, a, b) for a, b in zip(*results, strict=True)]
    chosen = results[-1]
    for number, found in reversed(list(enumerate(results[:-1]))):
        is_it = out.add("compare", [which, _number(out, number, op)], Tensor((), t.i1), _EQUAL, (), op.loc).result
        chosen = [_choose(out, op, is_it, a, b) for a, b in zip(found, chosen, strict=True)]
    return chosen


_EQUAL = {"comparison_direction": "EQ", "compare_type": "SIGNED"}


def _number(out: Block, value: int, op: Op) -> Value:
    import numpy as np

    return out.add("constant", [], Tensor((), t.i32), {"value": np.asarray(value, np.int32)}, (), op.loc).result


def _choose(out: Block, op: Op, which: Value, yes: Value, no: Value) -> Value:
    return yes if yes is no else out.add("select", [which, yes, no], yes.type, {}, (), op.loc).result

"""Carries: what a loop hands from one iteration to the next.

`drop_carries` leaves out what nobody reads but to compute its own next value: above all the counter of a loop whose
number of iterations is known. `late_carries` puts the ops of a fused body into an order in which the next value of a
carry is computed after all that read the present one; it can then be written over it, without a copy.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import numpy as np

from ferrule.ir import Block, Op, Tensor, Value, rewrite
from ferrule.ir import types as t
from ferrule.passes.simplify import has_effects, simplify

# Bodies with more ops are left as they are: there a copy is little of the time.
OPS_IN_ORDER = 300


def drop_carries(block: Block) -> Block:
    """Returns the block, its loops without carries that are of no use."""
    # What an inner loop carries for an outer one is of no use when the outer one has lost it.
    while (slimmer := _dropped(block)) is not None:
        block = simplify(slimmer, ours=True)
    return block


def _dropped(block: Block) -> Block | None:
    if not block.holds("while"):
        return None
    used: set[Value] = set(block.results)
    for op in block.walk():
        used.update(op.operands)
        for region in op.regions:
            used.update(region.results)
    found = False
    known: dict[Block, tuple[int, list[int]]] = {}

    def rule(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
        nonlocal found
        if op.name != "while":
            return None
        cond, body = op.regions
        counted = "trips" in op.attrs
        live = _needed(op, [i for i, r in enumerate(op.results) if r in used], known)
        kept = [i for i in range(len(operands)) if live >> i & 1]
        if len(kept) == len(operands):
            return None
        found = True
        regions = []
        for region, results in ((cond, cond.results), (body, [body.results[i] for i in kept])):
            slim = Block(region.args[i].type for i in kept)
            env = dict(zip((region.args[i] for i in kept), slim.args, strict=True))
            if region is cond and counted:
                true = {"value": np.asarray(True)}
                slim.results = [slim.add("constant", [], [Tensor((), t.i1)], true, (), op.loc).result]
            else:
                _copy(slim, region, results, env)
            regions.append(slim)
        new = out.add(
            "while", [operands[i] for i in kept], [op.results[i].type for i in kept], op.attrs, regions, op.loc
        )
        place = dict(zip(kept, new.results, strict=True))
        return [place.get(i, operands[i]) for i in range(len(operands))]

    slimmer = rewrite(block, rule)
    return slimmer if found else None


def _needed(loop: Op, live: Iterable[int], known: dict[Block, tuple[int, list[int]]]) -> int:
    """The carries that those in `live`, the condition, and effects are computed from, as bits."""
    cond, body = loop.regions
    if (found := known.get(body)) is None:
        # All carries at once, and each loop once: one question for each carry that asks each loop inside, for as many
        # carries, grows with the power of the depth (NUTS has four loops in each other: 6 s).
        tests, values = _arguments(cond, known), _arguments(body, known)
        always = 0
        if "trips" not in loop.attrs:
            for value in cond.results:
                always |= tests.get(value, 0)
        for region, bits in ((cond, tests), (body, values)):
            for value in (v for op in region.ops if has_effects(op) for v in _reads(op)):
                always |= bits.get(value, 0)
        reached = [1 << i | values.get(v, 0) for i, v in enumerate(body.results)]
        for i in range(len(reached)):
            for j, bits_j in enumerate(reached):
                if bits_j >> i & 1:
                    reached[j] |= reached[i]
        found = known[body] = always | _united(always, reached), reached
    always, reached = found
    for i in live:
        always |= reached[i]
    return always


def _united(numbers: int, bits: Sequence[int]) -> int:
    """The union of those of the sets that `numbers` names."""
    union = 0
    for i, more in enumerate(bits):
        if numbers >> i & 1:
            union |= more
    return union


def _arguments(region: Block, known: dict[Block, tuple[int, list[int]]]) -> dict[Value, int]:
    """Which of the region's arguments each value in it is computed from, as bits."""
    bits = {arg: 1 << i for i, arg in enumerate(region.args)}
    for op in region.ops:
        loop, reads = op.name == "while", 0
        for value in _reads(op)[len(op.operands) if loop else 0 :]:
            reads |= bits.get(value, 0)
        if loop:
            carried = [bits.get(v, 0) for v in op.operands]
            for i, result in enumerate(op.results):
                bits[result] = reads | _united(_needed(op, [i], known), carried)
        else:
            bits.update(dict.fromkeys(op.results, reads))
    return bits


def _copy(out: Block, region: Block, results: Sequence[Value], env: dict[Value, Value]) -> None:
    """Copies what the results need, and what has effects."""
    needed: set[Op] = set()
    inside = set(region.ops)
    stack: list[Op | None] = [op for op in region.ops if has_effects(op)]
    stack += [v.op for v in results]
    while stack:
        op = stack.pop()
        if op is None or op not in inside or op in needed:
            continue
        needed.add(op)
        stack += [v.op for v in _reads(op)]
    for op in region.ops:
        if op in needed:
            regions = [rewrite(r, lambda *_: None, env) for r in op.regions]
            operands = [env.get(v, v) for v in op.operands]
            new = out.add(op.name, operands, [r.type for r in op.results], op.attrs, regions, op.loc)
            env.update(zip(op.results, new.results, strict=True))
    out.results = [env.get(v, v) for v in results]


def _reads(op: Op) -> list[Value]:
    return [*op.operands, *(v for r in op.regions for v in r.free())]


def late_carries(block: Block) -> Block:
    """Returns the fused block, the bodies of its loops in the order that lets carries be updated in place."""
    for op in block.walk():
        if op.name == "while" and len(op.regions[1].ops) <= OPS_IN_ORDER:
            _reorder(op.regions[1])
    return block


def _reorder(body: Block) -> None:
    place = {op: i for i, op in enumerate(body.ops)}
    after: dict[Op, set[Op]] = {op: set() for op in body.ops}
    readers: dict[Value, set[Op]] = {}
    previous = None
    for op in body.ops:
        for value in _reads(op):
            readers.setdefault(value, set()).add(op)
            if value.op in place:
                after[value.op].add(op)  # type: ignore[index]
        if has_effects(op):
            if previous is not None:
                after[previous].add(op)
            previous = op
    changed = False
    for arg, result in zip(body.args, body.results, strict=True):
        writer = _behind_views(result)
        if writer is None or writer not in place:
            continue
        for reader in _through_views(arg, readers):
            if reader is not writer and not _reaches(after, writer, reader):
                after[reader].add(writer)
                changed |= place[reader] > place[writer]
    if changed:
        body.ops = _sorted(body.ops, after, place)


def _behind_views(value: Value) -> Op | None:
    while value.op is not None and value.op.name == "reshape":
        value = value.op.operands[0]
    return value.op


def _through_views(value: Value, readers: dict[Value, set[Op]]) -> list[Op]:
    found = []
    for op in readers.get(value, ()):
        found += _through_views(op.result, readers) if op.name == "reshape" else [op]
    return found


def _reaches(after: dict[Op, set[Op]], start: Op, end: Op) -> bool:
    stack, seen = [start], {start}
    while stack:
        for op in after[stack.pop()]:
            if op is end:
                return True
            if op not in seen:
                seen.add(op)
                stack.append(op)
    return False


def _sorted(ops: Sequence[Op], after: dict[Op, set[Op]], place: dict[Op, int]) -> list[Op]:
    """The ops so that each comes before those after it, else in their present order."""
    waiting = dict.fromkeys(ops, 0)
    for later in after.values():
        for op in later:
            waiting[op] += 1
    ready = [place[op] for op in ops if not waiting[op]]
    heapq.heapify(ready)
    order = []
    while ready:
        op = ops[heapq.heappop(ready)]
        order.append(op)
        for later_op in after[op]:
            waiting[later_op] -= 1
            if not waiting[later_op]:
                heapq.heappush(ready, place[later_op])
    assert len(order) == len(ops), "the order of a loop's body has a cycle"
    return order

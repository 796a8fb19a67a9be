"""Alternate: the body of a loop twice or three times, where large carries then need no copies.

A new state that is computed from the neighbours of the old one, or that leaves the old one as the next iteration's
"state before", cannot lie where the old one does, and is brought there by a copy. Of two iterations in a row the second
may write where the first one read. Runs on fused blocks, whose loops' counts are known; kernels are the same as before.
"""

from __future__ import annotations

from collections.abc import Sequence

from ferrule.ir import Block, Op, Tensor, Value, inline, rewrite
from ferrule.passes.allocate import reads_own_element, viewed

# Copies of fewer bytes, bodies of more ops, and loops of fewer iterations are left alone.
COPIED, OPS_TWICE, TRIPS = 1 << 10, 32, 4
# A body's constants are stored as often as they are there.
CONSTANT = 1024
# Ops that a body may hold to be repeated: kernels, calls and views.
PLAIN = frozenset({"fusion", "library", "reshape", "constant", "uninitialized"})


def alternate(block: Block) -> Block:
    """The block; loops that copy large carries have longer bodies and fewer iterations where that saves copies."""
    if not any(op.name == "while" and _times(op) for op in block.walk()):
        return block
    return rewrite(block, _rule, ours=True)


def _times(loop: Op) -> int:
    """How many iterations are to become one; 0 if the loop stays as it is."""
    body = loop.regions[1]
    if loop.attrs.get("trips", 0) < TRIPS or len(body.ops) > OPS_TWICE:
        return 0
    if any(op.name not in PLAIN or (op.name == "constant" and not _small(op.result)) for op in body.ops):
        return 0
    once = copied(body)
    if once < COPIED:
        return 0
    each, times = min((copied(_repeated(body, times)) / times, times) for times in (2, 3))
    return times if 2 * each <= once else 0


def _small(value: Value) -> bool:
    return isinstance(value.type, Tensor) and value.type.nbytes <= CONSTANT


def _rule(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
    times = _times(op) if op.name == "while" else 0
    if not times:
        return None
    cond, body = op.regions
    trips, rest = divmod(op.attrs["trips"], times)
    values: Sequence[Value] = operands
    for _ in range(rest):
        values = inline(out, body, values)
    regions = [cond, _repeated(body, times)]
    return out.add("while", values, [r.type for r in op.results], {**op.attrs, "trips": trips}, regions, op.loc).results


def _repeated(body: Block, times: int) -> Block:
    longer = Block(a.type for a in body.args)
    values: Sequence[Value] = longer.args
    for _ in range(times):
        values = inline(longer, body, values)
    longer.results = list(values)
    return longer


def copied(body: Block) -> int:
    """About how many bytes are copied at the end of a body, since its results are not where its arguments lie."""
    position = {op: i for i, op in enumerate(body.ops)}
    last: dict[Value, int] = {}
    for i, op in enumerate(body.ops):
        for value in op.operands:
            last[viewed(value)] = i
    for value in body.results:
        last[viewed(value)] = len(body.ops)
    total, placed = 0, set[Value]()
    for i, (arg, value) in enumerate(zip(body.args, body.results, strict=True)):
        if not isinstance(value.type, Tensor) or value is arg:
            continue
        source = _first(value)
        stays = source.op in position and source not in placed
        placed.add(source)
        if stays:
            writer = source.op
            assert writer is not None
            at = position[writer]
            read_last = last.get(arg, -1) if arg not in map(viewed, body.results) else len(body.ops)
            stays = read_last < at or (read_last == at and _in_place(writer, source, body.args[i]))
        total += 0 if stays else value.type.nbytes
    return total


def _first(value: Value) -> Value:
    """What is written first where a value lies: updates are made in the memory of what they change, which may be an
    argument's already."""
    value = viewed(value)
    while (op := value.op) is not None and value.index < op.attrs.get("update", 0):
        before = viewed(op.operands[value.index])
        if before.op is None:
            break
        value = before
    return value


def _in_place(writer: Op, value: Value, old: Value) -> bool:
    """May the op write the value where it reads the old one?"""
    reads = [n for n, v in enumerate(writer.operands) if viewed(v) is old]
    if writer.attrs.get("update"):
        return reads == [value.index]
    return writer.name == "fusion" and all(reads_own_element(writer, n, value.index) for n in reads)

"""Combine: small sums over the same devices that do not depend on each other become one.

Devices meet for every collective, which takes longer than to sum a few thousand numbers. A training step sums the
gradient of every parameter by itself.
"""

from __future__ import annotations

from typing import Any

from ferrule.ir import Block, Op, Value, tensor
from ferrule.ops.bodies import monoid

# Sums of fewer bytes are combined, up to so many bytes in one.
SMALL, TOGETHER = 1 << 20, 1 << 24


def combine(block: Block) -> Block:
    """Changes the block (nobody else's) and its nested ones; returns it."""
    for op in block.ops:
        for region in op.regions:
            combine(region)
    keys = {op: key for op in block.ops if (key := _key(op)) is not None}
    if len(keys) < 2:
        return block
    # How many small sums lie on the longest way to an op: those with the same number do not depend on each other.
    levels: dict[Op, int] = {}
    made: dict[Value, int] = {}
    for op in block.ops:
        read = [*op.operands, *(v for region in op.regions for v in region.free())]
        levels[op] = max((made[v] for v in read if v in made), default=0)
        made.update(dict.fromkeys(op.results, levels[op] + (op in keys)))
    groups: dict[Any, list[Op]] = {}
    for op, key in keys.items():
        groups.setdefault((levels[op], *key), []).append(op)
    if all(len(group) == 1 for group in groups.values()):
        return block
    # All that a sum is of comes before it, and all that is made of it behind: what is of one level stays together.
    block.ops = sorted(block.ops, key=lambda op: (levels[op], op in keys))
    mapping: dict[Value, Value] = {}
    for group in groups.values():
        for part in _parts(group):
            _join(block, part, mapping)
    _rename(block, mapping)
    return block


def _key(op: Op) -> tuple[Any, ...] | None:
    """Equal for small sums that one call may compute."""
    if op.name != "all_reduce" or len(op.operands) != 1 or tensor(op.operands[0]).nbytes > SMALL:
        return None
    kind = monoid(op.regions[0])
    groups = op.attrs["replica_groups"]
    return None if kind is None else (kind, op.result.dtype, groups.tobytes(), groups.shape)


def _parts(group: list[Op]) -> list[list[Op]]:
    """A group in parts that are not too large."""
    parts: list[list[Op]] = []
    size = TOGETHER
    for op in group:
        if size + tensor(op.result).nbytes > TOGETHER:
            parts.append([])
            size = 0
        parts[-1].append(op)
        size += tensor(op.result).nbytes
    return parts


def _join(block: Block, ops: list[Op], mapping: dict[Value, Value]) -> None:
    """Puts one op in the place of the last of several."""
    if len(ops) == 1:
        return
    first = ops[0]
    operands = [op.operands[0] for op in ops]
    one = Op(first.name, operands, [op.result.type for op in ops], first.attrs, first.regions, first.loc)
    mapping.update(zip((op.result for op in ops), one.results, strict=True))
    gone = set(ops[:-1])
    block.ops = [one if op is ops[-1] else op for op in block.ops if op not in gone]


def _rename(block: Block, mapping: dict[Value, Value]) -> None:
    for op in block.ops:
        op.operands = [mapping.get(v, v) for v in op.operands]
        for region in op.regions:
            _rename(region, mapping)
    block.results = [mapping.get(v, v) for v in block.results]

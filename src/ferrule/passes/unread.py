"""Unread: what library calls would compute though nobody reads it.

`jnp.linalg.eigvalsh` asks LAPACK for the vectors, too, and leaves them alone, as does who takes the values of
`jnp.linalg.svd` only; `jnp.argsort` sorts the keys beside their positions. Such calls are made without the results that
nobody reads, and sorts without the operands that would become these.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ferrule.ir import Block, Op, Value, rewrite

VECTORS, VALUES = ord("V"), ord("N")
# LAPACK's calls that find eigenvalues and, when asked for them, vectors.
EIGENVALUES = frozenset(f"lapack_{kind}_ffi" for kind in ("ssyevd", "dsyevd", "cheevd", "zheevd"))


def drop_unread(block: Block) -> Block:
    """Returns the block, of which nobody else may need the old one."""
    if not any(map(_may_do_less, block.walk())):
        return block
    read: set[Value] = set()
    _gather(block, read)

    def rule(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
        if not _may_do_less(op) or read.issuperset(op.results) or read.isdisjoint(op.results):
            return None
        return _less(out, op, operands, read)

    return rewrite(block, rule, ours=True)


def _may_do_less(op: Op) -> bool:
    if op.name != "library":
        return False
    target = op.attrs["target"]
    if target == "sort":
        return len(op.results) == len(op.operands) > 1
    return (target, len(op.results)) in (("eigh", 3), ("svd", 4)) or target in EIGENVALUES


def _gather(block: Block, read: set[Value]) -> None:
    """Adds what is read. Who reads a value comes after it: the last op is looked at first."""
    read.update(block.results)
    for op in reversed(block.ops):
        read.update([op.operands[i] for i in _moved(op, read)] if _may_do_less(op) and _key(op) >= 0 else op.operands)
        for region in op.regions:
            _gather(region, read)


def _key(op: Op) -> int:
    """The operand by which a sort without a comparator sorts; -1 for other calls."""
    return int(op.attrs["attrs"].get("key", -1)) if op.attrs["target"] == "sort" else -1


def _moved(op: Op, read: set[Value]) -> list[int]:
    """The operands that a sort by a key needs: the key, and those of which the result is read."""
    return [i for i, result in enumerate(op.results) if result in read or i == _key(op)]


def _less(out: Block, op: Op, operands: list[Value], read: set[Value]) -> Sequence[Value] | None:
    target, about = op.attrs["target"], op.attrs["attrs"]
    if target == "sort":
        kept = [i for i, result in enumerate(op.results) if result in read]
        if _key(op) < 0:
            return _with(out, op, operands, kept, {**about, "kept": tuple(kept)})
        moved = _moved(op, read)
        about = {**about, "key": moved.index(_key(op))}
        if len(kept) < len(moved):
            about["kept"] = tuple(moved.index(i) for i in kept)
        return _with(out, op, [operands[i] for i in moved], kept, about)
    if target == "svd":
        return None if read.intersection(op.results[1:3]) else _with(out, op, operands, [0, 3], about)
    if op.results[0] in read:
        return None
    if target == "eigh":
        return _with(out, op, operands, [1, 2], about)
    if int(about.get("mode", 0)) != VECTORS:
        return None
    return _with(out, op, operands, range(len(op.results)), {**about, "mode": np.array(VALUES, np.uint8)})


def _with(out: Block, op: Op, operands: list[Value], kept: Sequence[int], about: dict[str, object]) -> Sequence[Value]:
    """The results of the call that is left, in the places of the old one's; what nobody reads stays what it was."""
    results = list(op.results)
    types = [results[i].type for i in kept]
    new = out.add("library", operands, types, {**op.attrs, "attrs": about}, op.regions, op.loc).results
    for i, result in zip(kept, new, strict=True):
        results[i] = result
    return results

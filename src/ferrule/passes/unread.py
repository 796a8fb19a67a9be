"""Unread: what library calls would compute though nobody reads it.

`jnp.linalg.eigvalsh` asks LAPACK for the vectors, too, and leaves them alone, as does who takes the values of
`jnp.linalg.svd` only; `jnp.argsort` sorts the keys beside their positions. Such calls are made without the results that
nobody reads.
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
    read.update(block.results)
    for op in block.ops:
        read.update(op.operands)
        for region in op.regions:
            _gather(region, read)


def _less(out: Block, op: Op, operands: list[Value], read: set[Value]) -> Sequence[Value] | None:
    target, about = op.attrs["target"], op.attrs["attrs"]
    if target == "sort":
        kept = [i for i, result in enumerate(op.results) if result in read]
        return _with(out, op, operands, kept, {**about, "kept": tuple(kept)})
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

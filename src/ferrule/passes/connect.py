"""Connect: collectives and the numbers of devices become library calls, in which the devices of a run meet.

A reduction by a plain operation is the call's own; any other computation gathers what the devices have and folds it on
each of them, in the order of the group, so that all get the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ferrule.errors import Unsupported
from ferrule.ir import Block, Op, Tensor, Token, Value, inline, rewrite, tensor
from ferrule.ir.types import DType
from ferrule.passes.match import library

_PLAIN = {"add", "multiply", "minimum", "maximum", "and", "or", "xor"}


def connect(block: Block) -> Block:
    """Returns the block with its collectives replaced."""
    return rewrite(block, _rule)


def _rule(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
    match op.name:
        case "partition_id" | "replica_id":
            return library(out, op, "device_number", [], {"partition": op.name == "partition_id"})
        case "all_reduce" | "reduce_scatter":
            return _reduce(out, op, operands)
        case "all_gather":
            return _call(out, op, operands, {"dimension": int(op.attrs["all_gather_dim"])})
        case "all_to_all":
            about = {"split": int(op.attrs["split_dimension"]), "concat": int(op.attrs["concat_dimension"])}
            return _call(out, op, operands, about)
        case "collective_broadcast":
            return _call(out, op, operands, {})
        case "collective_permute":
            return library(out, op, op.name, operands, _permutation(op))
    return None


def _groups(op: Op) -> list[list[int]]:
    return [[int(d) for d in row if d >= 0] for row in op.attrs["replica_groups"]]


def _members(op: Op) -> dict[str, Any]:
    groups = _groups(op)
    return {"members": tuple(d for g in groups for d in g), "sizes": tuple(map(len, groups))}


def _call(out: Block, op: Op, operands: list[Value], attrs: dict[str, Any]) -> Sequence[Value]:
    if any(isinstance(v.type, Token) for v in operands):
        raise Unsupported(f"op {op.name!r} of a token is not supported", where=op.loc)
    return library(out, op, op.name, operands, attrs | _members(op))


def _permutation(op: Op) -> dict[str, Any]:
    """Who sends to each device, and who must meet: devices that pairs connect, directly or not."""
    pairs = op.attrs["source_target_pairs"].tolist()
    sources = [-1] * (1 + max(map(max, pairs)))
    team: dict[int, list[int]] = {}
    for source, target in pairs:
        sources[target] = source
        one, other = team.setdefault(source, [source]), team.setdefault(target, [target])
        if one is not other:
            one += other
            team.update(dict.fromkeys(other, one))
    teams = list({id(t): sorted(t) for t in team.values()}.values())
    members = tuple(d for t in teams for d in t)
    return {"sources": tuple(sources), "members": members, "sizes": tuple(map(len, teams))}


# --- reductions -----------------------------------------------------------------------------------------------------
def _plain(region: Block) -> str | None:
    """The operation's name, when that is all that the computation does."""
    result = region.results[0].op if len(region.results) == 1 else None
    if result is None or result.name not in _PLAIN or len(region.args) != 2 or len(region.ops) != 1:
        return None
    return result.name if set(result.operands) == set(region.args) else None


def _is_native(reduction: str, dtype: DType) -> bool:
    """What native/collective_reduce.cc folds itself."""
    if dtype.is_complex:
        return reduction == "add"
    if dtype.is_float:
        return dtype.bits >= 16 and reduction not in ("and", "or", "xor")
    return dtype.kind == "bool" or dtype.bits >= 8


def _reduce(out: Block, op: Op, operands: list[Value]) -> Sequence[Value]:
    (region,) = op.regions
    scatter = op.name == "reduce_scatter"
    dimension = int(op.attrs["scatter_dimension"]) if scatter else 0
    reduction = _plain(region)
    if reduction is not None and all(_is_native(reduction, v.dtype) for v in operands):
        attrs: dict[str, Any] = {"reduction": reduction}
        return _call(out, op, operands, attrs | ({"dimension": dimension} if scatter else {}))
    if len(region.args) != 2 or any(v.dtype != region.args[0].dtype for v in operands):
        raise Unsupported(
            f"op {op.name!r} with a computation of {len(region.args)} arguments over {len(operands)} operands is not "
            "supported",
            where=op.loc,
            fix="reduce each operand by a computation of its own",
        )
    sizes = {len(g) for g in _groups(op)}
    if len(sizes) != 1:
        raise Unsupported(
            f"op {op.name!r} by a computation of its own over groups of sizes {sorted(sizes)} is not supported",
            where=op.loc,
            fix="use groups of one size",
        )
    (size,) = sizes
    return [_fold(out, op, v, region, size, dimension if scatter else None) for v in operands]


def _fold(out: Block, op: Op, value: Value, region: Block, size: int, scatter: int | None) -> Value:
    """Brings the members' pieces together along a new dimension, and folds them from the left."""
    shape = tensor(value).shape
    about: dict[str, Any]
    if scatter is None:
        spread = Tensor((1, *shape), value.dtype)
        at, name, about = 0, "all_gather", {"dimension": 0}
        joined = Tensor((size, *shape), value.dtype)
    else:
        shape = (*shape[:scatter], size, shape[scatter] // size, *shape[scatter + 1 :])
        spread = joined = Tensor(shape, value.dtype)
        at, name, about = scatter, "all_to_all", {"split": scatter, "concat": scatter}
    value = out.add("reshape", [value], spread, {}, (), op.loc).result
    attrs = {"target": name, "ffi": False, "attrs": about | _members(op)}
    value = out.add("library", [value], joined, attrs, (), op.loc).result
    piece = Tensor((*joined.shape[:at], *joined.shape[at + 1 :]), value.dtype)
    flat = Tensor((prod(piece.shape),), value.dtype)
    parts = []
    for i in range(size):
        start = tuple(i if d == at else 0 for d in range(joined.rank))
        limit = tuple(i + 1 if d == at else n for d, n in enumerate(joined.shape))
        about = {"start_indices": start, "limit_indices": limit, "strides": (1,) * joined.rank}
        one = Tensor(tuple(1 if d == at else n for d, n in enumerate(joined.shape)), value.dtype)
        cut = out.add("slice", [value], one, about, (), op.loc).result
        parts.append(out.add("reshape", [cut], flat, {}, (), op.loc).result)
    total = parts[0]
    for part in parts[1:]:
        body = Block(a.type for a in region.args)
        body.results = inline(body, region, body.args)
        total = out.add("map", [total, part], flat, {"dimensions": (0,)}, [body], op.loc).result
    return out.add("reshape", [total], piece, {}, (), op.loc).result

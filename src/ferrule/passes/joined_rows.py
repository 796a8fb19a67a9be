"""Which joined and padded arrays are written row by row, by one loop over rows with a loop over each part in it
(codegen/borders.py), instead of part by part, where every row's lines would be met once for each part.

A row is what lies together from the dimension on along which they are joined; it is made one dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ferrule.codegen import borders, fetch_ahead
from ferrule.ir import Block, Op, Tensor, Value, tensor
from ferrule.ops import OPS

# Where a value is in memory whatever reads it.
IN_MEMORY = frozenset({"dot_general", "convolution", "library", "while", "case", "if", "sort", "scatter"})
# What more values than this are read for is not looked into.
VISITED = 100


def in_rows(op: Op) -> bool:
    """Do the parts lie in each row of the result, few and cheap to compute in the order of memory?"""
    type = tensor(op.result)
    if (dim := _dimension(op)) is None:
        return False
    deep = prod(type.shape[dim + 1 :]) > 1
    parts = 1 + len(borders.of(op.result, dim))
    cost = _cost(op.result, dim if deep else None)
    return 1 < parts <= borders.PIECES and cost is not None and cost * parts <= borders.COST


def by_rows(out: Block, joined: Op, operands: list[Value]) -> Value | None:
    """Such an array with each row in one dimension, in its own shape again; None where it has them."""
    dim = _dimension(joined)
    if dim is None or (size := prod(joined.result.shape[dim + 1 :])) == 1:
        return None
    known: dict[Value, Value] = {}

    def flat(value: Value) -> Value:
        if value not in known:
            known[value] = made(value, value.op, value.op.operands if value.op else ()) if value.shape else value
        return known[value]

    def made(value: Value, op: Op | None, operands: Sequence[Value]) -> Value:
        shape = value.shape
        type = Tensor((*shape[:dim], prod(shape[dim:])), value.dtype)
        if op is None or op.name in IN_MEMORY or not _keeps_all_behind(op, dim) or not _moves(value):
            return out.add("reshape", [value], [type], {}, (), joined.loc).result
        attrs = dict(op.attrs)
        for name in ("start_indices", "limit_indices", "edge_padding_low", "edge_padding_high"):
            if name in attrs:
                attrs[name] = (*attrs[name][:dim], attrs[name][dim] * size)
        for name in ("strides", "interior_padding"):
            if attrs.get(name):
                attrs[name] = tuple(attrs[name][: dim + 1])
        return out.add(op.name, [flat(v) for v in operands], [type], attrs, (), op.loc).result

    return out.add("reshape", [made(joined.result, joined, operands)], [joined.result.type], {}, (), joined.loc).result


def _moves(value: Value) -> bool:
    """Is anything moved on the way to it? What is computed of whole arrays is so in any shape, and for others, too."""
    op = value.op
    if op is None or op.name in IN_MEMORY or op.name not in OPS:
        return False
    moved = op.name in ("slice", "reverse", *borders.JOINING)
    return moved or OPS[op.name].elementwise and any(_moves(v) for v in op.operands)


def _dimension(op: Op) -> int | None:
    """Along which there is something beside each other; of paddings the last such one."""
    if op.name == "concatenate":
        dim: int = op.attrs["dimension"]
        return dim
    edges = list(zip(op.attrs["edge_padding_low"], op.attrs["edge_padding_high"], strict=True))
    if any(n < 0 for pair in edges for n in pair):
        return None
    return max((d for d, pair in enumerate(edges) if any(pair)), default=None)


def _cost(joined: Value, dim: int | None) -> float | None:
    """Operations per element of an expression, down to what is in memory; None if it is not read in rows, which go over
    what is behind `dim`."""
    total, stack, visited = 0.0, [joined], 0
    while stack:
        value = stack.pop()
        op = value.op
        visited += 1
        if op is None or op.name in IN_MEMORY or not value.shape:
            continue
        if visited > VISITED or op.name not in OPS:
            return None
        if not (_keeps_rows(op) if dim is None else _keeps_all_behind(op, dim)):
            return None
        total += OPS[op.name].flops
        stack += op.operands
    return total


def _keeps_all_behind(op: Op, dim: int) -> bool:
    """Is what lies behind the dimension treated alike, so that it is one dimension together with it?"""
    match op.name:
        case "slice":
            whole = op.operands[0].shape[dim + 1 :] == op.result.shape[dim + 1 :]
            return whole and (op.attrs.get("strides") or [1] * (dim + 1))[dim] == 1
        case "broadcast_in_dim":
            return not op.operands[0].shape
        case "pad":
            behind = [*op.attrs["edge_padding_low"][dim + 1 :], *op.attrs["edge_padding_high"][dim + 1 :]]
            return not any(behind) and not any(op.attrs["interior_padding"])
        case "concatenate":
            return int(op.attrs["dimension"]) <= dim
        case "reverse":
            return max(op.attrs["dimensions"]) < dim
        case "constant":
            return True
    return OPS[op.name].elementwise


def _keeps_rows(op: Op) -> bool:
    """Are neighbours in the last dimension neighbours in the operands, too?"""
    match op.name:
        case "slice":
            return (op.attrs.get("strides") or [1])[-1] == 1
        case "transpose":
            order = op.attrs["permutation"]
            return order[-1] == len(order) - 1
        case "reshape":
            source = op.operands[0]
            in_memory = source.op is None or source.op.name in IN_MEMORY
            return in_memory or source.shape[-1:] == op.result.shape[-1:]
        case "broadcast_in_dim":
            dims = list(op.attrs["broadcast_dimensions"])
            return dims == sorted(dims)
        case "pad":
            return not any(op.attrs["interior_padding"])
        case "gather":  # rows of large tables are asked for ahead where a kernel has one gather only
            return fetch_ahead.contiguous(op) and tensor(op.operands[0]).nbytes < fetch_ahead.LARGE
        case "concatenate" | "reverse" | "iota" | "constant" | "dynamic_slice":
            return True
    return OPS[op.name].elementwise

"""Which joined and padded arrays are written row by row, by one loop over rows with a loop over each part in it
(codegen/borders.py), instead of part by part, where every row's lines would be met once for each part."""

from __future__ import annotations

from math import prod

from ferrule.codegen import borders, fetch_ahead
from ferrule.codegen.loop import PIECE, ROWS
from ferrule.ir import Op, Value, tensor
from ferrule.ops import OPS

# Where a value is in memory whatever reads it.
IN_MEMORY = frozenset({"dot_general", "convolution", "library", "while", "case", "if", "sort", "scatter"})
# What more values than this are read for is not looked into.
VISITED = 100


def in_rows(op: Op) -> bool:
    """Do the parts lie in each row of the result, few and cheap to compute in the order of memory?"""
    type = tensor(op.result)
    last = max((d for d, n in enumerate(type.shape) if n > 1), default=0)
    rows, row = prod(type.shape[:last]), type.shape[last] if type.shape else 1
    if rows < 2 or row > PIECE // 2 and rows < ROWS:  # the loop over a row is for one thread
        return False
    if op.name == "pad" and any(n < 0 for n in (*op.attrs["edge_padding_low"], *op.attrs["edge_padding_high"])):
        return False
    if op.name == "concatenate" and op.attrs["dimension"] != last:
        return False
    parts = 1 + len(borders.along([op.result], type.shape[last : last + 1]))
    cost = _cost(op.result)
    return 1 < parts <= borders.PIECES and cost is not None and cost * parts <= borders.COST


def _cost(joined: Value) -> float | None:
    """Operations per element of an expression, down to what is in memory; None if it is not read in rows."""
    total, stack, visited = 0.0, [joined], 0
    while stack:
        value = stack.pop()
        op = value.op
        visited += 1
        if op is None or op.name in IN_MEMORY or not value.shape:
            continue
        if visited > VISITED or op.name not in OPS or not _keeps_rows(op):
            return None
        total += OPS[op.name].flops
        stack += op.operands
    return total


def _keeps_rows(op: Op) -> bool:
    """Are neighbours in a row of the result neighbours in the operands, too?"""
    rank = len(op.result.shape)
    match op.name:
        case "slice":
            return (op.attrs.get("strides") or [1] * rank)[-1] == 1
        case "transpose":
            return op.attrs["permutation"][-1] == rank - 1
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

"""What is put at a known place into an array that is needed as it was is joined with what is around it.

`u.at[1:-1, 1:-1].set(u[1:-1, 1:-1] + flow(u))` computes the middle from all of u, so that it cannot be put into u at
once: it was written to memory, u copied, and the middle copied into that. Joined with the rows and columns around it,
it is one kernel, which reads u and writes the result (passes/joined_rows.py). So it is with an argument that was not
donated, and where a loop only reads an array that is from outside. What is put into one value is padded with it.

In an array that nobody else needs the rest lies where it is to be already. A scatter puts one part there as an update
of a slice, whose rows are one loop.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

import numpy as np

from ferrule.ir import Block, Op, Tensor, Value, constant, is_plain_reduction, rewrite, splat, tensor
from ferrule.ir.types import i64
from ferrule.ops import OPS
from ferrule.ops.bodies import returned_argument
from ferrule.passes.slices import VIEWS, cut

# Of arrays of at least so many elements; what is put there is at least such a part of them, where it is computed of the
# array, and where the array would have to be copied.
LEAST, OF_ITSELF, COPIED = 1024, 1 / 2, 1 / 4
# The part ends within so many dimensions: parts of rows, and of what rows are of, have loops of their own.
DIMENSIONS = 2
# What more values than this are computed of is not looked into.
VISITED = 200
MOVES = VIEWS | {"pad", "concatenate", "reverse"}
COMBINED = frozenset({"add", "multiply", "maximum", "minimum"})


def placed(graph: Block, kept: Collection[Value]) -> Block:
    """Returns the graph, of which nobody else may need the old one. `kept`: the parameters that are not donated."""
    places: dict[Op, tuple[int, ...]] = {}
    slices: dict[Op, tuple[int, ...]] = {}
    _find(graph, set(kept), places, slices)
    if not places and not slices:
        return graph

    def rule(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
        if op in slices:
            return [_put(out, op, operands, slices[op])]
        return [_joined(out, op, operands, places[op])] if op in places else None

    return rewrite(graph, rule, ours=True)


def _find(
    block: Block, needed: set[Value], places: dict[Op, tuple[int, ...]], slices: dict[Op, tuple[int, ...]]
) -> None:
    """The updates that are to be joined, the scatters that put one part into a slice, and where they begin. `needed`:
    values that nothing may be put into."""
    for op in block.ops:
        for region in op.regions:
            _find(region, needed | set(region.free() if op.name == "while" else ()), places, slices)
        if op.name not in ("dynamic_update_slice", "scatter") or (begin := _begin(op)) is None:
            continue
        target, update = op.operands[0], _update(op)
        base = target
        while base.op is not None and base.op.name == "reshape":
            (base,) = base.op.operands
        part = tensor(update).size / max(1, tensor(target).size)
        if op.name == "scatter" and returned_argument(op.regions[0]) == 1 and tensor(update).size >= LEAST:
            slices[op] = begin
        ends = sum(a != b for a, b in zip(_shape(op), target.shape, strict=True))
        if tensor(target).size < LEAST or ends > DIMENSIONS or part < COPIED:
            continue
        if ends == 0 or splat(target) is not None or base in needed or part >= OF_ITSELF and _reads(update, base):
            places[op] = begin
            slices.pop(op, None)


def _update(op: Op) -> Value:
    return op.operands[2 if op.name == "scatter" else 1]


def _shape(op: Op) -> tuple[int, ...]:
    """The shape of an update, with dimensions of one element where a scatter has none."""
    shape = list(_update(op).shape)
    if op.name == "scatter":
        for d in op.attrs["scatter_dimension_numbers"].inserted_window_dims:
            shape.insert(d, 1)
    return tuple(shape)


def _begin(op: Op) -> tuple[int, ...] | None:
    """Where the update of an op that puts one part somewhere begins, if that is known."""
    whole = op.operands[0].shape
    if op.name == "dynamic_update_slice":
        numbers = [int(n.reshape(())) for v in op.operands[2:] if (n := constant(v)) is not None]
        if len(numbers) < len(whole):
            return None
        return tuple(min(max(n, 0), w - u) for n, w, u in zip(numbers, whole, _update(op).shape, strict=True))
    dims, indices = op.attrs["scatter_dimension_numbers"], constant(op.operands[1])
    if len(op.operands) != 3 or indices is None or dims.input_batching_dims:
        return None
    order = dims.scatter_dims_to_operand_dims
    if indices.size != len(order) or len(dims.update_window_dims) != len(_update(op).shape) or not _combines(op):
        return None
    begin = [0] * len(whole)
    for d, n in zip(order, indices.reshape(-1), strict=True):
        begin[d] = int(n)
    inside = all(0 <= b and b + u <= w for b, u, w in zip(begin, _shape(op), whole, strict=True))
    return tuple(begin) if inside else None


def _combines(op: Op) -> bool:
    """Does a scatter replace elements, or combine them with new ones of their type by one operation?"""
    (body,) = op.regions
    if {v.dtype for v in (*op.operands[::2], *body.args, op.result)} != {op.result.dtype}:
        return False
    return returned_argument(body) == 1 or is_plain_reduction(op) and body.ops[0].name in COMBINED


def _reads(value: Value, target: Value) -> bool:
    """Is it computed of an array, by what would be one kernel with it?"""
    stack, seen = [value], set[Value]()
    while stack and len(seen) < VISITED:
        v = stack.pop()
        if v is target:
            return True
        if v in seen or v.op is None:
            continue
        seen.add(v)
        name = v.op.name
        if name in MOVES or name in OPS and OPS[name].elementwise:
            stack += v.op.operands
    return False


def _put(out: Block, op: Op, operands: list[Value], begin: tuple[int, ...]) -> Value:
    """A scatter's one part, as an update of a slice."""
    target, _, update = operands
    if update.shape != _shape(op):
        update = out.add("reshape", [update], [Tensor(_shape(op), target.dtype)], {}, (), op.loc).result
    numbers = [
        out.add("constant", [], [Tensor((), i64)], {"value": np.asarray(n, np.int64)}, (), op.loc).result for n in begin
    ]
    return out.add("dynamic_update_slice", [target, update, *numbers], [target.type], {}, (), op.loc).result


def _joined(out: Block, op: Op, operands: list[Value], begin: tuple[int, ...]) -> Value:
    target, update = operands[0], operands[2 if op.name == "scatter" else 1]
    shape, ones = target.shape, [1] * len(begin)
    if update.shape != _shape(op):
        update = out.add("reshape", [update], [Tensor(_shape(op), target.dtype)], {}, (), op.loc).result
    end = tuple(b + n for b, n in zip(begin, update.shape, strict=True))
    if op.name == "scatter" and returned_argument(op.regions[0]) is None:
        old = cut(out, target, begin, end, ones, op)
        update = out.add(op.regions[0].ops[0].name, [old, update], [update.type], {}, (), op.loc).result
    if update.shape == shape:
        return update
    last = max(d for d, n in enumerate(shape) if update.shape[d] != n)
    row = prod(shape[last + 1 :])
    if row == 1:
        return _around(out, op, target, update, begin, splat(target))
    # What is whole inside goes with the last dimension that is not.
    sides = _rows(out, op, target, last), _rows(out, op, update, last)
    found = _around(out, op, *sides, (*begin[:last], begin[last] * row), splat(target))
    return out.add("reshape", [found], [op.result.type], {}, (), op.loc).result


def _rows(out: Block, op: Op, value: Value, last: int) -> Value:
    """A value whose dimensions from `last` on are one."""
    kind = Tensor((*value.shape[:last], prod(value.shape[last:])), value.dtype)
    return out.add("reshape", [value], [kind], {}, (), op.loc).result


def _around(
    out: Block, op: Op, target: Value, update: Value, begin: tuple[int, ...], number: np.generic | None
) -> Value:
    """A part joined with what is around it, which may be one number everywhere."""
    shape, ones = target.shape, [1] * len(begin)
    end = tuple(b + n for b, n in zip(begin, update.shape, strict=True))
    if number is not None:
        around = {"edge_padding_low": begin, "edge_padding_high": tuple(n - e for n, e in zip(shape, end, strict=True))}
        attrs = around | {"interior_padding": (0,) * len(shape)}
        element = out.add("constant", [], [Tensor((), target.dtype)], {"value": np.asarray(number)}, (), op.loc).result
        return out.add("pad", [update, element], [target.type], attrs, (), op.loc).result
    low, high = list(begin), list(end)
    for d in range(len(shape)):  # the last dimension is joined last: rows are gone over by parts
        if (low[d], high[d]) == (0, shape[d]):
            continue
        before, behind = list(low), list(high)
        before[d], behind[d] = 0, shape[d]
        parts = []
        if low[d]:
            parts.append(cut(out, target, before, [*high[:d], low[d], *high[d + 1 :]], ones, op))
        parts.append(update)
        if high[d] < shape[d]:
            parts.append(cut(out, target, [*low[:d], high[d], *low[d + 1 :]], behind, ones, op))
        low, high = before, behind
        kind = Tensor(tuple(h - b for b, h in zip(low, high, strict=True)), target.dtype)
        update = out.add("concatenate", parts, [kind], {"dimension": d}, (), op.loc).result
    return update

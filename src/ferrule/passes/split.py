"""Split: what a loop carries in parts is carried as so many arrays.

The state of a system of equations, put together with `stack` or `concatenate` and taken apart again in each step, would
go through memory between the two. Where a loop's body uses a carried array only element by element and in slices, and
computes it from concatenations along the same dimension, each part becomes a carry of its own, and with it a loop over
elements that never meet (passes/control.py). A part of size one loses its dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from ferrule.ir import UNKNOWN, Block, Loc, Op, Tensor, Value, copy_ops, rewrite, splat
from ferrule.ops import OPS
from ferrule.passes.simplify import simplify

# Parts of one array, and ops that their code has altogether.
PARTS, OPS_IN_ALL = 16, 1000


def split(block: Block) -> Block:
    """Returns the block with the loops rewritten whose carries have parts."""
    if not block.holds("while"):
        return block
    found = False

    def rule(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
        nonlocal found
        if op.name != "while":
            return None
        for group in _groups(op):
            found = True
            return _apart(out, op, operands, group)
        return None

    new = rewrite(block, rule)
    while found:  # a loop may have several such arrays
        block, found = simplify(new, ours=True), False
        new = rewrite(block, rule)
    return block


class _Group:
    """Values of one shape of a loop's body that are connected by elementwise ops and carries, cut along `axis`."""

    def __init__(self, members: set[Value], carries: list[int], axis: int, cuts: list[int]) -> None:
        self.members, self.carries, self.axis, self.cuts = members, carries, axis, cuts
        self.parts = list(pairwise(cuts))

    def type(self, whole: Tensor, k: int) -> Tensor:
        """The type of part k."""
        size = self.parts[k][1] - self.parts[k][0]
        middle = () if size == 1 else (size,)
        return Tensor((*whole.shape[: self.axis], *middle, *whole.shape[self.axis + 1 :]), whole.dtype)


def _elementwise(op: Op) -> bool:
    return op.name in OPS and OPS[op.name].elementwise and not op.regions and len(op.results) == 1


def _groups(loop: Op) -> list[_Group]:
    """The groups of values that can be split."""
    cond, body = loop.regions
    parent: dict[Value, Value] = {}

    def find(v: Value) -> Value:
        while parent.setdefault(v, v) is not v:
            v = parent[v]
        return v

    def join(values: Sequence[Value]) -> None:
        first, *rest = [find(v) for v in values]
        for v in rest:
            parent[find(v)] = find(first)

    if not any(op.name == "concatenate" for op in body.ops):
        return []
    for op in body.ops:
        if _elementwise(op) and op.result.shape:
            join([op.result, *(v for v in op.operands if v.shape == op.result.shape)])
    for arg, result in zip(body.args, body.results, strict=True):
        if isinstance(arg.type, Tensor) and arg.shape:
            join([arg, result])
    gathered: dict[Value, set[Value]] = {}
    for value in list(parent):
        gathered.setdefault(find(value), set()).add(value)
    made = {op.result for op in body.ops if op.name == "concatenate"}
    groups = (_group(loop, members) for members in gathered.values() if members & made)
    return [g for g in groups if g]


def _group(loop: Op, members: set[Value]) -> _Group | None:
    cond, body = loop.regions
    carries = [i for i, arg in enumerate(body.args) if arg in members]
    in_cond = {v for op in cond.ops for v in (*op.operands, *(f for r in op.regions for f in r.free()))}
    if not carries or any(cond.args[i] in in_cond or cond.args[i] in cond.results for i in carries):
        return None
    axis, count, runs, taken = -1, 0, set[tuple[int, int]](), set[tuple[int, int]]()
    for op in body.ops:
        if any(v in members for region in op.regions for v in region.free()):
            return None
        if op.name == "concatenate" and op.result in members:
            found = op.attrs["dimension"]
            ends = list(accumulate(v.shape[found] for v in op.operands))
            runs.update(pairwise([0, *ends]))
        elif op.name == "slice" and op.operands[0] in members:
            begin, end = op.attrs["start_indices"], op.attrs["limit_indices"]
            shape = op.operands[0].shape
            short = [d for d, size in enumerate(shape) if (begin[d], end[d]) != (0, size)]
            if len(short) != 1 or any(s != 1 for s in op.attrs["strides"]) or begin == end:
                return None
            (found,) = short
            taken.add((begin[found], end[found]))
        elif any(v in members for v in op.operands):
            if not (_elementwise(op) and op.result in members):
                return None
            count += 1
            continue
        else:
            continue
        if axis not in (-1, found):
            return None
        axis = found
    shape = next(iter(members)).shape
    if axis < 0 or 0 in shape:
        return None
    # What is put together is taken apart at the same places, and perhaps at more: an array that is shifted, say, stays
    # whole.
    places = sorted({0, shape[axis], *(place for run in runs | taken for place in run)})
    if not taken <= set(pairwise(places)):
        return None
    if not 3 <= len(places) <= PARTS + 1 or count * len(places) > OPS_IN_ALL:
        return None
    return _Group(members, carries, axis, places)


def _apart(out: Block, loop: Op, operands: list[Value], group: _Group) -> list[Value]:
    """The loop with a carry for each part."""
    cond, body = loop.regions
    kept = [i for i in range(len(operands)) if i not in group.carries]
    count = len(group.parts)
    types = [body.args[i].type for i in kept]
    types += [group.type(body.args[i].type, k) for i in group.carries for k in range(count)]  # type: ignore[arg-type]
    slim = Block(types)
    env = dict(zip((cond.args[i] for i in kept), slim.args, strict=False))
    copy_ops(slim, cond.ops, env)
    slim.results = [env.get(v, v) for v in cond.results]

    inner = Block(types)
    env = dict(zip((body.args[i] for i in kept), inner.args, strict=False))
    parts: dict[Value, list[Value]] = {}
    for n, i in enumerate(group.carries):
        at = len(kept) + n * count
        parts[body.args[i]] = inner.args[at : at + count]
    _Body(inner, group, env, parts).run(body)
    results = [env.get(body.results[i], body.results[i]) for i in kept]
    for i in group.carries:
        results += parts[body.results[i]]
    inner.results = results

    starts = [operands[i] for i in kept]
    for i in group.carries:
        starts += [_part(out, group, operands[i], k, loop) for k in range(count)]
    new = out.add("while", starts, [v.type for v in starts], loop.attrs, [slim, inner], loop.loc)
    found = dict(zip(kept, new.results, strict=False))
    for n, i in enumerate(group.carries):
        at = len(kept) + n * count
        pieces = new.results[at : at + count]
        found[i] = _whole(out, group, pieces, loop.results[i].type, loop)  # type: ignore[arg-type]
    return [found[i] for i in range(len(operands))]


class _Body:
    """Writes the body anew: of a group's values there are parts."""

    def __init__(self, out: Block, group: _Group, env: dict[Value, Value], parts: dict[Value, list[Value]]) -> None:
        self.out, self.group, self.env, self.parts = out, group, env, parts

    def run(self, body: Block) -> None:
        members = self.group.members
        for op in body.ops:
            if op.name == "slice" and op.operands[0] in members:
                self.env[op.result] = self.sliced(op)
            elif len(op.results) != 1 or op.result not in members:
                copy_ops(self.out, [op], self.env)
            elif op.name == "concatenate":
                self.parts[op.result] = [self.piece(op, k) for k in range(len(self.group.parts))]
            elif _elementwise(op):
                self.parts[op.result] = [self.element(op, k) for k in range(len(self.group.parts))]
            else:
                self.parts[op.result] = self.made(op)
        for value in body.results:
            if value in members:
                self.of(value, value.op)

    def of(self, value: Value, op: Op | None) -> list[Value]:
        """The parts of a member; one from outside of the loop is cut."""
        if value not in self.parts:
            source = self.env.get(value, value)
            self.parts[value] = [_part(self.out, self.group, source, k, op) for k in range(len(self.group.parts))]
        return self.parts[value]

    def made(self, op: Op) -> list[Value]:
        """The parts of what is neither put together nor computed from parts."""
        group, whole = self.group, op.result.type
        assert isinstance(whole, Tensor)
        types = [group.type(whole, k) for k in range(len(group.parts))]
        if (element := splat(op.result)) is not None:
            array = np.asarray(element)
            return [
                self.out.add("constant", [], [t], {"value": np.broadcast_to(array, t.shape)}, (), op.loc).result
                for t in types
            ]
        dims = op.attrs.get("broadcast_dimensions", ()) if op.name == "broadcast_in_dim" else (group.axis,)
        if group.axis not in dims:
            source = self.env.get(op.operands[0], op.operands[0])
            found = []
            for type in types:
                gone = len(type.shape) < len(whole.shape)
                attrs = {"broadcast_dimensions": tuple(d - (gone and d > group.axis) for d in dims)}
                found.append(self.out.add("broadcast_in_dim", [source], [type], attrs, (), op.loc).result)
            return found
        copy_ops(self.out, [op], self.env)
        return [_part(self.out, group, self.env[op.result], k, op) for k in range(len(types))]

    def element(self, op: Op, k: int) -> Value:
        shape = op.result.shape
        reads = [self.of(v, op)[k] if v.shape == shape else self.env.get(v, v) for v in op.operands]
        type = self.group.type(op.result.type, k)  # type: ignore[arg-type]
        return self.out.add(op.name, reads, [type], op.attrs, (), op.loc).result

    def piece(self, op: Op, k: int) -> Value:
        """Part k of a concatenation."""
        (begin, end), axis = self.group.parts[k], self.group.axis
        for value in op.operands:
            if begin < value.shape[axis]:
                break
            begin, end = begin - value.shape[axis], end - value.shape[axis]
        return _cut(self.out, axis, self.env.get(value, value), begin, end, op.loc)

    def sliced(self, op: Op) -> Value:
        k = self.group.cuts.index(op.attrs["start_indices"][self.group.axis])
        return _whole(self.out, self.group, [self.of(op.operands[0], op)[k]], op.result.type, op)  # type: ignore[arg-type]


def _part(out: Block, group: _Group, value: Value, k: int, op: Op | None) -> Value:
    return _cut(out, group.axis, value, *group.parts[k], op.loc if op else UNKNOWN)


def _cut(out: Block, axis: int, value: Value, begin: int, end: int, loc: Loc) -> Value:
    """value[begin:end] along the axis, which goes when one element is left."""
    shape, dtype = value.shape, value.dtype
    if end - begin == shape[axis] == 1 and value.op is not None and value.op.name == "broadcast_in_dim":
        source, dims = value.op.operands[0], tuple(value.op.attrs["broadcast_dimensions"])
        if source.shape == (*shape[:axis], *shape[axis + 1 :]) and dims == tuple(
            d for d in range(len(shape)) if d != axis
        ):
            return source
    if end - begin < shape[axis]:
        attrs = {
            "start_indices": tuple(begin if d == axis else 0 for d in range(len(shape))),
            "limit_indices": tuple(end if d == axis else size for d, size in enumerate(shape)),
            "strides": (1,) * len(shape),
        }
        shape = (*shape[:axis], end - begin, *shape[axis + 1 :])
        value = out.add("slice", [value], [Tensor(shape, dtype)], attrs, (), loc).result
    if end - begin > 1:
        return value
    flat = Tensor((*shape[:axis], *shape[axis + 1 :]), dtype)
    return out.add("reshape", [value], [flat], {}, (), loc).result


def _whole(out: Block, group: _Group, parts: Sequence[Value], type: Tensor, op: Op) -> Value:
    """One part, or all put together, with the dimension that they are parts of."""
    pieces = []
    for value in parts:
        if len(value.shape) < len(type.shape):
            shape = (*type.shape[: group.axis], 1, *type.shape[group.axis + 1 :])
            value = out.add("reshape", [value], [Tensor(shape, type.dtype)], {}, (), op.loc).result
        pieces.append(value)
    if len(pieces) == 1:
        return pieces[0]
    return out.add("concatenate", pieces, [type], {"dimension": group.axis}, (), op.loc).result

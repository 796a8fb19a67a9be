"""Expand: rewrites an op into several whose kernels are better than one for the whole.

* A concatenation or padding of large tensors that has to be in memory becomes a chain of in-place updates: each part is
  written by a plain loop, instead of one kernel that asks for every element which part it lies in. Parts of rows stay
  joined (passes/joined_rows.py).
* A reduction to few results, of many long rows, or of rows of few elements is made in several, so that the first has
  enough to spread over the cores and goes along memory (passes/reduce_parts.py).
* An argmax counts in 32 bits, and in parts where there are few results (passes/argmax.py).
* A scatter of many elements into few goes into tables first (passes/tables.py).
* `rng` becomes random bits and what makes numbers of them (passes/draw.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from ferrule.codegen.borders import JOINING
from ferrule.codegen.interleave import LONGEST
from ferrule.codegen.streams import LINE
from ferrule.ir import Block, Op, Tensor, Value, rewrite, tensor
from ferrule.ir import types as t
from ferrule.ops import OPS
from ferrule.passes import neighbours
from ferrule.passes.argmax import argmax
from ferrule.passes.draw import draw
from ferrule.passes.joined_rows import IN_MEMORY, by_rows, in_rows
from ferrule.passes.reduce_parts import reduce_in_parts
from ferrule.passes.simplify import eliminate_dead_code
from ferrule.passes.tables import in_tables
from ferrule.targets.machine import Machine

# Smaller results are cheaper as one kernel that selects per element.
PARTS_FROM = 2048
# An array joined of more parts is one kernel, too.
MOST_PARTS = 256
# A padding of a smaller array is filled as a whole before the array is written into it, not edge by edge.
EDGES_FROM = 1 << 18
# An array joined of more parts, or of expressions of more operations per element, is not selected from where it is
# read: where its parts meet within a vector, all of them are computed.
PIECES, SELECTED = 4, 16.0
MOVES = frozenset({"slice", "transpose", "reverse", "concatenate", "pad"})
VIEWS = frozenset({"slice", "reshape", "reverse", "broadcast_in_dim"})


def expand(block: Block, machine: Machine | None = None, ours: bool = False) -> Block:
    """Returns the block with large concatenations, paddings and narrow reductions rewritten; `ours` as in `rewrite`."""
    selected: dict[Value, bool] = {}
    if machine is not None and not machine.grouped and block.holds(*JOINING):
        selected = {op.result: written for op, written in _selected(block)}
    called = _for_libraries(block) if block.holds("library") else set[Value]()
    found = rewrite(block, lambda out, op, operands: _rule(out, op, operands, machine, selected, called), ours=ours)
    return eliminate_dead_code(found)  # an argmax has left its counters


def _selected(block: Block) -> Iterator[tuple[Op, bool]]:
    """Joined arrays that are better selected from, element by element, by their readers than written and read: readers
    that are elementwise do not need them in memory, and their parts lie there or cost little to compute. With True:
    those that are written, in rows."""
    users: dict[Value, list[Op]] = {}
    for op in block.ops:
        for value in (*op.operands, *(v for r in op.regions for v in r.free())):
            users.setdefault(value, []).append(op)
    escaping = set(block.results)
    for op in block.ops:
        for region in op.regions:
            yield from _selected(region)
        if op.name not in JOINING:
            continue
        if _in_memory(op.result, users, escaping) and in_rows(op):
            yield op, True
            continue
        if len(op.operands) > PIECES or op.result in escaping:
            continue
        readers = users.get(op.result, [])
        cheap = sum(_cost(v, users) for v in op.operands) <= SELECTED
        if readers and (all(indexes(u, op) for u in readers) or cheap and _picked(op, readers)):
            yield op, False
        elif op.name == "concatenate" and _in_short_runs(op.result, users, _along(op)):
            continue
        elif cheap and _passed_on(op.result, users, escaping):
            yield op, False


def _in_memory(value: Value, users: dict[Value, list[Op]], escaping: set[Value]) -> bool:
    """Does it have to be in memory, whatever is one kernel?"""
    readers = users.get(value, ())
    return value in escaping or any(
        u.name in IN_MEMORY or u.name == "reshape" and _in_memory(u.result, users, escaping) for u in readers
    )


def _passed_on(value: Value, users: dict[Value, list[Op]], escaping: set[Value]) -> bool:
    """Are all readers kernels that ask for each element once?"""
    for reader in users.get(value, ()):
        if reader.name == "reshape":
            if reader.result in escaping or not _passed_on(reader.result, users, escaping):
                return False
            continue
        known = OPS.get(reader.name)
        pointwise = known is not None and known.elementwise and reader.result.shape == value.shape
        if not pointwise and reader.name not in MOVES:
            return False
    return value in users


def _in_short_runs(value: Value, users: dict[Value, list[Op]], along: int | None) -> bool:
    """Is it read across memory, in runs of less than a line? A choice of a part for each of them costs more, except in
    tiles of pixels (codegen/tiles.py), where large parts are joined `along` a dimension of the image."""
    for reader in users.get(value, ()):
        if reader.name in ("reverse", "reshape"):
            if _in_short_runs(reader.result, users, along if reader.name == "reverse" else None):
                return True
        if reader.name == "transpose":
            order = reader.attrs["permutation"]
            kept = next((d for d in range(len(order)) if list(order[d:]) == list(range(d, len(order)))), len(order))
            run, pixels = prod(value.shape[kept:]), along is not None and along < kept
            if run * value.dtype.itemsize < LINE and (run == 1 or not pixels):
                return True
    return False


def _along(op: Op) -> int | None:
    """The dimension along which a concatenation joins parts of which one is large."""
    most = max(tensor(v).size for v in op.operands)
    return op.attrs["dimension"] if 4 * most >= tensor(op.result).size else None


def indexes(reader: Op, joined: Op) -> bool:
    """Are the parts the components of a gather's indices? Which one is asked for is then known."""
    return (
        reader.name == "gather"
        and [i for i, v in enumerate(reader.operands) if v is joined.result] == [1]
        and joined.attrs.get("dimension") == reader.attrs["dimension_numbers"].index_vector_dim
    )


def _picked(op: Op, readers: Sequence[Op]) -> bool:
    """Do all readers of a joined array together take no more elements than there are, of parts that can be computed
    where they are taken?"""
    joined = op.result
    if any(u.name not in ("gather", "dynamic_slice") or joined in u.operands[1:] for u in readers):
        return False
    for part in (v.op for v in op.operands if v.op is not None):
        if part.name in (*JOINING, "transpose") or part.name == "gather" and not neighbours.in_rows(part):
            return False
    return sum(tensor(u.result).size for u in readers) <= tensor(joined).size


def _cost(value: Value, users: dict[Value, list[Op]]) -> float:
    """Operations per element of an expression, down to what more than it reads or what is in memory."""
    total, stack = 0.0, [value]
    while stack and total <= SELECTED:
        op = stack.pop().op
        if op is not None and op.name in OPS and (OPS[op.name].elementwise or op.name in VIEWS):
            total += OPS[op.name].flops
            stack += [v for v in op.operands if len(users.get(v, ())) == 1]
    return total


def _rule(
    out: Block, op: Op, operands: list[Value], machine: Machine | None, selected: dict[Value, bool], called: set[Value]
) -> Sequence[Value] | None:
    if op.results and op.results[0] in selected:
        joined = by_rows(out, op, operands) if selected[op.results[0]] else None
        return None if joined is None else [joined]
    grouped = machine is not None and machine.grouped
    match op.name:
        case "broadcast_in_dim":  # a library reads memory, where this is a reshape
            if op.result not in called or not _same_memory(op):
                return None
            return out.add("reshape", operands, [op.result.type], {}, (), op.loc).results
        case "concatenate":
            short = machine is not None and not machine.grouped and _short_rows(op)
            return _in_one_dimension(out, op, operands) if short else _concatenate(out, op, operands)
        case "pad":
            return _pad(out, op, operands)
        case "reduce":
            if not grouped and (found := argmax(out, op, operands)) is not None:
                return found
            return reduce_in_parts(out, op, operands, machine)
        case "rng":
            return draw(out, op, operands)
        case "scatter":
            return in_tables(out, op, operands, machine)
    return None


def _starts(out: Block, at: Sequence[int], op: Op) -> list[Value]:
    return [
        out.add("constant", [], Tensor((), t.i64), {"value": np.asarray(i, np.int64)}, (), op.loc).result for i in at
    ]


def _write(out: Block, whole: Value, part: Value, at: Sequence[int], op: Op) -> Value:
    return out.add("dynamic_update_slice", [whole, part, *_starts(out, at, op)], whole.type, {}, (), op.loc).result


def _same_memory(op: Op) -> bool:
    """Does the array only get dimensions of size one?"""
    before, after = ([n for n in v.shape if n != 1] for v in (op.operands[0], op.result))
    dims = list(op.attrs["broadcast_dimensions"])
    return before == after and dims == sorted(dims)


def _for_libraries(block: Block) -> set[Value]:
    """Arrays that only library calls read."""
    read, others = set[Value](), set(block.results)
    for op in block.walk():
        (read if op.name == "library" else others).update(op.operands)
        others.update(v for region in op.regions for v in region.results)
    return read - others


def _short_rows(op: Op) -> bool:
    """Is each row of the result shorter than a vector, so that one kernel mixes the parts (codegen/interleave.py)?"""
    shape, dtype = op.result.shape, op.result.dtype
    row = prod(shape[op.attrs["dimension"] :])
    many = op.result.type.size // max(1, row) >= PARTS_FROM // LONGEST  # type: ignore[union-attr]
    return row * (1 + dtype.is_complex) <= LONGEST and many and (dtype.bits >= 8 or dtype.kind == "bool")


def _in_one_dimension(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
    """Short rows of parts that are joined themselves, as in rotation matrices, joined of those parts; None where there
    are none. (What is mixed of mixed elements is computed one by one.)"""
    shape = op.result.shape
    lead = prod(shape[: op.attrs["dimension"]])
    parts = list(_parts_of_rows(operands, lead))
    if len(parts) == len(operands):
        return None

    def rows(value: Value) -> Value:
        type = Tensor((lead, tensor(value).size // lead), value.dtype)
        return out.add("reshape", [value], [type], {}, (), op.loc).result

    flat = Tensor((lead, prod(shape) // lead), op.result.dtype)
    joined = out.add("concatenate", [rows(v) for v in parts], [flat], {"dimension": 1}, (), op.loc).result
    return out.add("reshape", [joined], [op.result.type], {}, (), op.loc).results


def _parts_of_rows(operands: Sequence[Value], lead: int) -> Iterator[Value]:
    """What `lead` rows are joined of, in the order in which each row has it."""
    for part in operands:
        inner = part.op
        while inner is not None and (
            inner.name == "reshape" or (inner.name == "broadcast_in_dim" and _same_memory(inner))
        ):
            inner = inner.operands[0].op
        if inner is not None and inner.name == "concatenate":
            if prod(inner.result.shape[: inner.attrs["dimension"]]) == lead:
                yield from _parts_of_rows(inner.operands, lead)
                continue
        if tensor(part).size:
            yield part


def _concatenate(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
    whole = tensor(op.result)
    if whole.size < PARTS_FROM:
        return None
    dim, first = op.attrs["dimension"], [0] * len(whole.shape)
    pieces = list(_pieces(operands, dim, first, whole.size // 16))
    if len(pieces) > MOST_PARTS:
        pieces = list(_pieces(operands, dim, first, None))
    if len(pieces) > MOST_PARTS:
        return None
    value = out.add("uninitialized", [], whole, {}, (), op.loc).result
    for part, at in pieces:
        value = _write(out, value, part, at, op)
    return [value]


def _pieces(
    parts: Sequence[Value], dim: int, at: Sequence[int], little: int | None
) -> Iterator[tuple[Value, list[int]]]:
    """What is joined, and where in the whole it begins. Of a part that is joined itself its parts, unless `little` is
    None: where they lie in runs of a line or more, or are no more than `little`. (One loop for all of it would choose
    the part for each element.)"""
    start = list(at)
    for part in parts:
        inner = part.op if part.op is not None and part.op.name == "concatenate" else None
        if inner is not None and little is not None and _apart(inner, little):
            yield from _pieces(inner.operands, inner.attrs["dimension"], start, little)
        elif tensor(part).size:
            yield part, list(start)
        start[dim] += part.shape[dim]


def _apart(joined: Op, little: int) -> bool:
    dim, bits = joined.attrs["dimension"], joined.result.dtype.bits
    return all(tensor(v).size <= little or prod(v.shape[dim:]) * bits >= 8 * LINE for v in joined.operands)


def _pad(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
    source, value = operands
    low, high = op.attrs["edge_padding_low"], op.attrs["edge_padding_high"]
    if op.result.type.size < PARTS_FROM or any(op.attrs["interior_padding"]) or not source.type.size:  # type: ignore[union-attr]
        return None
    if any(n < 0 for n in (*low, *high)):
        return None
    size, inside = tensor(op.result).size, tensor(source).size

    def fill(shape: Sequence[int]) -> Value:
        type = Tensor(tuple(shape), source.dtype)
        return out.add("broadcast_in_dim", [value], type, {"broadcast_dimensions": ()}, (), op.loc).result

    if size < EDGES_FROM or size > 2 * inside:
        return [_write(out, fill(op.result.shape), source, low, op)]
    # Only the edges are filled: of the first dimension whole, of each other one where those before it have none.
    whole = out.add("uninitialized", [], op.result.type, {}, (), op.loc).result
    shape, at = list(op.result.shape), [0] * len(low)
    for d, extent in enumerate(source.shape):
        for begin, end in ((0, low[d]), (low[d] + extent, op.result.shape[d])):
            if begin < end:
                shape[d], at[d] = end - begin, begin
                whole = _write(out, whole, fill(shape), at, op)
        shape[d], at[d] = extent, low[d]
    return [_write(out, whole, source, low, op)]

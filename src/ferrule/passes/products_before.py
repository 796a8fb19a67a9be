"""Products before a loop: what a loop's body multiplies in each iteration, but could have multiplied before it.

x @ W, x being the iteration's part of an outer array, is one large product of the whole array before the loop; each
iteration cuts its part from the result. Of [x, h] @ W, where only x is known before, that is x's share of it. And of a
product of which only some columns are read, only those are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from math import prod

from ferrule.ir import Block, DotDims, Op, Tensor, Value, rewrite
from ferrule.ir.types import f32
from ferrule.passes.simplify import simplify
from ferrule.passes.steps import RESULT, Lifter, Stack, Steps, constant, index, steps_of

# The most bytes of one product of all iterations. Rows from which the product of an iteration is as fast by itself.
# Multiplications below which it is better part of a kernel than a trip through memory.
BYTES, ROWS, LITTLE = 1 << 26, 128, 1 << 12


def products_before(block: Block) -> Block:
    """Returns the block, its loops without the products that can be computed before them."""
    return _each(block, _split, _lifted)


def cut_products(block: Block) -> Block:
    """Returns the block, in its loops products of only those columns that are read."""
    return _each(block, _narrowed)


def _each(block: Block, *rules: Callable[[Block, Steps, list[Value]], Sequence[Value] | None]) -> Block:
    for rule in rules:
        changed = False

        def each(out: Block, op: Op, operands: list[Value], rule=rule) -> Sequence[Value] | None:
            nonlocal changed
            if op.name != "while" or not any(inner.name == "dot_general" for inner in op.regions[1].ops):
                return None
            steps = steps_of(op, operands)
            found = rule(out, steps, operands) if steps is not None else None
            changed |= found is not None
            return found

        new = rewrite(block, each)
        if changed:
            block = simplify(new, ours=True)
    return block


def _again(out: Block, steps: Steps, starts: Sequence[Value], body: Block) -> Sequence[Value]:
    loop = steps.loop
    types = [r.type for r in loop.results]
    return out.add("while", starts, types, loop.attrs, [loop.regions[0], body], loop.loc).results


def _lifted(out: Block, steps: Steps, starts: list[Value]) -> Sequence[Value] | None:
    lifter = Lifter(steps, out)
    ready: dict[Value, Stack] = {}
    for op in steps.body.ops:
        if op.name != "dot_general":
            continue
        side = 0 if lifter.lift(op.operands[0]) is not None else 1
        if _worth(steps, op, side) and (found := lifter.lift(op.result)) is not None:
            ready[op.result] = found
    if not ready:
        return None
    body, env = _opened(steps)
    at: dict[int, Value] = {}
    for value, stack in ready.items():
        assert value.op is not None and steps.counter is not None
        if stack.order not in at:
            at[stack.order] = index(body, steps, env[steps.counter[0]], stack.order)
        counter, loc = at[stack.order], value.op.loc
        zero = constant(body, 0, counter.dtype)
        type = Tensor((1, *value.shape), value.dtype)
        operands = [stack.value, counter, *[zero] * len(value.shape)]
        part = body.add("dynamic_slice", operands, [type], {"slice_sizes": type.shape}, (), loc).result
        env[value] = body.add("reshape", [part], [value.type], {}, (), loc).result
    gone = {value.op for value in ready}
    _rest(body, steps, env, gone)
    return _again(out, steps, starts, body)


def _opened(steps: Steps) -> tuple[Block, dict[Value, Value]]:
    """A body with nothing in it yet, and what stands for the old one's values."""
    body = Block(a.type for a in steps.body.args)
    return body, dict(zip(steps.body.args, body.args, strict=True))


def _rest(body: Block, steps: Steps, env: dict[Value, Value], gone: set[Op | None]) -> None:
    """The old body's ops in the new one, but for those that are gone."""
    for op in steps.body.ops:
        if op not in gone:
            _copied(body, op, env)
    body.results = [env.get(v, v) for v in steps.body.results]


def _copied(body: Block, op: Op, env: dict[Value, Value]) -> None:
    regions = [rewrite(r, lambda *_: None, env) for r in op.regions]
    reads = [env.get(v, v) for v in op.operands]
    new = body.add(op.name, reads, [r.type for r in op.results], op.attrs, regions, op.loc)
    env.update(zip(op.results, new.results, strict=True))


def _worth(steps: Steps, op: Op, side: int) -> bool:
    """Is one product of all iterations better than one in each? All of them are rows of one side."""
    dims: DotDims = op.attrs["dot_dimension_numbers"]
    shape = op.operands[0].shape
    terms = prod(shape[d] for d in dims.lhs_contracting_dimensions)
    results = prod(op.result.shape)
    if op.result.type.nbytes * steps.trips > BYTES or results * terms < LITTLE:  # type: ignore[union-attr]
        return False
    batch = prod(shape[d] for d in dims.lhs_batching_dimensions)
    rows = prod(shape) // (terms * batch)
    return (rows if side == 0 else results // (rows * batch)) < ROWS


# --- [x, h] @ W -------------------------------------------------------------------------------------------------
def _split(out: Block, steps: Steps, starts: list[Value]) -> Sequence[Value] | None:
    """Products with a concatenation along what they sum over, when some of its parts are known before the loop."""
    if not any(op.name == "concatenate" for op in steps.body.ops):
        return None
    lifter = Lifter(steps, out)
    found = {op: side for op in steps.body.ops if (side := _parted(steps, op, lifter)) is not None}
    if not found:
        return None
    body, env = _opened(steps)
    for op in steps.body.ops:
        _copied(body, op, env)
        if op in found:
            env[op.result] = _by_parts(out, body, op, found[op], lifter, env)
    body.results = [env.get(v, v) for v in steps.body.results]
    return _again(out, steps, starts, body)


def _parted(steps: Steps, op: Op, lifter: Lifter) -> int | None:
    """The side of the product that is such a concatenation."""
    if op.name != "dot_general" or not (op.result.dtype.is_float or op.result.dtype.is_int):
        return None
    dims: DotDims = op.attrs["dot_dimension_numbers"]
    for side, contracting in enumerate((dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions)):
        joined, other = op.operands[side].op, op.operands[1 - side]
        if joined is None or joined.name != "concatenate" or joined.result not in steps.inside:
            continue
        if joined.attrs["dimension"] not in contracting or lifter.fixed(other) is None:
            continue
        known = [lifter.lift(v) is not None or lifter.fixed(v) is not None for v in joined.operands]
        if any(known) and not all(known) and _worth(steps, op, side):
            return side
    return None


def _by_parts(out: Block, body: Block, op: Op, side: int, lifter: Lifter, env: dict[Value, Value]) -> Value:
    """The sum of the products of the parts: one for those known before the loop, one for the rest."""
    dims: DotDims = op.attrs["dot_dimension_numbers"]
    groups = (dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions)
    joined = op.operands[side].op
    assert joined is not None
    axis = groups[1 - side][groups[side].index(joined.attrs["dimension"])]
    weights = lifter.fixed(op.operands[1 - side])
    assert weights is not None
    dim, narrow = joined.attrs["dimension"], op.result.dtype.is_float and op.result.dtype.bits < 32
    type = Tensor(op.result.shape, f32 if narrow else op.result.dtype)  # narrow ones are rounded once
    total: Value | None = None
    end = 0
    for _, run in groupby(joined.operands, lambda v: lifter.lift(v) is None and lifter.fixed(v) is None):
        parts = list(run)
        begin, end = end, end + sum(v.shape[dim] for v in parts)
        if begin == end:
            continue
        share, value = _columns(out, weights, axis, begin, end, op), env.get(parts[0], parts[0])
        if len(parts) > 1:
            sizes = tuple(end - begin if d == dim else size for d, size in enumerate(joined.result.shape))
            whole = Tensor(sizes, joined.result.dtype)
            reads = [env.get(v, v) for v in parts]
            value = body.add("concatenate", reads, [whole], joined.attrs, (), joined.loc).result
        operands = [value, share] if side == 0 else [share, value]
        product = body.add("dot_general", operands, [type], op.attrs, (), op.loc).result
        total = product if total is None else body.add("add", [total, product], [type], {}, (), op.loc).result
    assert total is not None
    return body.add("convert", [total], [op.result.type], {}, (), op.loc).result if narrow else total


def _columns(out: Block, value: Value, dim: int, begin: int, end: int, op: Op) -> Value:
    """value[begin:end] along the dimension."""
    rank = len(value.shape)
    attrs = {
        "start_indices": tuple(begin if d == dim else 0 for d in range(rank)),
        "limit_indices": tuple(end if d == dim else size for d, size in enumerate(value.shape)),
        "strides": (1,) * rank,
    }
    shape = tuple(end - begin if d == dim else size for d, size in enumerate(value.shape))
    return out.add("slice", [value], [Tensor(shape, value.dtype)], attrs, (), op.loc).result


# --- (dY @ W)[:, a:b] -------------------------------------------------------------------------------------------
def _narrowed(out: Block, steps: Steps, starts: list[Value]) -> Sequence[Value] | None:
    """Products that are only cut into columns, not all of which the loop itself needs: each cut its own product."""
    lifter = Lifter(steps, out)
    found: dict[Op, tuple[Value, Value]] = {}
    for op in steps.body.ops:
        if op.name == "dot_general":
            found |= _cuts(out, steps, op, lifter)
    if not found:
        return None
    body, env = _opened(steps)
    for op in steps.body.ops:
        if op not in found:
            _copied(body, op, env)
            continue
        dot = op.operands[0].op
        assert dot is not None
        operands = [env.get(v, v) for v in found[op]]
        env[op.result] = body.add("dot_general", operands, [op.result.type], dot.attrs, (), dot.loc).result
    body.results = [env.get(v, v) for v in steps.body.results]
    return _again(out, steps, starts, body)


def _cuts(out: Block, steps: Steps, dot: Op, lifter: Lifter) -> dict[Op, tuple[Value, Value]]:
    """For each slice of the product the operands of its own product."""
    users, dims = steps.users.get(dot.result, []), dot.attrs["dot_dimension_numbers"]
    if not users or any(u.name != "slice" for u in users):
        return {}
    batch, left = len(dims.lhs_batching_dimensions), dot.operands[0].shape
    mine = len(left) - batch - len(dims.lhs_contracting_dimensions)
    whole, ranges, sides = dot.result.shape, list[tuple[int, int]](), set[int]()
    for user in users:
        begin, end = user.attrs["start_indices"], user.attrs["limit_indices"]
        cut = [d for d, size in enumerate(whole) if (begin[d], end[d]) != (0, size)]
        if len(cut) != 1 or cut[0] < batch or any(s != 1 for s in user.attrs["strides"]):
            return {}
        sides.add(cut[0])
        ranges.append((begin[cut[0]], end[cut[0]]))
    if len(sides) != 1:
        return {}
    (column,) = sides
    side = 0 if column < batch + mine else 1
    other = dot.operands[side]
    groups = (dims.lhs_batching_dimensions, dims.rhs_batching_dimensions)[side]
    groups += (dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions)[side]
    free = [d for d in range(len(other.shape)) if d not in groups]
    needed = [r for r, user in zip(ranges, users, strict=True) if not goes_out(steps, user.result)]
    # Pieces that overlap would be computed twice.
    disjoint = all(a[1] <= b[0] for a, b in zip(sorted(set(ranges)), sorted(set(ranges))[1:], strict=False))
    if not disjoint or sum(e - b for b, e in set(needed)) == whole[column] or lifter.fixed(other) is None:
        return {}
    dim = free[column - batch - (mine if side else 0)]
    found: dict[Op, tuple[Value, Value]] = {}
    for user, (begin, end) in zip(users, ranges, strict=True):
        part = _columns(out, lifter.fixed(other), dim, begin, end, dot)  # type: ignore[arg-type]
        found[user] = (part, dot.operands[1]) if side == 0 else (dot.operands[0], part)
    return found


def goes_out(steps: Steps, value: Value) -> bool:
    """Is the value, in another arrangement, only written to a result of the loop that has all iterations'?"""
    while len(users := steps.users.get(value, [])) == 1 and users[0] is not RESULT:
        user = users[0]
        if user.name == "dynamic_update_slice":
            carried = [k for k, v in enumerate(steps.body.results) if v is user.result]
            return len(carried) == 1 and user.operands[1] is value and steps.written(carried[0]) is not None
        if user.name not in ("reshape", "broadcast_in_dim", "transpose", "convert"):
            return False
        value = user.result
    return False

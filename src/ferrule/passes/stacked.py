"""Reductions of stacked arrays: what is combined along the dimension in which arrays were stacked is combined of these.

`jnp.stack([a, b, c]).mean(0)` need not write the stack, and the index of the first true condition, which `jnp.select`
asks for, is a few comparisons for each element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ferrule.ir import Block, Op, Tensor, Value, rewrite, splat
from ferrule.ir.types import DType
from ferrule.ops import OPS
from ferrule.ops.bodies import monoid
from ferrule.passes.simplify import simplify

# Of more arrays the expression would be long.
MOST = 16


def stacked(block: Block) -> Block:
    """Returns the block, which must not be shared, with those reductions as elementwise ops."""
    if not block.holds("reduce") or not block.holds("concatenate"):
        return block
    found = False
    uses = block.uses()
    results = set(block.results)  # those of nested blocks are among the uses

    def rule(out: Block, op: Op, operands: Sequence[Value]) -> Sequence[Value] | None:
        nonlocal found
        if op.name != "reduce" or not _is_of_stack(op, lambda v: len(uses.get(v, ())) == 1 and v not in results):
            return None
        found = True
        return _combined(out, op, operands)

    new = rewrite(block, rule, ours=True)
    return simplify(new, ours=True) if found else new


def _is_of_stack(op: Op, once: Callable[[Value], bool]) -> bool:
    """Is the reduction along the dimension of a stack that nobody else reads, by a body for arrays, too?"""
    count, dims, body = len(op.operands) // 2, op.attrs["dimensions"], op.regions[0]
    if len(dims) != 1 or not 1 <= op.operands[0].shape[dims[0]] <= MOST:
        return False
    arrays = op.operands[:count]
    if not any(_stack(v, dims[0]) and once(v) for v in arrays):
        return False
    if any(not (_stack(v, dims[0]) and once(v)) and not _numbers(v, dims[0]) for v in arrays):
        return False
    dtype = op.results[0].dtype
    if dtype.is_float and dtype.bits < 32 and monoid(body) == "add":  # rounded at the end only
        return False
    if any(v.dtype != r.dtype for v, r in zip(op.operands, (*op.results, *op.results), strict=True)):
        return False
    plain = all(inner.name == "constant" or _elementwise(inner) for inner in body.ops)
    return plain and not body.free()


def _stack(value: Value, dim: int) -> bool:
    op = value.op
    if op is None or op.name != "concatenate" or op.attrs["dimension"] != dim:
        return False
    return all(part.shape[dim] == 1 for part in op.operands)


def _numbers(value: Value, dim: int) -> bool:
    """Is it the same for all elements of an array of the stack?"""
    op = value.op
    return op is not None and (splat(value) is not None or (op.name == "iota" and op.attrs["iota_dimension"] == dim))


def _elementwise(op: Op) -> bool:
    return op.name in OPS and OPS[op.name].elementwise and not op.regions and all(not r.shape for r in op.results)


def _combined(out: Block, op: Op, operands: Sequence[Value]) -> list[Value]:
    count, (dim,) = len(operands) // 2, op.attrs["dimensions"]
    shape = op.results[0].shape

    def constant(dtype: DType, value: object) -> Value:
        array = np.broadcast_to(np.asarray(value).astype(dtype.numpy), shape)
        return out.add("constant", [], Tensor(shape, dtype), {"value": array}, (), op.loc).result

    def part(value: Value, k: int) -> Value:
        source, type = value.op, Tensor(shape, value.dtype)
        assert source is not None
        if source.name == "concatenate":
            return out.add("reshape", [source.operands[k]], type, {}, (), op.loc).result
        return constant(value.dtype, k if source.name == "iota" else splat(value))

    total = [
        out.add("broadcast_in_dim", [v], Tensor(shape, v.dtype), {"broadcast_dimensions": ()}, (), op.loc).result
        for v in operands[count:]
    ]
    for k in range(op.operands[0].shape[dim]):
        env = dict(zip(op.regions[0].args, [*total, *(part(v, k) for v in operands[:count])], strict=True))
        for inner in op.regions[0].ops:
            if inner.name == "constant":
                env[inner.result] = constant(inner.result.dtype, inner.attrs["value"])
                continue
            types = [Tensor(shape, r.dtype) for r in inner.results]
            found = out.add(inner.name, [env[v] for v in inner.operands], types, inner.attrs, (), inner.loc or op.loc)
            env.update(zip(inner.results, found.results, strict=True))
        total = [env[v] for v in op.regions[0].results]
    return total

"""Turn: what products in a loop read across memory, in every iteration, is transposed once before the loop.

The right side of a product is read in rows. Where it is a transposed matrix (the weights in the gradient of a recurrent
network), a product of few rows spends more time on rearranging it than on multiplying.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ferrule.ir import Block, Op, Tensor, Value
from ferrule.passes.match import strides_of

# More rows are worth the rearrangement in each product. Smaller matrices are in the nearest cache; larger ones are not
# to lie in memory twice.
ROWS, SMALLEST, LARGEST = 64, 1 << 13, 1 << 24
OWN = frozenset({"f32", "f64"})  # of the runtime's own loops; libraries keep their own arrangement


def turn(block: Block) -> Block:
    """Changes the block, and returns it."""
    ops: list[Op] = []
    for op in block.ops:
        if op.name == "while" and op.attrs.get("trips", 2) > 1:
            body = op.regions[1]
            inside = set(_defined(body))
            turned: dict[Value, Value] = {}
            for inner in body.walk():
                if inner.name == "library" and inner.attrs["target"] == "gemm" and _across(inner, inside):
                    matrix = inner.operands[1]
                    if matrix not in turned:
                        turned[matrix] = _transposed(ops, inner)
                    about = inner.attrs["attrs"]
                    strides = {"b_strides": (0, about["n"], 1)}
                    inner.operands = [inner.operands[0], turned[matrix], *inner.operands[2:]]
                    inner.attrs = {**inner.attrs, "attrs": {**about, **strides}}
        for region in op.regions:
            turn(region)
        ops.append(op)
    block.ops = ops
    return block


def _defined(block: Block) -> Iterator[Value]:
    yield from block.args
    for op in block.ops:
        yield from op.results
        for region in op.regions:
            yield from _defined(region)


def _across(op: Op, inside: set[Value]) -> bool:
    """Is the right side a matrix from outside that lies in memory column by column?"""
    about, matrix = op.attrs["attrs"], op.operands[1]
    if matrix in inside or matrix.dtype.name not in OWN or op.result.dtype.name not in OWN:
        return False
    k, n = about["k"], about["n"]
    if about["batch"] != 1 or not 1 < about["m"] <= ROWS or not SMALLEST <= k * n * matrix.dtype.itemsize <= LARGEST:
        return False
    return tuple(about["b_strides"][1:]) == (1, k) and prod(matrix.shape) == k * n and k > 1 and n > 1


def _transposed(ops: list[Op], op: Op) -> Value:
    about, matrix = op.attrs["attrs"], op.operands[1]
    k, n = about["k"], about["n"]
    flat = Op("reshape", [matrix], [Tensor((n, k), matrix.dtype)], {}, (), op.loc)
    found = Op("transpose", [flat.result], [Tensor((k, n), matrix.dtype)], {"permutation": (1, 0)}, (), op.loc)
    ops += [flat, found]
    assert strides_of(found.result.shape) == (n, 1)
    return found.result

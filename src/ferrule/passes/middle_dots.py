"""Products that contract dimensions in the middle of a side, such as the rows of images or the tokens of sequences.

    %2 = dot_general(%w, %x), contracting 1 and 1 : tensor<64x128xf32>, tensor<8x128x256xf32> -> tensor<64x8x256xf32>

One product over all of it would need the side with its contracted dimension last. As many products as there are
parts before that dimension, `w` with a part of `x` each, read both where they lie; their results, 8 x 64 x 256, are
transposed where what follows wants them in the dot's order, which it often does not: einsum transposes them back.
"""

from __future__ import annotations

from math import prod

from ferrule.ir import Block, DotDims, Op, Tensor, Value, tensor
from ferrule.ir import types as t
from ferrule.passes.sides import Side, join, strides_of

# Parts with shorter rows, or whose products are smaller, are better off together.
ROW, WORTH = 16, 1 << 16


def order_is_free(block: Block) -> set[Value]:
    """The results of dots that only transposes and other dots read: the order of their dimensions costs nothing."""
    if not block.holds("dot_general"):
        return set()
    uses = block.uses()
    returned = set(block.results)
    return {
        op.result
        for op in block.walk()
        if op.name == "dot_general"
        and op.result not in returned
        and all(user.name in ("transpose", "dot_general") for user in uses.get(op.result, ()))
    }


def middle_dot(out: Block, op: Op, operands: list[Value], any_order: bool) -> Value | None:
    """The products and what puts their results in order; None where the dot is not of this kind, or where elements that
    are neighbours in the result would not be any more (but for `any_order`)."""
    dims: DotDims = op.attrs["dot_dimension_numbers"]
    dtype = operands[0].dtype
    if dtype not in (t.f32, t.f64) or operands[1].dtype != dtype or op.result.dtype != dtype:
        return None
    if dims.lhs_batching_dimensions or not dims.lhs_contracting_dimensions:
        return None
    left = Side(operands[0], (), dims.lhs_contracting_dimensions)
    right = Side(operands[1], (), dims.rhs_contracting_dimensions)
    order = sorted(range(len(left.contract)), key=lambda i: left.contract[i])
    left.contract, right.contract = ([side.contract[i] for i in order] for side in (left, right))
    for side, other in ((left, right), (right, left)):
        if side.view() is None and (view := other.view()) is not None:
            return _products(out, op, side, other, view, (left, right), any_order)
    return None


def in_memory_order(op: Op, operands: list[Value]) -> tuple[Op, tuple[int, ...]] | None:
    """The dot whose result has its dimensions as the larger side has them in memory, the other side's in the place of
    the contracted ones, and the permutation that makes it the result of `op`; None where that is `op` itself, or where
    no order of free dimensions makes a side that is read where it lies.

    A transpose in front of a product, such as that of products of parts, then is one behind it: resized images with
    channels first are back where they were.
    """
    dims: DotDims = op.attrs["dot_dimension_numbers"]
    if dims.lhs_batching_dimensions or operands[0].dtype != operands[1].dtype:
        return None
    sides = [
        Side(operands[0], (), dims.lhs_contracting_dimensions),
        Side(operands[1], (), dims.rhs_contracting_dimensions),
    ]
    wanted = [(side, d) for side in sides for d in side.free]
    moved = False
    for side in sides:
        if side.view() is None:
            side.free.sort()
            moved = True
            if side.view() is None:
                return None
    left, right = sides
    small, large = sorted(sides, key=lambda side: tensor(side.value).size)
    rows = prod(small.value.shape[d] for d in small.free)  # of products of parts, if the next one is such
    if len(large.value.shape) > 2 and large.free and rows >= 2 * ROW:
        last, first = min(large.contract) > max(large.free), max(large.contract) < min(large.free)
        if last and large is right or first and large is left:
            sides.reverse()
            moved = True
    if not moved:
        return None
    made = [(side, d) for side in sides for d in side.free]
    type = Tensor(tuple(side.value.shape[d] for side, d in made), op.result.dtype)
    about = {**op.attrs, "dot_dimension_numbers": DotDims((), (), *(tuple(side.contract) for side in sides))}
    dot = Op("dot_general", [side.value for side in sides], [type], about, (), op.loc)
    return dot, tuple(made.index(place) for place in wanted)


def _products(
    out: Block,
    op: Op,
    side: Side,
    other: Side,
    view: tuple[tuple[int, int], ...],
    order: tuple[Side, Side],
    any_order: bool,
) -> Value | None:
    shape = side.value.shape
    before = sorted(d for d in side.free if d < min(side.contract))
    after = sorted(d for d in side.free if d > max(side.contract))
    if [*before, *side.contract, *after] != list(range(len(shape))):
        return None
    if join(side.contract, shape, strides_of(shape)) is None:
        return None
    _, (_, a_row), (_, a_col) = view
    batch, n, k = (prod(shape[d] for d in group) for group in (before, after, side.contract))
    m = prod(other.value.shape[d] for d in other.free)
    if n < ROW or m * n * k < WORTH:
        return None
    made = [*((side, d) for d in before), *((other, d) for d in other.free), *((side, d) for d in after)]
    permutation = tuple(made.index((s, d)) for s in order for d in s.free)
    if not any_order and permutation and permutation[-1] != len(made) - 1:
        return None
    attrs = {
        **{"batch": batch, "m": m, "n": n, "k": k},
        "a_strides": (0, a_row, a_col),
        "b_strides": (k * n, n, 1),
    }
    about = {"target": "gemm", "ffi": False, "attrs": attrs}
    parts = Tensor(tuple(s.value.shape[d] for s, d in made), op.result.dtype)
    call = out.add("library", [other.value, side.value], [parts], about, (), op.loc).result
    return out.add("transpose", [call], [op.result.type], {"permutation": permutation}, (), op.loc).result

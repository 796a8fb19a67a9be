"""Matrix products of few terms, of which one side has few rows as well, or the result many, are written out as sums of
elementwise products: x0·y0 + x1·y1 + …

They are bounded by memory (points that are rotated, colours that are mixed, gates on a quantum state). Written out they
are part of the kernels around them, and read their operands in any order of dimensions; a library would have them
transposed first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

from ferrule.codegen.interleave import LONGEST
from ferrule.codegen.products import sum_of
from ferrule.codegen.small_products import free_dims
from ferrule.ir import Block, DotDims, Op, Tensor, Value, tensor
from ferrule.ir.types import DType
from ferrule.ops import OPS
from ferrule.passes.slices import cut

# Terms of one sum, and multiplications for each element of the larger side, up to which a product is written out.
TERMS, WORK = 8, 64
# Results from which one is although both sides have many rows: tiles of a library wait for the memory they write.
LARGE = 1 << 15
# An operand that costs more operations per element is written to memory first: each element is read several times.
CHEAP = 2.0
VIEWS = frozenset({"reshape", "transpose", "slice", "broadcast_in_dim", "reverse", "concatenate", "iota", "constant"})


def has_few_terms(left: Sequence[int], right: Sequence[int], dims: DotDims) -> bool:
    """Is a product of these shapes one of a single term, or of few terms with few rows on one side or many results?"""
    terms, m, n = _sizes(left, right, dims)
    return terms == 1 or 1 <= terms <= TERMS and (m * n >= LARGE or _has_few_rows(terms, m, n))


def _sizes(left: Sequence[int], right: Sequence[int], dims: DotDims) -> tuple[int, int, int]:
    """Terms of a sum, and rows of both sides."""
    terms = prod(left[d] for d in dims.lhs_contracting_dimensions)
    m = prod(left[d] for d in free_dims(len(left), dims.lhs_batching_dimensions, dims.lhs_contracting_dimensions))
    n = prod(right[d] for d in free_dims(len(right), dims.rhs_batching_dimensions, dims.rhs_contracting_dimensions))
    return terms, m, n


def _has_few_rows(terms: int, m: int, n: int) -> bool:
    # Rows of results that are short are interleaved (codegen/interleave.py), also where they are a few more.
    few = LONGEST if n < m else TERMS
    return 1 <= min(m, n) <= few and terms * min(m, n) <= WORK


def written_out(out: Block, op: Op, operands: Sequence[Value], dims: DotDims) -> Value:
    """The sum of products that a dot is. Like one it is worth computing before a loop that does not change it
    (passes/hoist.py)."""
    kind, shape = sum_of(op.result.dtype), op.result.shape
    batch = len(dims.lhs_batching_dimensions)
    left, right = operands
    rows = len(left.shape) - batch - len(dims.lhs_contracting_dimensions)
    if not _has_few_rows(*_sizes(left.shape, right.shape, dims)):
        right, dims = _rows_last(out, op, right, dims)
    sides = [
        _Side(out, op, left, dims.lhs_batching_dimensions, dims.lhs_contracting_dimensions, batch, kind),
        _Side(out, op, right, dims.rhs_batching_dimensions, dims.rhs_contracting_dimensions, batch + rows, kind),
    ]
    total: Value | None = None
    for at in product(*(range(left.shape[d]) for d in dims.lhs_contracting_dimensions)):
        term = _add(out, op, "multiply", [side.spread(at) for side in sides], shape, kind)
        total = term if total is None else _add(out, op, "add", [total, term], shape, kind, {"hoisted": True})
    assert total is not None
    return total if kind == op.result.dtype else _add(out, op, "convert", [total], shape, op.result.dtype)


def _rows_last(out: Block, op: Op, value: Value, dims: DotDims) -> tuple[Value, DotDims]:
    """A right side that vectors read in order, as each row of the left one does anew."""
    batch, terms = dims.rhs_batching_dimensions, dims.rhs_contracting_dimensions
    order = (*batch, *terms, *free_dims(len(value.shape), batch, terms))
    if prod(value.shape[d] for d in terms) == 1 or order[-1] == len(order) - 1:
        return value, dims
    type = Tensor(tuple(value.shape[d] for d in order), tensor(value).dtype)
    value = out.add("transpose", [value], [type], {"permutation": order}, (), op.loc).result
    value = out.add("optimization_barrier", [value], [type], {}, (), op.loc).result
    first = len(batch)
    places = tuple(range(first)), tuple(range(first, first + len(terms)))
    return value, replace(dims, rhs_batching_dimensions=places[0], rhs_contracting_dimensions=places[1])


class _Side:
    """An operand of a dot, whose free dimensions are those of the result from `first` on."""

    def __init__(
        self,
        out: Block,
        op: Op,
        value: Value,
        batch: Sequence[int],
        contract: Sequence[int],
        first: int,
        kind: DType,
    ) -> None:
        if cost(value) > CHEAP:
            value = out.add("optimization_barrier", [value], [value.type], {}, (), op.loc).result
        if value.dtype != kind:
            value = _add(out, op, "convert", [value], value.shape, kind)
        self.out, self.op, self.value, self.contract = out, op, value, contract
        free = free_dims(len(value.shape), batch, contract)
        self.kept = sorted([*batch, *free])
        places = {d: i for i, d in enumerate(batch)} | {d: first + i for i, d in enumerate(free)}
        self.places = [places[d] for d in self.kept]

    def spread(self, at: Sequence[int]) -> Value:
        """The elements of one term, in the shape of the result."""
        out, op, shape = self.out, self.op, self.value.shape
        term = dict(zip(self.contract, at, strict=True))
        starts = [term.get(d, 0) for d in range(len(shape))]
        ends = [term[d] + 1 if d in term else size for d, size in enumerate(shape)]
        piece = cut(out, self.value, starts, ends, [1] * len(shape), op)
        piece = _add(out, op, "reshape", [piece], [shape[d] for d in self.kept], piece.dtype)
        # broadcast_in_dim wants its dimensions in order
        order = sorted(range(len(self.kept)), key=self.places.__getitem__)
        if order != list(range(len(order))):
            type = Tensor(tuple(piece.shape[d] for d in order), piece.dtype)
            piece = out.add("transpose", [piece], [type], {"permutation": tuple(order)}, (), op.loc).result
        attrs = {"broadcast_dimensions": tuple(sorted(self.places))}
        type = Tensor(op.result.shape, piece.dtype)
        return out.add("broadcast_in_dim", [piece], [type], attrs, (), op.loc).result


def cost(value: Value, depth: int = 6) -> float:
    """Operations that an element costs which is computed where it is read; much where it cannot be."""
    op = value.op
    if op is None or op.name in ("library", "while", "constant", "optimization_barrier", "iota"):
        return 0.0
    if depth == 0 or op.name not in OPS or not (op.name in VIEWS or OPS[op.name].elementwise):
        return 2 * CHEAP
    own = 0.0 if op.name in VIEWS else OPS[op.name].flops
    parts = [cost(v, depth - 1) for v in op.operands]
    return own + (max(parts, default=0.0) if op.name == "concatenate" else sum(parts))


def _add(
    out: Block,
    op: Op,
    name: str,
    operands: Sequence[Value],
    shape: Sequence[int],
    dtype: DType,
    attrs: dict[str, Any] | None = None,
) -> Value:
    return out.add(name, operands, [Tensor(tuple(shape), dtype)], attrs or {}, (), op.loc).result

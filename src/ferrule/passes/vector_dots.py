"""Products that leave few results, such as the dot product of two vectors, as reductions of elementwise products; and
those of a vector and a matrix that is computed just for it, or an array that a library would have transposed.

A library's tiles want many rows and columns: one complex dot product of a million terms took it 15 ms on one thread,
and a reduction, in vectors and by all threads, 0.2. Operands of any type are converted where they are read.

Weights that are stored in few bits, with scales for groups of them, are such a matrix: a library wants it in memory,
as wide as what it multiplies, and each of its elements is read once. Part of the sum, it is never there.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ferrule.codegen.small_products import free_dims, joined
from ferrule.ir import Block, DotDims, Op, Tensor, Value, splat, tensor
from ferrule.ir.types import DType, f32, i32, ui32
from ferrule.ops import OPS
from ferrule.passes.few_terms import CHEAP, VIEWS, cost

# Types that the library multiplies as they are, and those that it converts while it packs them. In all others a product
# with a vector is better off here, too.
FAST = frozenset("f32 f64 i32 ui32 i64 ui64".split())
PACKED = frozenset("bf16 i8 ui8 i16".split())
# Types of a matrix that few vectors meet, and what holds each exactly: the library converts it where it lies.
STORED = {"i8": ("f32", "bf16", "f16"), "ui8": ("f32", "bf16", "f16"), "bf16": ("f32",)}
# Results of one product, and terms of one sum, by measurements: of any type where the sums are LONG enough for several
# threads or the operands lie crosswise, of packed ones, and of others.
FEW, TINY, LONG, CROSSWISE, DEEP = 16, 4, 1 << 17, 4096, 1024
# A vector and a matrix of so many contiguous rows of so few terms: each row is a sum of its own.
ROWS, SHORT = 256, 512
# Neighbours of a batch that are worth a vector.
LANES = 8
# Of a matrix that is computed: elements from which it matters, and operations for each of them up to which computing is
# cheaper than reading.
LARGE, SIMPLE = 1 << 14, 12.0
# Bytes from which one does not stay in a cache from one iteration of a loop to the next.
STAYS = 1 << 22


def vector_dot(out: Block, op: Op, operands: list[Value]) -> Value | None:
    """The product as a reduction; None where the library is as good."""
    lhs, rhs = operands
    if op.name == "dot":
        dims = DotDims((), (), (len(lhs.shape) - 1,), (0,))
    else:
        dims = op.attrs["dot_dimension_numbers"]
    kind = _sum_type(op.result.dtype, lhs.dtype)
    if kind is None or lhs.dtype != rhs.dtype or 0 in (*lhs.shape, *rhs.shape):
        return None
    if (rows_sums := _sums_of_rows(out, op, lhs, rhs, dims)) is not None:
        return rows_sums
    made = _made_for_it(out, lhs, rhs, dims)  # its number
    if made is None and not (_gains(lhs, rhs, dims) or _lies_between(lhs, rhs, dims) or _batch_inside(lhs, rhs, dims)):
        return None
    rows, columns = _free(lhs, dims, 0), _free(rhs, dims, 1)
    batch, results = len(dims.lhs_batching_dimensions), len(op.result.shape)
    # The result's dimensions have their numbers, what is summed the following ones.
    depth = range(results, results + len(dims.lhs_contracting_dimensions))
    left = dict(zip((*dims.lhs_batching_dimensions, *rows), range(results), strict=False))
    left |= dict(zip(dims.lhs_contracting_dimensions, depth, strict=True))
    right = dict(zip(dims.rhs_batching_dimensions, range(batch), strict=True))
    right |= dict(zip(columns, range(batch + len(rows), results), strict=True))
    right |= dict(zip(dims.rhs_contracting_dimensions, depth, strict=True))
    again = prod(rhs.shape[d] for d in columns), prod(lhs.shape[d] for d in rows)
    lhs, left = _as_it_lies(lhs, left)
    rhs, right = _as_it_lies(rhs, right)
    order = _order(left, right) if tensor(lhs).size >= tensor(rhs).size else _order(right, left)
    sizes = {left[d]: lhs.shape[d] for d in left} | {right[d]: rhs.shape[d] for d in right}
    shape = [sizes[i] for i in order]
    sides = [
        _spread(
            out,
            op,
            value,
            {d: order.index(i) for d, i in places.items()},
            shape,
            kind,
            read_again=times > 1 and side != made,
        )
        for side, (value, places, times) in enumerate(((lhs, left, again[0]), (rhs, right, again[1])))
    ]
    logical = kind.kind == "bool"
    terms = out.add("and" if logical else "multiply", sides, Tensor(tuple(shape), kind), {}, (), op.loc).result
    kept = [i for i in order if i not in depth]
    total = _add_up(out, op, terms, tuple(order.index(i) for i in sorted(depth, key=order.index)))
    if kept != sorted(kept):
        back = {"permutation": tuple(kept.index(i) for i in range(results))}
        total = out.add("transpose", [total], Tensor(op.result.shape, kind), back, (), op.loc).result
    return total if kind == op.result.dtype else out.add("convert", [total], op.result.type, {}, (), op.loc).result


def _add_up(out: Block, op: Op, terms: Value, dimensions: tuple[int, ...]) -> Value:
    """The sums (of flags, whether there is one) of an op's terms over these dimensions."""
    kind, logical = terms.dtype, terms.dtype.kind == "bool"
    zero = out.add("constant", [], Tensor((), kind), {"value": np.zeros((), kind.numpy)}, (), op.loc).result
    body = Block([Tensor((), kind)] * 2)
    body.results = [body.add("or" if logical else "add", body.args, Tensor((), kind)).result]
    type = Tensor(tuple(n for d, n in enumerate(terms.shape) if d not in dimensions), kind)
    return out.add("reduce", [terms, zero], type, {"dimensions": dimensions}, [body], op.loc).result


def _sums_of_rows(out: Block, op: Op, lhs: Value, rhs: Value, dims: DotDims) -> Value | None:
    """A vector times a matrix with many short rows, which lie one after the other: the library forms one dot product
    after the other, or packs the rows, where vectors over sixteen rows at once take a quarter of the time."""
    if dims.lhs_batching_dimensions or lhs.dtype != op.result.dtype or lhs.dtype.name not in ("f32", "f64"):
        return None
    for side, value in enumerate((lhs, rhs)):
        vector, about = (rhs, lhs)[side], _bound(dims, side)[1]
        k = prod(value.shape[d] for d in about)
        rows = tensor(value).size // k
        if rows < ROWS or k > SHORT or tensor(vector).size != k:
            continue
        lying, places = _as_it_lies(value, {d: d for d in range(len(value.shape))})
        at = {number: d for d, number in places.items()}
        free = [d for d in range(len(value.shape)) if d not in about]
        order = [at[d] for d in (*free, *about)]
        across = _bound(dims, 1 - side)[1]
        if order != sorted(order) or list(across) != sorted(across):
            continue
        matrix = out.add("reshape", [lying], Tensor((rows, k), value.dtype), {}, (), op.loc).result
        line = out.add("reshape", [vector], Tensor((k,), value.dtype), {}, (), op.loc).result
        spread = {"broadcast_dimensions": (1,)}
        line = out.add("broadcast_in_dim", [line], matrix.type, spread, (), op.loc).result
        total = _add_up(out, op, out.add("multiply", [matrix, line], matrix.type, {}, (), op.loc).result, (1,))
        return out.add("reshape", [total], op.result.type, {}, (), op.loc).result
    return None


def _as_it_lies(value: Value, places: dict[int, int]) -> tuple[Value, dict[int, int]]:
    """An operand before it was transposed, and the places of its dimensions."""
    while (op := value.op) is not None and op.name == "transpose":
        places = {d: places[i] for i, d in enumerate(op.attrs["permutation"])}
        value = op.operands[0]
    return value, places


def _order(large: dict[int, int], small: dict[int, int]) -> list[int]:
    """The terms' dimensions: the larger operand's as they lie in memory, and the other's before or behind what is
    summed, as they are there."""
    order = [large[d] for d in sorted(large)]
    for d in sorted(small):
        if small[d] not in order:
            behind = [small[e] for e in sorted(small) if e > d and small[e] in order]
            order.insert(order.index(behind[0]) if behind else len(order), small[d])
    return order


def _sum_type(result: DType, operand: DType) -> DType | None:
    """The type in which the sums run, of at least 32 bits; None for what is left alone."""
    if operand.is_complex != result.is_complex or (operand.kind == "bool") != (result.kind == "bool"):
        return None
    if result.is_float and result.bits < 32:
        return f32
    if result.is_int:
        if not operand.is_int or min(operand.bits, result.bits) < 8:
            return None
        return result if result.bits >= 32 else i32 if result.kind == "int" else ui32
    return result


def _bound(dims: DotDims, side: int) -> tuple[Sequence[int], Sequence[int]]:
    """The batch and the contracting dimensions of an operand."""
    return (
        (dims.lhs_batching_dimensions, dims.lhs_contracting_dimensions),
        (dims.rhs_batching_dimensions, dims.rhs_contracting_dimensions),
    )[side]


def _free(value: Value, dims: DotDims, side: int) -> list[int]:
    return free_dims(len(value.shape), *_bound(dims, side))


def _gains(lhs: Value, rhs: Value, dims: DotDims) -> bool:
    m, n = (prod(v.shape[d] for d in _free(v, dims, side)) for side, v in enumerate((lhs, rhs)))
    batch = prod(lhs.shape[d] for d in dims.lhs_batching_dimensions)
    k, name = prod(lhs.shape[d] for d in dims.lhs_contracting_dimensions), lhs.dtype.name
    if m * n == 1:
        return True  # of two vectors, each number is read once
    depths = (lhs, dims.lhs_contracting_dimensions), (rhs, dims.rhs_contracting_dimensions)
    along = all((j := joined(group, side.shape)) is not None and j[1] in (0, 1) for side, group in depths)
    if name in FAST:
        return (m * n * batch <= TINY and k >= LONG) or (m * n <= TINY and k >= CROSSWISE and not along)
    if name in PACKED:
        if batch > 1 and min(m, n) == 1 and name != "bf16":
            return True  # the library makes vectors of each of a batch ready by itself
        return (m * n <= TINY and k >= DEEP) or (m * n <= FEW and k >= CROSSWISE and name != "bf16")
    if lhs.dtype.itemsize == 16 and not along:
        return False  # rows of complex<f64> that are not summed along themselves are as fast in the library
    return min(m, n) == 1 or (m * n <= FEW and k >= DEEP)


def _lies_between(lhs: Value, rhs: Value, dims: DotDims) -> bool:
    """Does a vector meet an array, or each of a batch does, in which other dimensions lie around those that are summed,
    as the stages of a batch of differential equations do? A library would have all of the array transposed."""
    for side, value in enumerate((lhs, rhs)):
        vector = (rhs, lhs)[side]
        if any(vector.shape[d] != 1 for d in _free(vector, dims, 1 - side)):
            continue
        lying, places = _as_it_lies(value, {d: d for d in range(len(value.shape))})
        at = {number: d for d, number in places.items()}
        groups = *_bound(dims, side), _free(value, dims, side)
        if any(joined([at[d] for d in group], lying.shape) is None for group in groups):
            return True
    return False


def _batch_inside(lhs: Value, rhs: Value, dims: DotDims) -> bool:
    """Does a vector meet a vector or matrix in each of a batch, whose elements are neighbours in memory? Lanes go along
    the batch; a library would pick the numbers of each one apart."""
    if not any(all(v.shape[d] == 1 for d in _free(v, dims, side)) for side, v in enumerate((lhs, rhs))):
        return False
    side = 0 if tensor(lhs).size >= tensor(rhs).size else 1
    value = (lhs, rhs)[side]
    lying, places = _as_it_lies(value, {d: d for d in range(len(value.shape))})
    innermost = max((d for d, size in enumerate(lying.shape) if size > 1), default=None)
    return innermost is not None and places[innermost] in _bound(dims, side)[0] and lying.shape[innermost] >= LANES


def made_here(out: Block, value: Value) -> bool:
    """Is it computed in this block, not before a loop whose body the block is?"""
    return value.op is not None and any(op is value.op for op in reversed(out.ops))


def _made_for_it(out: Block, lhs: Value, rhs: Value, dims: DotDims) -> int | None:
    """Which operand, if any, is a matrix that is better computed where it is read, each element once: of no more bytes
    than it has itself."""
    for side, other in ((0, 1), (1, 0)):
        value, vector = (lhs, rhs)[side], (lhs, rhs)[other]
        if tensor(value).size < LARGE or any(vector.shape[d] != 1 for d in _free(vector, dims, other)):
            continue
        operations, sources = _made_of(value)
        size = tensor(value).size * value.dtype.itemsize
        if not 0.0 < operations <= SIMPLE or sum(tensor(v).size * v.dtype.itemsize for v in sources) > size:
            continue
        # Computed once, before a loop, a matrix that stays in a cache is the faster one.
        if size >= STAYS or made_here(out, value):
            return side
    return None


def _stored(op: Op) -> bool:
    """Is it a conversion that the library does while it reads?"""
    return op.name == "convert" and op.result.dtype.name in STORED.get(op.operands[0].dtype.name, ())


def _made_of(value: Value) -> tuple[float, list[Value]]:
    """Operations for each element of what is computed, and the values in memory that it is computed from. No
    operations: it is one of them, perhaps in another type or shape."""
    operations, seen, sources, stack = 0.0, {value}, [], [value]
    while stack and operations <= SIMPLE:
        here = stack.pop()
        op = here.op
        view = op is not None and op.name in VIEWS and op.name != "constant"
        if op is None or not (view or (op.name in OPS and OPS[op.name].elementwise)):
            sources += [here] if splat(here) is None else []
            continue
        operations += 0.0 if view or _stored(op) else max(1.0, OPS[op.name].flops)
        stack += [v for v in op.operands if v not in seen]
        seen.update(op.operands)
    return operations, sources


def _spread(
    out: Block, op: Op, value: Value, places: dict[int, int], shape: Sequence[int], kind: DType, *, read_again: bool
) -> Value:
    """An operand in the shape of the terms, its dimension d as number places[d]."""
    if read_again and cost(value) > CHEAP:
        value = out.add("optimization_barrier", [value], [value.type], {}, (), op.loc).result
    if value.dtype != kind:
        value = out.add("convert", [value], Tensor(value.shape, kind), {}, (), op.loc).result
    order = tuple(sorted(places, key=places.__getitem__))  # broadcast_in_dim wants its dimensions in order
    if order != tuple(range(len(order))):
        type = Tensor(tuple(value.shape[d] for d in order), kind)
        value = out.add("transpose", [value], [type], {"permutation": order}, (), op.loc).result
    attrs = {"broadcast_dimensions": tuple(sorted(places.values()))}
    return out.add("broadcast_in_dim", [value], [Tensor(tuple(shape), kind)], attrs, (), op.loc).result

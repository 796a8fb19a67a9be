"""Small matrix products stay in the program: kernels do them, with what follows (codegen/small_products.py).

A library call costs a quarter of a microsecond before it multiplies anything, and ends a kernel and a loop's function.
"""

from __future__ import annotations

from math import prod

from ferrule.codegen.small_products import Product, free_dims, product_of
from ferrule.ir import Block, DotDims, Op, Tensor, Value, tensor
from ferrule.ir.types import DType, i32
from ferrule.passes.few_terms import has_few_terms, written_out
from ferrule.passes.sides import sides
from ferrule.targets.machine import Machine

# Multiplications of one product of a batch up to which generated code is the faster one, measured in loops: with lanes
# across the columns (and for products with a vector), with lanes along the sums, and of narrow types, for which the
# library has instructions of its own. LONGEST: terms of one sum. Many rows times a matrix of TINY elements: FLAT.
ACROSS, ALONG, NARROW, LONGEST = 1 << 16, 1 << 15, (1 << 15) - 1, 512
TINY, FLAT = 64, 1 << 17
# Results from which a product of few terms is written out, where a kernel could do it as well.
WRITTEN_OUT = 1024


def small_dot(out: Block, op: Op, operands: list[Value], machine: Machine) -> Value | None:
    """The product as an op that a kernel is generated for, its operands as they lie in memory; None if it is large."""
    lhs, rhs = operands
    dims = _dims(op, lhs)
    left = _plain(lhs, dims.lhs_batching_dimensions, dims.lhs_contracting_dimensions)
    right = _plain(rhs, dims.rhs_batching_dimensions, dims.rhs_contracting_dimensions)
    return _product(out, op, [left[0], right[0]], DotDims(left[1], right[1], left[2], right[2]), machine)


def turned_dot(out: Block, op: Op, operands: list[Value], machine: Machine) -> Value | None:
    """The same of operands whose dimensions change places first, as they would before a library's call."""
    dims = _dims(op, operands[0])
    depth = prod(operands[0].shape[d] for d in dims.lhs_contracting_dimensions)
    if machine.grouped or depth > LONGEST or not 0 < tensor(op.result).size * depth <= ACROSS:
        return None
    if not _summable(op.result.dtype, [v.dtype for v in operands]):
        return None
    a, b = sides(operands[0], operands[1], dims)
    if any(side.free != sorted(side.free) for side in (a, b)):
        return None
    for side in (a, b):
        if side.view() is None:
            side.make_dense(out, op)
    dims = DotDims(tuple(a.batch), tuple(b.batch), tuple(a.contract), tuple(b.contract))
    return _product(out, op, [a.value, b.value], dims, machine)


def _product(out: Block, op: Op, operands: list[Value], dims: DotDims, machine: Machine) -> Value | None:
    lhs, rhs = operands
    if machine.grouped or not _summable(op.result.dtype, [v.dtype for v in operands]):
        return None
    p = product_of(lhs.shape, rhs.shape, dims)
    small = p is not None and _is_small(p, min(v.dtype.itemsize for v in operands) < 4)
    kept = small and p is not None and p.k > 1 and (p.batch > 1 or tensor(op.result).size < WRITTEN_OUT)
    if has_few_terms(lhs.shape, rhs.shape, dims) and not kept:
        return written_out(out, op, [lhs, rhs], dims)
    if not small:
        return None
    attrs, dtype = {"dot_dimension_numbers": dims}, op.result.dtype
    # Sums of integers are formed in 32 bits: the low ones are the same.
    kind = i32 if dtype.is_int and dtype.bits < 32 else dtype
    sums = out.add("dot_general", [lhs, rhs], [Tensor(op.result.shape, kind)], attrs, (), op.loc).result
    return sums if kind == dtype else out.add("convert", [sums], [op.result.type], {}, (), op.loc).result


def _dims(op: Op, lhs: Value) -> DotDims:
    if op.name == "dot":
        return DotDims((), (), (len(lhs.shape) - 1,), (0,))
    dims: DotDims = op.attrs["dot_dimension_numbers"]
    return dims


def _summable(result: DType, operands: list[DType]) -> bool:
    if any(d.kind == "bool" or d.is_complex != result.is_complex for d in (*operands, result)):
        return False
    if result.is_int:
        return result.bits >= 8 and all(d.is_int for d in operands)
    return all(not d.is_int for d in operands)


def _is_small(p: Product, narrow: bool) -> bool:
    most = ACROSS if p.way == "across" or 1 in (p.m, p.n) else ALONG
    if p.k * min(p.m, p.n) <= TINY:
        most = FLAT
    return p.way is not None and p.m * p.n * p.k <= (min(most, NARROW) if narrow else most) and p.k <= LONGEST


def _plain(value: Value, batch: tuple[int, ...], contract: tuple[int, ...]) -> tuple[Value, tuple, tuple]:
    """An operand, its batch and its contracting dimensions, looked at through transposes that keep the free ones in
    order."""
    while (op := value.op) is not None and op.name == "transpose":
        order = op.attrs["permutation"]
        free = [order[d] for d in free_dims(len(value.shape), batch, contract)]
        if free != sorted(free):
            break
        value = op.operands[0]
        batch, contract = (tuple(order[d] for d in group) for group in (batch, contract))
    return value, tuple(batch), tuple(contract)

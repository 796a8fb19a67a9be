"""Match, on devices: what the device's own libraries do becomes a `library` op with a target of the driver ("dnnl.…").

Such a call runs among the device's commands like a kernel. What no library of the device does stays an op, for which a
kernel is generated; only sorts, FFTs and factorizations are calls that run on the host (passes/match.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ferrule.ir import Block, Op, Tensor, Value
from ferrule.ir import types as t
from ferrule.ir.types import DType
from ferrule.passes.device_conv import library_form
from ferrule.targets.gpu import Gpu

# Ops that are not made calls of the host's library.
PRODUCTS = frozenset({"dot", "dot_general", "convolution"})
# Below this many multiplications a generated kernel, which fuses with what stands around it, beats a library call.
LIBRARY_FROM = 1 << 15


def device_rule(out: Block, op: Op, operands: list[Value], machine: Gpu) -> Sequence[Value] | None:
    """The rule for products on a device; None leaves the op to a generated kernel."""
    from ferrule.passes.match import convolution_call, product_call

    if (summed := _vector_product(out, op, operands)) is not None:
        return [summed]
    if not machine.has_library("dnnl") or any(0 in v.shape for v in (*operands, op.result)):
        return None
    wanted = library_type([v.dtype for v in operands], op.result.dtype)
    if wanted is None or _work(op) < LIBRARY_FROM:
        return None
    operand_type, result_type = wanted
    reads = [_cast(out, v, operand_type, op) for v in operands]
    type = Tensor(op.result.shape, result_type)
    if op.name == "convolution":
        form = library_form(out, op, reads[1]) if operand_type.is_float else None
        if form is None:
            return None
        kernel, reversal = form
        result = convolution_call(out, op, [reads[0], kernel], "dnnl.conv", type, reversal)
    else:
        result = product_call(out, op, reads, "dnnl.matmul", type)
    return [_cast(out, result, op.result.dtype, op)]


def _vector_product(out: Block, op: Op, operands: list[Value]) -> Value | None:
    """A product with a vector as what it is, a sum of products: bounded by memory, and long sums are added up in parts,
    where the library has one chain for each."""
    if op.name != "dot_general":
        return None
    dims, dtype = op.attrs["dot_dimension_numbers"], op.result.dtype
    contracted = dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions
    same = all(v.dtype == dtype for v in operands) and dtype in (t.f32, t.f64, t.c64, t.c128)
    if not same or dims.lhs_batching_dimensions or any(len(c) != 1 for c in contracted):
        return None
    ranks = [len(v.shape) for v in operands]
    if 1 not in ranks or 0 in operands[0].shape or 0 in operands[1].shape:
        return None
    at = 0 if ranks[0] == 1 else 1
    (vector, matrix), (axis,) = (operands[at], operands[1 - at]), contracted[1 - at]
    attrs = {"broadcast_dimensions": (axis,)}
    spread = out.add("broadcast_in_dim", [vector], [matrix.type], attrs, (), op.loc).result
    products = out.add("multiply", [spread, matrix], [matrix.type], {}, (), op.loc).result
    scalar = Tensor((), dtype)
    zero = out.add("constant", [], [scalar], {"value": np.zeros((), dtype.numpy)}, (), op.loc).result
    body = Block([scalar, scalar])
    body.results = [body.add("add", body.args, scalar).result]
    return out.add("reduce", [products, zero], [op.result.type], {"dimensions": (axis,)}, [body], op.loc).result


def library_type(operands: Sequence[DType], result: DType) -> tuple[DType, DType] | None:
    """The operand and result types in which oneDNN multiplies; None when it has none for these.

    What both sides of this (the compiler, and the driver's `prepare`) rely on: f32, and bf16 and f16 with a result of
    the same type or f32, and i8 with i32. Where a processor has no instructions for them, the driver widens the short
    floats and sums the integers exactly (native/sycl/library_call.h).
    """
    operand = operands[0]
    if any(d != operand for d in operands):
        return None
    if operand == t.f32 and result == t.f32:
        return t.f32, t.f32
    if operand in (t.bf16, t.f16) and result in (operand, t.f32):
        return operand, result
    if operand == t.i8 and result == t.i32:
        return operand, result
    return None


def _work(op: Op) -> float:
    size = float(op.result.type.size)  # type: ignore[union-attr]
    if op.name == "convolution":
        kernel = op.operands[1]
        outputs = kernel.shape[op.attrs["dimension_numbers"].kernel_output_feature_dimension]
        return size * kernel.type.size / max(1, outputs)  # type: ignore[union-attr]
    a, b = (v.type.size for v in op.operands)  # type: ignore[union-attr]
    return (size * a * b) ** 0.5


def _cast(out: Block, value: Value, dtype: DType, op: Op) -> Value:
    if value.dtype == dtype:
        return value
    return out.add("convert", [value], [Tensor(value.shape, dtype)], {}, (), op.loc).result

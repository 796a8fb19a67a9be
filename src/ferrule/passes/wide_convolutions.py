"""Convolutions of bf16 as ones of f32, where a processor multiplies bf16 no faster.

Products are summed as f32 either way, and rounded once. Without tile registers a library has no better loops for bf16
than for f32, and none for gradients; the conversions cost less than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ferrule.ir import Block, Op, Tensor, Value, rewrite
from ferrule.ir.types import DType, bf16, f32
from ferrule.targets.machine import Machine


def wide_convolutions(graph: Block, machine: Machine) -> Block:
    """Returns the graph, of which nobody else may need the old one."""
    if not machine.widens_bf16 or not graph.holds("convolution"):
        return graph

    def rule(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
        if op.name != "convolution" or not _is_better_wide(op, machine):
            return None

        def converted(value: Value, dtype: DType) -> Value:
            return out.add("convert", [value], [Tensor(value.shape, dtype)], {}, (), op.loc).result

        wide = [converted(v, f32) for v in operands]
        result = out.add("convolution", wide, [Tensor(op.result.shape, f32)], op.attrs, (), op.loc).result
        return [result if op.result.dtype == f32 else converted(result, bf16)]

    return rewrite(graph, rule, ours=True)


def _is_better_wide(op: Op, machine: Machine) -> bool:
    image, kernel = op.operands
    if image.dtype != bf16 or kernel.dtype != bf16 or op.result.dtype not in (bf16, f32):
        return False
    # Products of single elements pack and widen what they read at once, which vectors of 32 bytes take less time for.
    taps = prod(kernel.shape[d] for d in op.attrs["dimension_numbers"].kernel_spatial_dimensions)
    return taps > 1 or machine.vector_bytes >= 64

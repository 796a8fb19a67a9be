"""Convolutions of single elements to a few features, such as the last layer of a network that labels pixels: products
of a matrix with a row for each pixel. A library's convolution fills a vector with features; here they are too few."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ferrule.ir import Block, ConvDims, DotDims, Op, Tensor, Value

# Features up to which the product was faster than oneDNN's convolution: of any depth, and of DEEP ones.
FEW, MOST, DEEP = 3, 8, 64


def few_features(out: Block, op: Op, operands: list[Value]) -> Op | None:
    """The product as an op of two dimensions, whose result has the convolution's elements; None for others."""
    image, kernel = operands
    dims: ConvDims = op.attrs["dimension_numbers"]
    rank = len(op.result.shape)
    if image.dtype.name not in ("f32", "f64") or {image.dtype, kernel.dtype, op.result.dtype} != {image.dtype}:
        return None
    if not _single(op, [kernel.shape[d] for d in dims.kernel_spatial_dimensions]) or prod(op.result.shape) == 0:
        return None
    last = rank - 1
    where = (dims.input_batch_dimension, *dims.input_spatial_dimensions, dims.input_feature_dimension)
    there = (dims.output_batch_dimension, *dims.output_spatial_dimensions, dims.output_feature_dimension)
    depth, features = image.shape[dims.input_feature_dimension], op.result.shape[dims.output_feature_dimension]
    if features > (MOST if depth >= DEEP else FEW) or where != there or where[-1] != last:
        return None
    positions = prod(image.shape) // depth
    inputs_first = dims.kernel_input_feature_dimension < dims.kernel_output_feature_dimension
    shape = (depth, features) if inputs_first else (features, depth)
    rows = out.add("reshape", [image], Tensor((positions, depth), image.dtype), {}, (), op.loc).result
    weights = out.add("reshape", [kernel], Tensor(shape, kernel.dtype), {}, (), op.loc).result
    contracted = (0,) if inputs_first else (1,)
    about = {"dot_dimension_numbers": DotDims((), (), (1,), contracted)}
    return Op("dot_general", [rows, weights], [Tensor((positions, features), op.result.dtype)], about, (), op.loc)


def _single(op: Op, taps: Sequence[int]) -> bool:
    """Is the kernel one element at every position of the image as it is?"""
    ones = (op.attrs.get(name) or () for name in ("window_strides", "lhs_dilation"))
    padding = [p for pair in op.attrs.get("padding") or () for p in pair]
    groups = (op.attrs.get(name, 1) for name in ("feature_group_count", "batch_group_count"))
    return all(n == 1 for n in (*taps, *groups, *(n for each in ones for n in each))) and not any(padding)

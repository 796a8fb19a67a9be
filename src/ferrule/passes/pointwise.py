"""Convolutions of single elements that are products.

To a few features, such as the last layer of a network that labels pixels: of a matrix with a row for each pixel. A
library's convolution fills a vector with features; here they are too few. With channels first: of the kernel with each
image (native/conv_pointwise.cc), which a library would rearrange.
"""

from __future__ import annotations

from math import prod

from ferrule.ir import Block, ConvDims, DotDims, Op, Tensor, Value
from ferrule.ir.types import f32

# Features up to which the product was faster than oneDNN's convolution: of any depth, and of DEEP ones.
FEW, MOST, DEEP = 3, 8, 64
# Positions from which an image with channels first is multiplied as it lies: beside a kernel that stays in a near
# cache, of so many elements, and beside others.
FEW_POSITIONS, NEAR, POSITIONS = 16, 1 << 18, 128


def few_features(out: Block, op: Op, operands: list[Value]) -> Op | None:
    """The product as an op of two dimensions, whose result has the convolution's elements; None for others."""
    image, kernel = operands
    dims: ConvDims = op.attrs["dimension_numbers"]
    rank = len(op.result.shape)
    if image.dtype.name not in ("f32", "f64") or {image.dtype, kernel.dtype, op.result.dtype} != {image.dtype}:
        return None
    if not _single(op) or prod(op.result.shape) == 0:
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


def is_product_of_images(op: Op) -> bool:
    """Is it the kernel times each image, better where that lies than turned around?"""
    dims: ConvDims = op.attrs["dimension_numbers"]
    image, kernel = op.operands
    where = (dims.input_batch_dimension, dims.input_feature_dimension, *dims.input_spatial_dimensions)
    there = (dims.output_batch_dimension, dims.output_feature_dimension, *dims.output_spatial_dimensions)
    if image.dtype != f32 or not _single(op) or where != there or where != tuple(range(len(where))):
        return False
    return prod(image.shape[2:]) >= (FEW_POSITIONS if prod(kernel.shape) <= NEAR else POSITIONS)


def _single(op: Op) -> bool:
    """Is the kernel one element at every position of the image as it is?"""
    taps = (op.operands[1].shape[d] for d in op.attrs["dimension_numbers"].kernel_spatial_dimensions)
    ones = (op.attrs.get(name) or () for name in ("window_strides", "lhs_dilation"))
    padding = [p for pair in op.attrs.get("padding") or () for p in pair]
    groups = (op.attrs.get(name, 1) for name in ("feature_group_count", "batch_group_count"))
    return all(n == 1 for n in (*taps, *groups, *(n for each in ones for n in each))) and not any(padding)

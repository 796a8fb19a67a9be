"""Channels last: images of convolutions lie in memory with their channels innermost, and so does what is made of them.

That is the layout in which oneDNN's convolutions take and give images. In a program that has its channels first, as
those of PyTorch have, each call would rearrange its image and its result. Here the images are transposed before the
first convolution, and back where something else than the ops below reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from ferrule.ir import Block, ConvDims, Op, Tensor, Value, rewrite, splat, tensor
from ferrule.ir.types import bf16, f32
from ferrule.ops import OPS
from ferrule.ops.checks import per_axis
from ferrule.passes.axes import after, fresh, split
from ferrule.passes.pointwise import is_product_of_images
from ferrule.passes.simplify import simplify
from ferrule.targets.machine import Machine

Order = tuple[int, ...]  # of a value's dimensions, in another form of it
Wishes = tuple[Order | None, Order | None, Order | None]
# Another form of a value: the value there, its order, and the block in which it is known.
Forms = dict[Value, tuple[Value, Order, Block]]
# Convolutions with fewer output features have their own loops for channels first (native/conv_lines.cc), and for
# channels last, too (native/conv_few.cc), which do better where lines are short or input features are many.
FEWEST, LONG, LONG_FOR_EACH, DEEP = 9, 128, 4, 8
# Depthwise ones whose lines are as long, without strides; the second is for bf16 and for vectors of 64 bytes.
PLANES, WIDE_PLANES = 24, 48
# Groups of fewer features: two vectors of AVX2.
SMALL = 16


def channels_last(block: Block, machine: Machine) -> Block:
    """Returns the block, which it uses up, with convolutions turned around, and what is made of their results as far
    as it can be. It is simplified then."""
    wishes = {op: _wishes(op, set(), machine) for op in block.walk() if op.name == "convolution"}
    found = [op for op, wish in wishes.items() if wish]
    if not found or (len(found) == 1 and is_product_of_images(found[0])):
        return block
    shared = {v for op in found for v, order in zip(op.operands, wishes[op] or (), strict=False) if order is not None}
    forms: Forms = {}

    def rule(out: Block, op: Op, operands: list[Value]) -> Sequence[Value] | None:
        turned = _Turned(out, op, operands, forms, machine)
        if op.name == "convolution":
            return turned.convolution(op.operands[0] in shared)
        if len(op.results) != 1 or (order := turned.order()) is None:
            return None
        definition = OPS.get(op.name)
        if definition is not None and definition.elementwise:
            return turned.elementwise(order)
        return _RULES[op.name](turned, order) if op.name in _RULES else None

    return simplify(rewrite(block, rule, ours=True), ours=True)


def _repeats(value: Value) -> bool:
    """Is it made of a few elements, so that these can be arranged instead?"""
    about = value.op
    return (
        about is not None
        and about.name == "broadcast_in_dim"
        and 4 * tensor(about.operands[0]).size <= tensor(value).size
    )


def _goes_along_lines(op: Op, dims: ConvDims) -> bool:
    """Has it few output features, and is better off with its channels first?"""
    image, result = op.operands[0], op.result
    depth, line = image.shape[dims.input_feature_dimension], result.shape[dims.output_spatial_dimensions[-1]]
    if result.shape[dims.output_feature_dimension] >= FEWEST:
        return False
    return image.dtype != f32 or depth < DEEP or line >= min(LONG, LONG_FOR_EACH * depth)


def _is_of_planes(op: Op, dims: ConvDims, machine: Machine) -> bool:
    """Are the loops for channels first (native/conv_planes.cc) so good at it that turning its image does not pay?"""
    spatial = dims.input_spatial_dimensions
    least = PLANES if op.result.dtype == f32 and machine.vector_bytes < 64 else WIDE_PLANES
    if len(spatial) != 2 or op.result.shape[dims.output_spatial_dimensions[-1]] < least:
        return False
    plain = spatial[-1] == 3 and dims.output_spatial_dimensions[-1] == 3
    names = "window_strides", "lhs_dilation", "rhs_dilation"
    return plain and all(d == 1 for name in names for d in per_axis(op, name, 2, 1))


def _last(value: Value, channel: int) -> Order:
    return (*(d for d in range(len(value.shape)) if d != channel), channel)


def _wishes(op: Op, moved: set[Value], machine: Machine, shared: bool = False) -> Wishes | None:
    """The orders of a convolution's operands and result (None: as it is); None when all stay as they are.

    Operands in `moved` are there in another form already; with `shared` the image will be.
    """
    dims: ConvDims = op.attrs["dimension_numbers"]
    image, kernel = op.operands
    result = op.result
    spatial = dims.kernel_spatial_dimensions
    if not spatial or image.dtype not in (f32, bf16) or kernel.dtype != image.dtype or prod(result.shape) == 0:
        return None
    batch_groups, groups = int(op.attrs.get("batch_group_count", 1)), int(op.attrs.get("feature_group_count", 1))
    wishes: Wishes
    taps = prod(kernel.shape[d] for d in spatial)
    positions = prod(result.shape[d] for d in dims.output_spatial_dimensions)
    if batch_groups > 1 or (taps > positions and groups == 1):
        # The gradient of a kernel: its images' channels are what the convolution takes for batch and features.
        channels = dims.input_batch_dimension, dims.kernel_output_feature_dimension
        inputs, outputs = image.shape[channels[0]], kernel.shape[channels[1]]
        few = max(inputs, outputs) < FEWEST
        few = few or (1 < batch_groups < inputs and (inputs == outputs or positions == 1))
        wishes = _last(image, channels[0]), _last(kernel, channels[1]), None
    else:
        channels = dims.input_feature_dimension, dims.output_feature_dimension
        depthwise = groups > 1 and kernel.shape[dims.kernel_input_feature_dimension] == 1
        if depthwise:
            few = groups < FEWEST or (not shared and _is_of_planes(op, dims, machine))
        elif groups > 1:
            # Here oneDNN's kernels for channels first are the faster ones; without AVX-512 where groups are small.
            same = image.shape[channels[0]] == result.shape[channels[1]]
            small = kernel.shape[dims.kernel_input_feature_dimension] < SMALL
            few = taps == 1 or same if machine.vector_bytes >= 64 else taps > 1 and same and small
        else:
            few = _goes_along_lines(op, dims)
        wishes = _last(image, channels[0]), None, _last(result, channels[1])
    if (few and not moved & {image, kernel}) or all(w is None or w == tuple(sorted(w)) for w in wishes):
        return None
    return wishes


class _Turned:
    """One op, to be written with other orders of dimensions."""

    def __init__(self, out: Block, op: Op, operands: list[Value], forms: Forms, machine: Machine) -> None:
        self.out, self.op, self.operands, self.forms, self.machine = out, op, operands, forms, machine

    def known(self, value: Value) -> tuple[Value, Order] | None:
        form = self.forms.get(value)
        return form[:2] if form is not None and form[2] is self.out else None

    def order(self) -> Order | None:
        """The order in which one of the operands is there."""
        return next((form[1] for v in self.operands if (form := self.known(v)) is not None), None)

    def add(self, name: str, operands: Sequence[Value], type: Tensor, attrs: dict[str, Any]) -> Value:
        return self.out.add(name, operands, [type], attrs, (), self.op.loc).result

    def free(self, value: Value, order: Order) -> bool:
        """Is the value to be had in that order without going over memory?"""
        known = self.known(value)
        return (known is not None and known[1] == order) or splat(value) is not None or _repeats(value)

    def take(self, value: Value, order: Order | None) -> Value:
        """The value in that order."""
        known, about = self.known(value), value.op
        if order is None or order == tuple(range(len(order))):
            return value
        if known is not None and known[1] == order:
            return known[0]
        type = Tensor(tuple(value.shape[d] for d in order), value.dtype)
        if (element := splat(value)) is not None:
            return self.add("constant", [], type, {"value": np.broadcast_to(np.asarray(element), type.shape)})
        if _repeats(value):
            assert about is not None
            dims = tuple(order.index(d) for d in about.attrs["broadcast_dimensions"])
            return self._broadcast(about.operands[0], dims, type)
        found = self.add("transpose", [value], type, {"permutation": order})
        self.forms[value] = found, order, self.out
        return found

    def _broadcast(self, value: Value, dims: tuple[int, ...], type: Tensor) -> Value:
        if dims != tuple(sorted(dims)):  # only a value of few dimensions is arranged first
            order = tuple(sorted(range(len(dims)), key=lambda i: dims[i]))
            arranged = Tensor(tuple(value.shape[d] for d in order), value.dtype)
            value = self.add("transpose", [value], arranged, {"permutation": order})
            dims = tuple(sorted(dims))
        return self.add("broadcast_in_dim", [value], type, {"broadcast_dimensions": dims})

    def give(self, value: Value, order: Order | None) -> list[Value]:
        """The op's result, which is there in that order."""
        if order is None or order == tuple(range(len(order))):
            return [value]
        back = tuple(order.index(d) for d in range(len(order)))
        plain = self.add("transpose", [value], self.op.result.type, {"permutation": back})  # type: ignore[arg-type]
        self.forms[plain] = value, order, self.out
        return [plain]

    def type(self, order: Order | None) -> Tensor:
        result = self.op.result
        return Tensor(tuple(result.shape[d] for d in order), result.dtype) if order else result.type  # type: ignore[return-value]

    def written(self, operands: Sequence[Value], order: Order | None, attrs: dict[str, Any]) -> list[Value]:
        regions = self.op.regions
        made = self.out.add(
            self.op.name, operands, [self.type(order)], {**self.op.attrs, **attrs}, regions, self.op.loc
        )
        return self.give(made.result, order)

    def convolution(self, shared: bool) -> list[Value] | None:
        """`shared`: another convolution's image is the same, and is turned."""
        probe = Op("convolution", self.operands, [self.op.result.type], self.op.attrs)
        wishes = _wishes(probe, {v for v in self.operands if self.known(v)}, self.machine, shared)
        if wishes is None:
            return None
        image, kernel, result = wishes
        dims: ConvDims = self.op.attrs["dimension_numbers"]
        for prefix, order in (("input", image), ("kernel", kernel), ("output", result)):
            if order is not None:
                names = [name for name in ConvDims.__dataclass_fields__ if name.startswith(prefix)]
                dims = replace(dims, **{name: _moved(getattr(dims, name), order) for name in names})
        operands = [self.take(value, order) for value, order in zip(self.operands, (image, kernel), strict=True)]
        return self.written(operands, result, {"dimension_numbers": dims})

    def elementwise(self, order: Order) -> list[Value] | None:
        shape = self.op.result.shape
        whole = [v for v in self.operands if v.shape == shape]
        if self.op.regions or any(v.shape not in (shape, ()) for v in self.operands):
            return None
        free = sum(self.known(v) is not None for v in whole)
        if sum(not self.free(v, order) for v in whole) > free:
            return None
        return self.written([self.take(v, order) if v.shape == shape else v for v in self.operands], order, {})

    def windows(self, order: Order) -> list[Value] | None:
        """reduce_window and select_and_scatter, along other dimensions than that of channels."""
        window, rank = self.op.attrs["window_dimensions"], len(order)
        images = [v for v in self.operands if len(v.shape) == rank]
        if window[order[-1]] != 1 or any(v.dtype != images[0].dtype for v in images):
            return None
        names = ("window_dimensions", "window_strides", "base_dilations", "window_dilations", "padding")
        attrs = {n: tuple(self.op.attrs[n][d] for d in order) for n in names if self.op.attrs.get(n)}
        return self.written([self.take(v, order) if len(v.shape) == rank else v for v in self.operands], order, attrs)

    def pad(self, order: Order) -> list[Value]:
        names = ("edge_padding_low", "edge_padding_high", "interior_padding")
        attrs = {n: tuple(self.op.attrs[n][d] for d in order) for n in names if self.op.attrs.get(n)}
        return self.written([self.take(self.operands[0], order), self.operands[1]], order, attrs)

    def slice(self, order: Order) -> list[Value]:
        names = ("start_indices", "limit_indices", "strides")
        attrs = {n: tuple(self.op.attrs[n][d] for d in order) for n in names if self.op.attrs.get(n)}
        return self.written([self.take(self.operands[0], order)], order, attrs)

    def reverse(self, order: Order) -> list[Value]:
        attrs = {"dimensions": tuple(sorted(order.index(d) for d in self.op.attrs["dimensions"]))}
        return self.written([self.take(self.operands[0], order)], order, attrs)

    def concatenate(self, order: Order) -> list[Value] | None:
        if not all(self.free(v, order) for v in self.operands):
            return None
        axis = {"dimension": order.index(self.op.attrs["dimension"])}
        return self.written([self.take(v, order) for v in self.operands], order, axis)

    def reduce(self, order: Order) -> list[Value] | None:
        over = self.op.attrs["dimensions"]
        if len(self.operands) != 2:
            return None
        left = [d for d in order if d not in over]
        attrs = {"dimensions": tuple(sorted(order.index(d) for d in over))}
        return self.written([self.take(self.operands[0], order), self.operands[1]], _ranks(left), attrs)

    def reshape(self, order: Order) -> list[Value] | None:
        """Dimensions are split, or merged where they lie beside each other in that order, too."""
        labels = fresh(self.operands[0].shape)
        made = after(self.op, labels)
        if made is None:
            return None
        place = {axis: at for at, axis in enumerate(a for d in order for a in split(labels[d]))}
        firsts = []
        for label in made:
            places = [place[axis] for axis in split(label)]
            if any(b != a + 1 for a, b in pairwise(places)):
                return None
            firsts.append(places[0] if places else -1)  # one of size 1 may be anywhere
        found = tuple(sorted(range(len(made)), key=lambda d: firsts[d]))
        return self.written([self.take(self.operands[0], order)], found, {})

    def broadcast(self, order: Order) -> list[Value]:
        """New dimensions follow the one that they followed, but for the innermost one."""
        dims = self.op.attrs["broadcast_dimensions"]
        found = [dims[d] for d in order]
        for d in range(len(self.op.result.shape)):
            if d not in dims:
                at = found.index(d - 1) + 1 if d else 0
                found.insert(min(at, len(found) - 1), d)
        attrs = {"broadcast_dimensions": tuple(found.index(dims[d]) for d in order)}
        return self.written([self.take(self.operands[0], order)], tuple(found), attrs)


def _ranks(dims: Sequence[int]) -> Order:
    kept = sorted(dims)
    return tuple(kept.index(d) for d in dims)


def _moved(at: int | tuple[int, ...], order: Order) -> Any:
    return order.index(at) if isinstance(at, int) else tuple(order.index(d) for d in at)


_RULES: dict[str, Callable[[_Turned, Order], list[Value] | None]] = {
    "reduce_window": _Turned.windows,
    "select_and_scatter": _Turned.windows,
    "pad": _Turned.pad,
    "slice": _Turned.slice,
    "reverse": _Turned.reverse,
    "concatenate": _Turned.concatenate,
    "reduce": _Turned.reduce,
    "reshape": _Turned.reshape,
    "broadcast_in_dim": _Turned.broadcast,
}

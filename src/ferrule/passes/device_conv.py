"""How a convolution is put to oneDNN on a device: the driver takes some geometries only (native/sycl/library_call.h).

oneDNN never turns a kernel around going forward, and always does going backward; StableHLO may ask for either. So the
kernel is reversed by an op of its own where the two differ. JAX writes the gradient of a convolution with such a
`reverse`: then nothing is left to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ferrule.ir import Block, ConvDims, Op, Value


@dataclass(frozen=True)
class _Window:
    """One spatial dimension."""

    input: int
    kernel: int
    output: int
    stride: int
    low: int
    input_dilation: int
    kernel_dilation: int
    reversed: bool

    @property
    def turned(self) -> bool:
        return self.reversed and self.kernel > 1

    def forward(self) -> bool:
        return self.input_dilation == 1 and _fits(
            self.input, self.kernel, self.output, self.stride, self.kernel_dilation, self.low
        )

    def backward_data(self) -> bool:
        low = (self.kernel - 1) * self.kernel_dilation - self.low
        return self.stride == 1 and _fits(
            self.output, self.kernel, self.input, self.input_dilation, self.kernel_dilation, low
        )

    def backward_weights(self) -> bool:
        return self.input_dilation == 1 and _fits(
            self.input, self.output, self.kernel, self.kernel_dilation, self.stride, self.low
        )


def _fits(source: int, kernel: int, result: int, stride: int, dilation: int, low: int) -> bool:
    """Whether oneDNN has a padding at the end for which its formula gives this size of the result."""
    least = (result - 1) * stride - source + (kernel - 1) * dilation + 1 - low
    return low >= 0 and max(0, least) - least < stride


def library_form(out: Block, op: Op, kernel: Value) -> tuple[Value, tuple[int, ...]] | None:
    """The kernel and the `window_reversal` with which the driver does this convolution; None when it does not."""
    dims: ConvDims = op.attrs["dimension_numbers"]
    rank = len(dims.input_spatial_dimensions)
    if not 1 <= rank <= 3:
        return None
    windows = _windows(op, dims, rank)
    feature_groups, batch_groups = (
        int(op.attrs.get("feature_group_count", 1)),
        int(op.attrs.get("batch_group_count", 1)),
    )
    if batch_groups == 1 and all(w.backward_data() for w in windows):
        dilated = any(w.input_dilation > 1 for w in windows)
        missing = [dims.kernel_spatial_dimensions[i] for i, w in enumerate(windows) if w.kernel > 1 and not w.turned]
        as_it_is = not missing and any(w.turned for w in windows)
        if dilated or as_it_is or _is_reversed(kernel, missing):
            return _reverse(out, op, kernel, missing), (1,) * rank
    if any(w.input_dilation > 1 for w in windows):
        return None
    weights = feature_groups == 1 and (
        batch_groups > 1 or prod(w.kernel for w in windows) > prod(w.output for w in windows)
    )
    fits = weights and all(w.backward_weights() for w in windows)
    if not fits and not (batch_groups == 1 and all(w.forward() for w in windows)):
        return None
    turned = [dims.kernel_spatial_dimensions[i] for i, w in enumerate(windows) if w.turned]
    return _reverse(out, op, kernel, turned), (0,) * rank


def _windows(op: Op, dims: ConvDims, rank: int) -> list[_Window]:
    image, kernel = op.operands
    ones = (1,) * rank
    padding = op.attrs.get("padding") or ((0, 0),) * rank
    columns: tuple[Sequence[Any], ...] = (
        *(
            [image.shape[d] for d in dims.input_spatial_dimensions],
            [kernel.shape[d] for d in dims.kernel_spatial_dimensions],
        ),
        [op.result.shape[d] for d in dims.output_spatial_dimensions],
        *(op.attrs.get("window_strides") or ones, [int(low) for low, _ in padding]),
        *(op.attrs.get("lhs_dilation") or ones, op.attrs.get("rhs_dilation") or ones),
        op.attrs.get("window_reversal") or (0,) * rank,
    )
    return [_Window(*row) for row in zip(*columns)]


def _is_reversed(kernel: Value, dims: Sequence[int]) -> bool:
    source = kernel.op
    return (
        bool(dims) and source is not None and source.name == "reverse" and set(source.attrs["dimensions"]) == set(dims)
    )


def _reverse(out: Block, op: Op, kernel: Value, dims: Sequence[int]) -> Value:
    if not dims:
        return kernel
    if _is_reversed(kernel, dims):
        return kernel.op.operands[0]  # type: ignore[union-attr]
    return out.add("reverse", [kernel], [kernel.type], {"dimensions": tuple(dims)}, (), op.loc).result

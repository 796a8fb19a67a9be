"""Dense linear algebra and FFT: dot, convolution, cholesky, triangular_solve, fft."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ferrule.ir import Block, ConvDims, DotDims, Op, Tensor, Type
from ferrule.ir.types import DType, bf16, c64, c128, f8E4M3FN, f16, f32, f64, i8, i32, ui8
from ferrule.ops import numerics as n
from ferrule.ops.checks import attr, axes, declared, expect, kinds, operands, per_axis, reject
from ferrule.ops.definition import Factors, Run, alike, define, element, factors
from ferrule.ops.reduction import window_output
from ferrule.ops.samples import Sample, data, samples
from ferrule.ops.shape import pad

if TYPE_CHECKING:
    from ferrule.codegen.emitter import Emitter, Key, Lanes

Arrays = Sequence[np.ndarray]


def _wide(x: np.ndarray, out: DType) -> np.ndarray:
    """An operand of a sum of products in the type in which the sum is computed."""
    if out.is_complex or n.dtype_of(x).is_complex:
        return x.astype(np.complex128)
    if out.is_float or n.dtype_of(x).is_float:
        return n.widen(x).astype(np.float64)
    if out.kind == "bool":
        return x.astype(np.int64)
    return n.widen(x).astype(np.uint64 if out.kind == "uint" else np.int64)


def _back(x: np.ndarray, out: DType) -> np.ndarray:
    return np.asarray(x != 0) if out.kind == "bool" else n.narrow(x, out)


# ---- dot ---------------------------------------------------------------------------------------------------------


def _infer_dot_general(op: Op) -> Sequence[Type]:
    a, b = operands(op, 2)
    dims: DotDims = attr(op, "dot_dimension_numbers")
    left = axes(op, "lhs dimensions", dims.lhs_batching_dimensions + dims.lhs_contracting_dimensions, a.rank)
    right = axes(op, "rhs dimensions", dims.rhs_batching_dimensions + dims.rhs_contracting_dimensions, b.rank)
    counts_fit = len(dims.lhs_batching_dimensions) == len(dims.rhs_batching_dimensions) and len(left) == len(right)
    expect(op, counts_fit, f"{dims} pairs unequal numbers of dimensions")
    for i, j in zip(left, right, strict=True):
        expect(op, a.shape[i] == b.shape[j], f"dimension {i} of {a} and dimension {j} of {b} are joined but differ")
    shape = [a.shape[i] for i in dims.lhs_batching_dimensions]
    shape += [s for i, s in enumerate(a.shape) if i not in left]
    shape += [s for i, s in enumerate(b.shape) if i not in right]
    return [Tensor(tuple(shape), declared(op).dtype)]


def _dot_general(op: Op, xs: Arrays, run: Run) -> Arrays:
    dims: DotDims = op.attrs["dot_dimension_numbers"]
    return [dot(xs[0], xs[1], dims, declared(op).dtype)]


def dot(a: np.ndarray, b: np.ndarray, dims: DotDims, out: DType) -> np.ndarray:
    """The product over the contracting dimensions: (batch, free of a, free of b)."""
    lb, rb = dims.lhs_batching_dimensions, dims.rhs_batching_dimensions
    lc, rc = dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions
    lf = [i for i in range(a.ndim) if i not in lb and i not in lc]
    rf = [i for i in range(b.ndim) if i not in rb and i not in rc]
    batch, rows, columns = [a.shape[i] for i in lb], [a.shape[i] for i in lf], [b.shape[i] for i in rf]
    depth = prod(a.shape[i] for i in lc)
    left = _wide(a, out).transpose([*lb, *lf, *lc]).reshape(prod(batch), prod(rows), depth)
    right = _wide(b, out).transpose([*rb, *rc, *rf]).reshape(prod(batch), depth, prod(columns))
    with n.silent():
        return _back(_by_parts(np.matmul, left, right).reshape([*batch, *rows, *columns]), out)


def _by_parts(product: Callable[..., np.ndarray], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A product of complex arrays from products of their parts: the library's own makes NaN of an infinite one."""
    if not (np.iscomplexobj(a) and np.iscomplexobj(b)):
        return product(a, b)
    real = product(a.real, b.real) - product(a.imag, b.imag)
    out = np.empty(real.shape, np.result_type(a, b))
    out.real, out.imag = real, product(a.real, b.imag) + product(a.imag, b.real)
    return out


def _outer(rows: np.ndarray, taps: np.ndarray) -> np.ndarray:
    return np.tensordot(rows, taps, ((1,), (1,)))


def _plain_dot(rank_a: int, rank_b: int) -> DotDims:
    return DotDims((), (), (rank_a - 1,), (0,))


def _infer_dot(op: Op) -> Sequence[Type]:
    a, b = operands(op, 2)
    expect(op, 1 <= a.rank <= 2 and 1 <= b.rank <= 2, f"takes vectors and matrices, got {a} and {b}")
    expect(op, a.shape[-1] == b.shape[0], f"{a} and {b} do not fit")
    return [Tensor((*a.shape[:-1], *b.shape[1:]), declared(op).dtype)]


# ---- convolution -------------------------------------------------------------------------------------------------


def _conv_attrs(op: Op, spatial: int) -> tuple[tuple, tuple, tuple, tuple, tuple]:
    strides, padding = per_axis(op, "window_strides", spatial, 1), per_axis(op, "padding", spatial, (0, 0))
    base, dilation = per_axis(op, "lhs_dilation", spatial, 1), per_axis(op, "rhs_dilation", spatial, 1)
    for name, values in (("window_strides", strides), ("lhs_dilation", base), ("rhs_dilation", dilation)):
        expect(op, all(v >= 1 for v in values), f"{name} = {values} must be 1 or more")
    return strides, padding, base, dilation, per_axis(op, "window_reversal", spatial, False)


def _infer_convolution(op: Op) -> Sequence[Type]:
    x, k = operands(op, 2)
    dims: ConvDims = attr(op, "dimension_numbers")
    spatial = len(dims.input_spatial_dimensions)
    expect(op, x.rank == k.rank == spatial + 2, f"{x} and {k} must have rank {spatial + 2}")
    read = (dims.input_batch_dimension, dims.input_feature_dimension, *dims.input_spatial_dimensions)
    axes(op, "input dimensions", read, x.rank)
    axes(op, "kernel dimensions", (dims.kernel_input_feature_dimension, dims.kernel_output_feature_dimension,
                                   *dims.kernel_spatial_dimensions), k.rank)  # fmt: skip
    places = (dims.output_batch_dimension, dims.output_feature_dimension, *dims.output_spatial_dimensions)
    axes(op, "output dimensions", places, x.rank)
    groups, batches = attr(op, "feature_group_count", 1), attr(op, "batch_group_count", 1)
    features, outputs = x.shape[dims.input_feature_dimension], k.shape[dims.kernel_output_feature_dimension]
    count = x.shape[dims.input_batch_dimension]
    expect(op, groups >= 1 <= batches and min(groups, batches) == 1,
           f"feature_group_count = {groups} and batch_group_count = {batches}", "one of them must be 1")  # fmt: skip
    expect(op, k.shape[dims.kernel_input_feature_dimension] * groups == features,
           f"{features} input features in {groups} groups do not fit the kernel {k}")  # fmt: skip
    expect(op, outputs % groups == 0 and outputs % batches == 0 and count % batches == 0,
           f"{outputs} output features or {count} images do not divide into the groups")  # fmt: skip
    strides, padding, base, dilation, _ = _conv_attrs(op, spatial)
    size = [x.shape[d] for d in dims.input_spatial_dimensions]
    window = [k.shape[d] for d in dims.kernel_spatial_dimensions]
    shape = [0] * x.rank
    values = (count // batches, outputs, *window_output(size, window, strides, base, dilation, padding))
    for place, value in zip(places, values, strict=True):
        shape[place] = value
    return [Tensor(tuple(shape), declared(op).dtype)]


def _convolution(op: Op, xs: Arrays, run: Run) -> Arrays:
    dims: ConvDims = op.attrs["dimension_numbers"]
    out = declared(op)
    spatial = len(dims.input_spatial_dimensions)
    strides, padding, base, dilation, reversal = _conv_attrs(op, spatial)
    groups, batches = attr(op, "feature_group_count", 1), attr(op, "batch_group_count", 1)
    x = _wide(xs[0], out.dtype).transpose(
        [dims.input_batch_dimension, dims.input_feature_dimension, *dims.input_spatial_dimensions]
    )
    k = _wide(xs[1], out.dtype).transpose(
        [dims.kernel_output_feature_dimension, dims.kernel_input_feature_dimension, *dims.kernel_spatial_dimensions]
    )
    k = np.flip(k, tuple(2 + i for i in range(spatial) if reversal[i]))
    nothing = [0, 0]
    x = pad(x, np.zeros((), x.dtype), nothing + [p[0] for p in padding], nothing + [p[1] for p in padding],
            nothing + [b - 1 for b in base])  # fmt: skip
    window = k.shape[2:]
    size = window_output(x.shape[2:], window, strides, (1,) * spatial, dilation, ((0, 0),) * spatial)
    count, outputs = x.shape[0] // batches, k.shape[0]
    parts = max(groups, batches)
    per = outputs // parts
    depth = x.shape[1] // groups
    total = np.zeros((count, outputs, *size), x.dtype)
    with n.silent():
        for offset in np.ndindex(*window):
            cut = tuple(
                slice(o * d, o * d + max(s - 1, 0) * t + 1, t)
                for o, d, s, t in zip(offset, dilation, size, strides, strict=True)
            )
            view = x[(slice(None), slice(None), *cut)] if 0 not in size else x[..., :0].reshape(*x.shape[:2], *size)
            for g in range(parts):
                rows = view[:, g * depth : (g + 1) * depth] if groups > 1 else view[g * count : (g + 1) * count]
                taps = k[(slice(g * per, (g + 1) * per), slice(None), *offset)]
                total[:, g * per : (g + 1) * per] += np.moveaxis(_by_parts(_outer, rows, taps), -1, 1)
    result = _back(total, out.dtype)
    order = [0] * (spatial + 2)
    places = (dims.output_batch_dimension, dims.output_feature_dimension, *dims.output_spatial_dimensions)
    for i, place in enumerate(places):
        order[place] = i
    return [result.transpose(order)]


# ---- factorizations ----------------------------------------------------------------------------------------------


def _square(op: Op, t: Tensor) -> None:
    expect(op, t.rank >= 2 and t.shape[-1] == t.shape[-2], f"{t} is not a stack of square matrices")


def _infer_cholesky(op: Op) -> Sequence[Type]:
    (t,) = operands(op, 1)
    kinds(op, "fc", t)
    _square(op, t)
    return [t]


def _cholesky(op: Op, xs: Arrays, run: Run) -> Arrays:
    lower, d = attr(op, "lower", False), n.dtype_of(xs[0])
    a = xs[0].astype(np.complex128 if d.is_complex else np.float64)
    if not lower:
        a = np.conj(np.swapaxes(a, -1, -2))
    size = a.shape[-1]
    out = np.zeros_like(a)
    with n.silent():
        for j in range(size):
            row = out[..., j, :j]
            pivot = a[..., j, j].real - np.sum(np.abs(row) ** 2, axis=-1)
            # a pivot that is not positive makes the whole matrix NaN, as XLA reports failure
            diagonal = np.sqrt(np.where(pivot > 0, pivot, np.nan))
            out[..., j, j] = diagonal
            column = a[..., j + 1 :, j] - np.einsum("...ik,...k->...i", out[..., j + 1 :, :j], np.conj(row))
            out[..., j + 1 :, j] = column / diagonal[..., None]
    failed = np.isnan(out).any(axis=(-1, -2), keepdims=True) if size else np.zeros((*a.shape[:-2], 1, 1), bool)
    out = np.where(failed, np.nan, out)
    if not lower:
        out = np.conj(np.swapaxes(out, -1, -2))
    return [n.narrow(out, d)]


def _infer_triangular_solve(op: Op) -> Sequence[Type]:
    a, b = operands(op, 2)
    kinds(op, "fc", a, b)
    _square(op, a)
    left = attr(op, "left_side", True)
    side = -2 if left else -1
    fits = a.dtype == b.dtype and b.rank == a.rank and b.shape[:-2] == a.shape[:-2] and b.shape[side] == a.shape[-1]
    expect(op, fits, f"{a} and {b} do not fit with left_side = {left}")
    return [b]


def _triangular_solve(op: Op, xs: Arrays, run: Run) -> Arrays:
    d = n.dtype_of(xs[0])
    a, b = (x.astype(np.complex128 if d.is_complex else np.float64) for x in xs)
    left, lower = attr(op, "left_side", True), attr(op, "lower", True)
    transpose = attr(op, "transpose_a", "NO_TRANSPOSE")
    a = np.tril(a) if lower else np.triu(a)
    if transpose != "NO_TRANSPOSE":
        a, lower = np.swapaxes(a, -1, -2), not lower
    if transpose == "ADJOINT":
        a = np.conj(a)
    if not left:
        a, b, lower = np.swapaxes(a, -1, -2), np.swapaxes(b, -1, -2), not lower
    size = a.shape[-1]
    x = np.zeros_like(b)
    with n.silent():
        for i in range(size) if lower else reversed(range(size)):
            known = slice(0, i) if lower else slice(i + 1, size)
            row = b[..., i, :] - np.einsum("...k,...kj->...j", a[..., i, known], x[..., known, :])
            x[..., i, :] = row if attr(op, "unit_diagonal", False) else row / a[..., i, i][..., None]
    return [n.narrow(x if left else np.swapaxes(x, -1, -2), d)]


# ---- fft ---------------------------------------------------------------------------------------------------------


def _infer_fft(op: Op) -> Sequence[Type]:
    (t,) = operands(op, 1)
    kind, length = attr(op, "fft_type"), tuple(attr(op, "fft_length"))
    expect(op, 1 <= len(length) <= min(3, t.rank), f"fft_length = {length} for {t}", "one to three dimensions")
    kinds(op, "f" if kind == "RFFT" else "c", t)
    last = t.shape[-len(length) :]
    if kind in ("FFT", "IFFT"):
        expect(op, last == length, f"fft_length = {length} differs from the last dimensions of {t}")
        return [t]
    if kind == "RFFT":
        expect(op, last == length, f"fft_length = {length} differs from the last dimensions of {t}")
        half = length[-1] // 2 + 1 if length[-1] else 0
        return [Tensor((*t.shape[:-1], half), c128 if t.dtype == f64 else c64)]
    if kind == "IRFFT":
        half = length[-1] // 2 + 1 if length[-1] else 0
        expect(op, last[:-1] == length[:-1] and last[-1] == half, f"fft_length = {length} does not fit {t}")
        return [Tensor((*t.shape[:-1], length[-1]), t.dtype.part)]
    reject(op, f"fft_type {kind!r} is unknown", "it is FFT, IFFT, RFFT or IRFFT")


def _fft(op: Op, xs: Arrays, run: Run) -> Arrays:
    x, kind, length = xs[0], op.attrs["fft_type"], tuple(op.attrs["fft_length"])
    out = _infer_fft(op)[0]
    assert isinstance(out, Tensor)
    if out.size == 0 or 0 in x.shape:
        return [np.zeros(out.shape, out.dtype.numpy)]
    along = range(x.ndim - len(length), x.ndim)
    wide = x.astype(np.float64 if kind == "RFFT" else np.complex128)
    by_name: dict[str, Any] = {"FFT": np.fft.fftn, "IFFT": np.fft.ifftn, "RFFT": np.fft.rfftn, "IRFFT": np.fft.irfftn}
    call = by_name[kind]
    with n.silent():
        return [n.narrow(call(wide, s=length, axes=tuple(along)), out.dtype)]


define("dot_general", infer=_infer_dot_general, evaluate=_dot_general)
define(
    "dot",
    infer=_infer_dot,
    evaluate=lambda op, xs, run: [dot(xs[0], xs[1], _plain_dot(xs[0].ndim, xs[1].ndim), declared(op).dtype)],
)
define("convolution", infer=_infer_convolution, evaluate=_convolution)
define("cholesky", infer=_infer_cholesky, evaluate=_cholesky)
define("triangular_solve", infer=_infer_triangular_solve, evaluate=_triangular_solve)
define("fft", infer=_infer_fft, evaluate=_fft)


@factors("dot_general")
def _dot_factors(op: Op) -> Factors:
    """The left side's dimensions by their numbers, and behind them the right side's own."""
    dims: DotDims = op.attrs["dot_dimension_numbers"]
    rank, other = (len(v.shape) for v in op.operands)
    pairs = dict(zip(dims.rhs_batching_dimensions, dims.lhs_batching_dimensions, strict=True))
    summed = dict(zip(dims.rhs_contracting_dimensions, dims.lhs_contracting_dimensions, strict=True))
    right = tuple((pairs | summed).get(d, rank + d) for d in range(other))
    gone = {*dims.lhs_batching_dimensions, *dims.lhs_contracting_dimensions}
    out = [*dims.lhs_batching_dimensions, *(d for d in range(rank) if d not in gone), *(f for f in right if f >= rank)]
    return Factors([alike(rank), right], [tuple(out)], dict.fromkeys(dims.lhs_contracting_dimensions, "add"))


@factors("convolution")
def _convolution_factors(op: Op) -> Factors:
    """Images and features; what goes by groups has to be whole, and so have pixels."""
    dims: ConvDims = op.attrs["dimension_numbers"]
    grouped, batched = attr(op, "feature_group_count", 1) > 1, attr(op, "batch_group_count", 1) > 1
    image = None if batched else 0
    summed = None if grouped or batched else 1
    made = None if grouped or batched else 2
    left: list[int | None] = [None] * len(op.result.shape)
    right, out = list(left), list(left)
    left[dims.input_batch_dimension], left[dims.input_feature_dimension] = image, summed
    right[dims.kernel_input_feature_dimension], right[dims.kernel_output_feature_dimension] = summed, made
    out[dims.output_batch_dimension], out[dims.output_feature_dimension] = image, made
    return Factors([tuple(left), tuple(right)], [tuple(out)], {1: "add"} if summed else {})


@factors("cholesky")
def _cholesky_factors(op: Op) -> Factors:
    dims = alike(len(op.result.shape), range(len(op.result.shape) - 2, len(op.result.shape)))
    return Factors([dims], [dims])


@factors("triangular_solve")
def _triangular_factors(op: Op) -> Factors:
    """Matrices of a batch, and right-hand sides."""
    rank = len(op.result.shape)
    right = alike(rank, (rank - 2 if attr(op, "left_side", True) else rank - 1,))
    return Factors([alike(rank, (rank - 2, rank - 1)), right], [right])


@factors("fft")
def _fft_factors(op: Op) -> Factors:
    rank = len(op.result.shape)
    dims = alike(rank, range(rank - len(tuple(op.attrs["fft_length"])), rank))
    return Factors([dims], [dims])


# ---- elements ----------------------------------------------------------------------------------------------------


@element("dot_general")
def _dot_general_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    from ferrule.codegen.products import dot_element

    return dot_element(em, op, index, op.attrs["dot_dimension_numbers"])


@element("dot")
def _dot_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    from ferrule.codegen.products import dot_element

    return dot_element(em, op, index, _plain_dot(len(op.operands[0].shape), len(op.operands[1].shape)))


@element("convolution")
def _convolution_element(em: Emitter, op: Op, k: int, index: Key) -> Lanes:
    from ferrule.codegen.products import convolution_element

    return convolution_element(em, op, index, _conv_attrs(op, len(index) - 2))


# ---- samples -----------------------------------------------------------------------------------------------------


def _products(d: DType) -> dict[str, Any]:
    return {"spread": 8.0} if d.is_float or d.is_complex else {}


@samples("dot_general")
def _dot_general_samples(name: str) -> Iterable[Sample]:
    cases = (
        ((3, 5), (5, 7), DotDims((), (), (1,), (0,))),
        ((3, 5), (7, 5), DotDims((), (), (1,), (1,))),
        ((5, 3), (5, 7), DotDims((), (), (0,), (0,))),
        ((2, 3, 5), (2, 5, 7), DotDims((0,), (0,), (2,), (1,))),
        ((3, 2, 5), (5, 7, 2), DotDims((1,), (2,), (2,), (0,))),
        ((2, 3, 4, 5), (5, 6, 3, 2), DotDims((0,), (3,), (3, 1), (0, 2))),
        ((5,), (5,), DotDims((), (), (0,), (0,))),
        ((3, 5), (5,), DotDims((), (), (1,), (0,))),
        ((3,), (4,), DotDims((), (), (), ())),
        ((3, 0), (0, 4), DotDims((), (), (1,), (0,))),
        ((0, 3), (3, 4), DotDims((), (), (1,), (0,))),
        ((33, 17), (17, 19), DotDims((), (), (1,), (0,))),
    )
    for d in (i8, i32, ui8, f16, bf16, f32, f64, c64, c128):
        for left, right, dims in cases:
            arrays = (data(d, left, name, 1), data(d, right, name, 2))
            shape = np.shape(dot(*arrays, dims, d))
            attrs = {"dot_dimension_numbers": dims, "precision_config": ("DEFAULT", "DEFAULT")}
            yield Sample(name, f"{d}{list(left)}{list(right)}", arrays, attrs, (Tensor(shape, d),), **_products(d))
    for d, out in ((bf16, f32), (f16, f32), (i8, i32), (ui8, i32), (f8E4M3FN, f32)):
        arrays = (data(d, (3, 5), name, 1), data(d, (5, 7), name, 2))
        attrs = {"dot_dimension_numbers": cases[0][2], "precision_config": ("DEFAULT", "DEFAULT")}
        yield Sample(name, f"{d}-{out}", arrays, attrs, (Tensor((3, 7), out),), **_products(out))


@samples("dot")
def _dot_samples(name: str) -> Iterable[Sample]:
    for d in (i32, bf16, f32, f64):
        for left, right in (((3, 5), (5, 7)), ((5,), (5,)), ((3, 5), (5,)), ((5,), (5, 2)), ((3, 0), (0, 2))):
            out = Tensor((*left[:-1], *right[1:]), d)
            arrays = (data(d, left, name, 1), data(d, right, name, 2))
            yield Sample(name, f"{d}{list(left)}{list(right)}", arrays, {}, (out,), **_products(d))


@samples("convolution")
def _convolution_samples(name: str) -> Iterable[Sample]:
    nchw = ConvDims(0, 1, (2, 3), 1, 0, (2, 3), 0, 1, (2, 3))
    nhwc = ConvDims(0, 3, (1, 2), 2, 3, (0, 1), 0, 3, (1, 2))
    odd = ConvDims(2, 0, (3, 1), 0, 3, (2, 1), 1, 3, (0, 2))
    line = ConvDims(0, 2, (1,), 1, 2, (0,), 0, 2, (1,))
    two = ((0, 0), (0, 0))
    cases: tuple[tuple[str, ConvDims, tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
        ("nchw", nchw, (2, 3, 6, 5), (4, 3, 3, 2), {}),
        ("nhwc", nhwc, (2, 6, 5, 3), (3, 2, 3, 4), {"window_strides": (2, 1), "padding": ((1, 1), (0, 1))}),
        ("odd", odd, (3, 5, 2, 6), (3, 2, 3, 4), {"padding": ((-1, 1), (2, 0))}),
        ("dilated", nchw, (1, 2, 5, 5), (3, 2, 2, 2), {"lhs_dilation": (2, 1), "rhs_dilation": (1, 3)}),
        ("reversed", nchw, (1, 2, 5, 5), (3, 2, 3, 3), {"window_reversal": (True, False)}),
        ("groups", nhwc, (2, 5, 5, 4), (3, 3, 2, 6), {"feature_group_count": 2}),
        ("depthwise", nhwc, (1, 5, 5, 4), (3, 3, 1, 4), {"feature_group_count": 4, "padding": ((1, 1), (1, 1))}),
        ("batch-groups", nhwc, (4, 5, 5, 3), (3, 3, 3, 6), {"batch_group_count": 2}),
        ("line", line, (2, 11, 3), (4, 3, 2), {"window_strides": (3,), "padding": ((2, 1),)}),
        ("empty", nchw, (0, 3, 6, 5), (4, 3, 3, 2), {}),
    )
    for d in (i32, f16, bf16, f32, f64, c64):
        for label, dims, x, k, more in cases:
            spatial = len(dims.input_spatial_dimensions)
            one = (1,) * spatial
            attrs: dict[str, Any] = {
                "window_strides": one,
                "padding": two[:spatial],
                "lhs_dilation": one,
                "rhs_dilation": one,
            }
            attrs |= {"window_reversal": (False,) * spatial, "dimension_numbers": dims, "feature_group_count": 1}
            attrs |= {"batch_group_count": 1, "precision_config": ("DEFAULT", "DEFAULT"), **more}
            arrays = (data(d, x, name, 1), data(d, k, name, 2))
            block = Block([Tensor(a.shape, d) for a in arrays])
            probe = Op(name, block.args, [Tensor((), d)], attrs)
            yield Sample(name, f"{label}-{d}", arrays, attrs, tuple(_infer_convolution(probe)), **_products(d))


def _regular(d: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Hermitian, far from singular."""
    a = data(d, shape, "regular", low=-1, high=1)
    wide = a.astype(np.complex128 if d.is_complex else np.float64)
    return (wide @ np.conj(np.swapaxes(wide, -1, -2)) + shape[-1] * np.eye(shape[-1])).astype(d.numpy)


@samples("cholesky")
def _cholesky_samples(name: str) -> Iterable[Sample]:
    for d in (f32, f64, c64, c128):
        for shape in ((1, 1), (5, 5), (2, 3, 3), (0, 0), (17, 17)):
            for lower in (True, False):
                yield Sample(name, f"{d}{list(shape)}-{lower}", (_regular(d, shape),), {"lower": lower}, spread=64)


@samples("triangular_solve")
def _triangular_solve_samples(name: str) -> Iterable[Sample]:
    for d in (f32, f64, c64, c128):
        for left in (True, False):
            for lower in (True, False):
                for unit in (True, False):
                    for transpose in ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"):
                        attrs = {"left_side": left, "lower": lower, "unit_diagonal": unit, "transpose_a": transpose}
                        a, b = _regular(d, (2, 5, 5)) / np.array(5, d.numpy), data(d, (2, 5, 3) if left else (2, 3, 5))
                        label = f"{d}-{left}-{lower}-{unit}-{transpose}"
                        yield Sample(name, label, (a.astype(d.numpy), b), attrs, spread=64)


@samples("fft")
def _fft_samples(name: str) -> Iterable[Sample]:
    for d in (c64, c128):
        for kind in ("FFT", "IFFT", "RFFT", "IRFFT"):
            forms = (((8,), (8,)), ((3, 7), (7,)), ((3, 12), (12,)), ((2, 5, 6), (5, 6)), ((4, 3, 5), (4, 3, 5)))
            for shape, length in forms:
                x = data(d.part if kind == "RFFT" else d, shape, name)
                if kind == "IRFFT":
                    length = (*length[:-1], 2 * length[-1] - 1)
                    x[..., 0] = x[..., 0].real
                attrs = {"fft_type": kind, "fft_length": length}
                yield Sample(name, f"{kind}-{d}{list(shape)}", (x,), attrs, spread=16)

"""The library calls of native/: each is run as a program of one CALL step and compared with NumPy in float64."""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from instruction_sets import ALL_SETS, LESSER_SETS
from one_call import call

from ferrule.program import Fn

bf16 = np.dtype(ml_dtypes.bfloat16)
f8 = np.dtype(ml_dtypes.float8_e4m3fn)
i4 = np.dtype(ml_dtypes.int4)
RNG = np.random.default_rng(0)


def random(shape, dtype):
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return RNG.random(shape) < 0.3
    if dtype.kind == "c":
        return (RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)).astype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return RNG.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    if dtype == i4:
        return RNG.integers(-8, 8, shape).astype(dtype)
    return RNG.standard_normal(shape).astype(dtype)


def wide(x):
    if x.dtype.kind in "biu" or x.dtype == i4:
        return x.astype(np.int64)
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def product(a, b):
    """a @ b in 64 bits. NumPy multiplies floats ten times as fast as integers; these hold sums of halves' products."""
    if any(x.dtype.kind not in "iu" or x.dtype.itemsize > 4 for x in (a, b)):
        return wide(a) @ wide(b)

    def parts(x):
        return [(x, 0)] if x.dtype.itemsize < 4 else [(x >> 16, 16), (x & 0xFFFF, 0)]

    sums = [((p.astype("d") @ q.astype("d")).astype("l") << (i + j)) for p, i in parts(a) for q, j in parts(b)]
    return functools.reduce(np.add, sums)


TOLERANCE = {"float32": 2e-6, "float64": 1e-14, "complex64": 3e-6, "complex128": 1e-14, "float16": 2e-3}
TOLERANCE |= {"bfloat16": 1e-2, "float8_e4m3fn": 0.1}


def close(got, want, dtype, depth=1, scale=None):
    """Equal for integers; else within a few roundings of the sum's size."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iub" or dtype == i4:
        np.testing.assert_array_equal(got, want)
        return
    assert got.shape == want.shape
    if got.size == 0:
        return
    scale = scale if scale is not None else max(1.0, float(np.nanmax(np.abs(want))))
    error = np.abs(wide(got) - want)
    assert (np.isnan(error) == np.isnan(want)).all()
    assert float(np.nanmax(error)) <= TOLERANCE[dtype.name] * scale * max(1.0, depth**0.5 / 8), float(np.nanmax(error))


# --- gemm -------------------------------------------------------------------------------------------------------
def gemm(a, b, out, **attrs):
    """a [batch, m, k] and b [batch, k, n], any strides."""
    batch, m, k = a.shape
    n = b.shape[2]

    def strides(x):
        return tuple(s // x.itemsize for s in x.strides)

    owners = [x.base if x.base is not None else x for x in (a, b)]
    attrs = dict(batch=batch, m=m, n=n, k=k, a_strides=strides(a), b_strides=strides(b)) | attrs
    return call("gemm", owners, [((batch, m, n), out)], attrs)[0]


SHAPES = [
    *[(1, 1, 1, 1), (1, 0, 5, 3), (2, 3, 4, 0), (0, 3, 4, 5), (1, 1, 300, 77), (1, 300, 1, 77), (3, 7, 5, 3)],
    *[(2, 33, 65, 129), (1, 130, 70, 600), (5, 16, 16, 16), (1, 5, 1000, 40), (1, 257, 19, 1), (1, 12, 32, 256)],
]


def laid_out(shape, dtype, transposed):
    if not transposed:
        return random(shape, dtype)
    return random((shape[0], shape[2], shape[1]), dtype).transpose(0, 2, 1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("transposed", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("types", ["ff", "dd", "FF", "DD", "ee", "bi", "ii", "ll", "hh", "BI"])
def test_gemm(shape, transposed, types):
    batch, m, n, k = shape
    a, b = laid_out((batch, m, k), types[0], transposed[0]), laid_out((batch, k, n), types[0], transposed[1])
    got = gemm(a, b, types[1])
    want = product(a, b)
    close(got, want.astype(types[1]) if np.dtype(types[1]).kind in "iu" else want, types[1], k)


@pytest.mark.parametrize("inputs,out", [(bf16, bf16), (bf16, "f"), (f8, "f"), (f8, bf16), ("e", "f"), (i4, "b")])
def test_gemm_narrow(inputs, out):
    for shape, t in itertools.product([(1, 40, 50, 60), (2, 17, 1, 300)], [0, 1]):
        batch, m, n, k = shape
        a, b = laid_out((batch, m, k), inputs, t), laid_out((batch, k, n), inputs, 1 - t)
        want = wide(a) @ wide(b)
        close(gemm(a, b, out), want.astype(out) if np.dtype(out).kind == "i" else want, out, k)


def test_gemm_mixed_and_bool():
    a, b = random((1, 20, 30), bf16), random((1, 30, 10), "f")
    close(gemm(a, b, "f"), wide(a) @ wide(b), "f", 30)
    a, b = random((1, 20, 30), "?"), random((1, 30, 10), "?")
    np.testing.assert_array_equal(gemm(a, b, "?"), a @ b)
    a, b = random((1, 9, 8), f8), random((1, 8, 7), f8)
    got = gemm(a, b, f8)
    np.testing.assert_array_equal(got, (a.astype("f") @ b.astype("f")).astype(f8))


def test_gemm_odd_strides():
    base = random((3, 40, 50), "f")
    a = base[:, ::2, ::5]
    b = random((1, 10, 64), "f")[:, :, ::3]
    attrs = dict(a_strides=(2000, 100, 5), b_strides=(0, 64, 3), batch=3, m=20, n=22, k=10)
    got = call("gemm", [base, b.base], [((3, 20, 22), "f")], attrs)[0]
    close(got, wide(a) @ wide(b), "f", 10)


def test_gemm_nan_and_infinity():
    a = np.zeros((1, 3, 4), "f")
    a[0, 1, 2], a[0, 2, 0] = np.nan, np.inf
    b = np.ones((1, 4, 5), "f")
    got = gemm(a, b, "f")
    assert not got[0, 0].any() and np.isnan(got[0, 1]).all() and np.isinf(got[0, 2]).all()


@pytest.mark.parametrize("size", [300, 700])
@pytest.mark.parametrize("dtype", ["f", "d", "F", bf16])
def test_gemm_large(size, dtype):
    a, b = random((1, size, size + 3), dtype), random((1, size + 3, size - 5), dtype)
    close(gemm(a, b, dtype), wide(a) @ wide(b), dtype, size)


def under(isa: str, code: str) -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1])\n" + code
    subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent)], check=True, env=os.environ | {"FERRULE_ISA": isa}
    )


@pytest.mark.parametrize("isa", ALL_SETS)
def test_gemm_short_sums(isa):
    """Rows of the result are written from end to end; results that are larger than the last cache as well."""
    under(
        isa,
        """
import itertools
from test_calls import close, gemm, laid_out, wide
sizes = [(1, 25, 61), (3, 13, 1100), (2, 200, 33), (1, 12, 2050), (1, 1, 40), (1, 193, 15)]
for (batch, m, n), k, left, right in itertools.product(sizes, [1, 2, 15, 16, 17, 32, 33], [0, 1], [0, 1]):
    for dtype in "fdF":
        a, b = laid_out((batch, m, k), dtype, left), laid_out((batch, k, n), dtype, right)
        close(gemm(a, b, dtype), wide(a) @ wide(b), dtype, k)
for k in 20, 32, 33:
    a, b = laid_out((41, 330, k), "f", 0), laid_out((41, k, 331), "f", 0)
    close(gemm(a, b, "f"), wide(a) @ wide(b), "f", k)
""",
    )


@pytest.mark.parametrize("isa", ALL_SETS)
def test_gemm_few_rows_large_matrix(isa):
    """The path that reads the right side once: every height of tile, odd columns, left sides in any order."""
    under(
        isa,
        """
from test_calls import bf16, close, gemm, laid_out, product, random, wide
def check(a, b, dtype):
    close(gemm(a, b, dtype), product(a, b).astype(dtype if dtype == "i" else "d"), dtype, a.shape[2])
for dtype in "f", "d", "i":
    for rows in 2, 4, 7, 12, 15, 16, 17, 23, 24, 25:
        a = laid_out((1, rows, 700), dtype, rows % 2)
        check(a, random((1, 700, 2 * 1003), dtype), dtype)
        check(a, random((1, 700, 2048), dtype)[:, :, : 2 * 1003], dtype)  # rows that are pages apart
for rows in 2, 13:
    check(random((1, rows, 4200), "f"), random((1, 4200, 1003), "f"), "f")  # more than the last cache, few sums
    check(random((9, rows, 600), "f"), random((9, 600, 801), "f"), "f")
for rows in 1, 3, 4:
    a, b = random((1, rows, 2100), bf16), random((1, 2100, 2 * 1003), bf16)
    close(gemm(a, b, "f"), wide(a) @ wide(b), "f", 2100)
    close(gemm(a, b, bf16), wide(a) @ wide(b), bf16, 2100)
""",
    )


# --- conv -------------------------------------------------------------------------------------------------------
def conv_reference(lhs, rhs, at):
    """StableHLO's convolution, written plainly on [N, C, spatial…] and [O, I, spatial…]."""
    n = len(at["window_strides"])
    lhs = wide(lhs).transpose(
        at["input_batch_dimension"], at["input_feature_dimension"], *at["input_spatial_dimensions"]
    )
    rhs = wide(rhs).transpose(
        at["kernel_output_feature_dimension"], at["kernel_input_feature_dimension"], *at["kernel_spatial_dimensions"]
    )
    for d in range(n):
        if at["window_reversal"][d]:
            rhs = np.flip(rhs, 2 + d)
        shape = list(lhs.shape)
        dil = at["lhs_dilation"][d]
        shape[2 + d] = max(0, (shape[2 + d] - 1) * dil + 1)
        grown = np.zeros(shape, lhs.dtype)
        grown[tuple([slice(None)] * (2 + d) + [slice(None, None, dil)])] = lhs
        low, high = at["padding"][2 * d : 2 * d + 2]
        pads = [(0, 0)] * grown.ndim
        pads[2 + d] = (max(low, 0), max(high, 0))
        grown = np.pad(grown, pads)
        cut = [slice(None)] * grown.ndim
        cut[2 + d] = slice(max(-low, 0), grown.shape[2 + d] - max(-high, 0))
        lhs = grown[tuple(cut)]
        shape = list(rhs.shape)
        dil = at["rhs_dilation"][d]
        shape[2 + d] = max(0, (shape[2 + d] - 1) * dil + 1)
        grown = np.zeros(shape, rhs.dtype)
        grown[tuple([slice(None)] * (2 + d) + [slice(None, None, dil)])] = rhs
        rhs = grown
    fg, bg = at["feature_group_count"], at["batch_group_count"]
    groups = max(fg, bg)
    outs = []
    for g in range(groups):
        part = np.split(lhs, groups, 1 if fg > 1 else 0)[g] if groups > 1 else lhs
        weights = np.split(rhs, groups, 0)[g] if groups > 1 else rhs
        windows = part
        if n:
            axes = tuple(range(2, 2 + n))
            windows = np.lib.stride_tricks.sliding_window_view(part, weights.shape[2:], axes)
            windows = windows[(slice(None), slice(None), *[slice(None, None, s) for s in at["window_strides"]])]
        letters = "abcdef"[:n]
        if lhs.dtype.kind in "fc":  # a matrix product is faster, which NumPy has none of integers for
            sums = np.tensordot(weights, windows, (range(1, 2 + n), (1, *range(2 + n, 2 + 2 * n))))
            outs.append(sums.swapaxes(0, 1))
        else:
            outs.append(np.einsum(f"ni{letters.upper()}{letters},oi{letters}->no{letters.upper()}", windows, weights))
    out = np.concatenate(outs, 1)
    order = [at["output_batch_dimension"], at["output_feature_dimension"], *at["output_spatial_dimensions"]]
    return out.transpose(np.argsort(order))


def random_conv(rng, rank, dtype, groups):
    """Operands and attributes of a random convolution with random dimension numbers."""
    fg, bg = {"none": (1, 1), "feature": (int(rng.integers(2, 5)), 1), "batch": (1, int(rng.integers(2, 4)))}[groups]
    ci, og, n = int(rng.integers(1, 20)), int(rng.integers(1, 20)), int(rng.integers(1, 4)) * bg
    kernel = rng.integers(1, 5, rank)
    size = rng.integers(4, 12, rank)
    at = {
        "window_strides": tuple(map(int, rng.integers(1, 4, rank))),
        "lhs_dilation": tuple(map(int, rng.choice([1, 1, 1, 2, 3], rank))),
        "rhs_dilation": tuple(map(int, rng.choice([1, 1, 2], rank))),
        "window_reversal": tuple(map(int, rng.choice([0, 0, 1], rank))),
        "padding": tuple(map(int, rng.integers(-1, 4, 2 * rank))),
        "feature_group_count": fg,
        "batch_group_count": bg,
    }
    sides = []
    for side, second in (("input", "feature"), ("kernel", ""), ("output", "feature")):
        order = [int(i) for i in rng.permutation(rank + 2)]
        sides.append(order)
        names = (
            ("kernel_output_feature", "kernel_input_feature")
            if side == "kernel"
            else (f"{side}_batch", f"{side}_{second}")
        )
        at[names[0] + "_dimension"], at[names[1] + "_dimension"] = order[0], order[1]
        at[f"{side}_spatial_dimensions"] = tuple(order[2:])
    shapes = [[0] * (rank + 2) for _ in range(2)]
    for order, shape, values in zip(sides, shapes, ([n, ci * fg, *size], [og * fg * bg, ci, *kernel])):
        for d, value in zip(order, values):
            shape[d] = int(value)
    return random(shapes[0], dtype), random(shapes[1], dtype), at


@pytest.mark.parametrize("groups", ["none", "feature", "batch"])
@pytest.mark.parametrize("dtype", ["f", "d", bf16, "e", "F", "i", "b"])
def test_conv(dtype, groups):
    rng = np.random.default_rng(1)
    done = 0
    for _ in range(60):
        rank = int(rng.integers(0, 4))
        lhs, rhs, at = random_conv(rng, rank, dtype, groups)
        sizes = [
            (lhs.shape[d] - 1) * ld + 1 + lo + hi - ((rhs.shape[k] - 1) * rd + 1)
            for d, k, ld, rd, lo, hi in zip(
                at["input_spatial_dimensions"],
                at["kernel_spatial_dimensions"],
                at["lhs_dilation"],
                at["rhs_dilation"],
                at["padding"][::2],
                at["padding"][1::2],
            )
        ]
        if any(s < 0 for s in sizes):
            continue
        want = conv_reference(lhs, rhs, at)
        got = call("conv", [lhs, rhs], [(want.shape, dtype)], at)[0]
        close(got, want.astype(dtype) if np.dtype(dtype).kind == "i" else want, dtype, 400)
        done += 1
    assert done > 25


def standard_conv(rank=2, layout="NHWC", **attrs):
    spatial = tuple(range(1, 1 + rank)) if layout == "NHWC" else tuple(range(2, 2 + rank))
    feature = rank + 1 if layout == "NHWC" else 1
    kernel = tuple(range(rank)) if layout == "NHWC" else tuple(range(2, 2 + rank))
    at = {
        **{"window_strides": (1,) * rank, "padding": (0,) * (2 * rank), "lhs_dilation": (1,) * rank},
        **{"rhs_dilation": (1,) * rank, "window_reversal": (0,) * rank},
        **{"feature_group_count": 1, "batch_group_count": 1},
        **{"input_batch_dimension": 0, "input_feature_dimension": feature, "input_spatial_dimensions": spatial},
        **{"output_batch_dimension": 0, "output_feature_dimension": feature, "output_spatial_dimensions": spatial},
        "kernel_input_feature_dimension": rank if layout == "NHWC" else 1,
        "kernel_output_feature_dimension": rank + 1 if layout == "NHWC" else 0,
        "kernel_spatial_dimensions": kernel,
    }
    return at | attrs


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("dtype", ["f", bf16])
def test_conv_common(layout, dtype):
    cases = [
        ((2, 16, 14, 14), (32, 16, 3, 3), dict(padding=(1, 1, 1, 1))),
        ((2, 3, 32, 32), (16, 3, 7, 7), dict(padding=(3, 3, 3, 3), window_strides=(2, 2))),
        ((2, 16, 14, 14), (32, 16, 1, 1), dict(window_strides=(2, 2))),
        ((2, 16, 14, 14), (16, 1, 3, 3), dict(padding=(1, 1, 1, 1), feature_group_count=16)),
        ((2, 16, 7, 7), (8, 16, 3, 3), dict(padding=(2, 2, 2, 2), lhs_dilation=(2, 2))),
        ((16, 2, 14, 14), (32, 2, 12, 12), dict(padding=(1, 1, 1, 1), rhs_dilation=(1, 1))),
        ((16, 2, 15, 15), (32, 2, 7, 7), dict(rhs_dilation=(2, 2))),
        ((2, 16, 8, 8), (16, 2, 3, 3), dict(padding=(1, 1, 1, 1), window_reversal=(1, 1), feature_group_count=8)),
    ]
    for lhs_shape, rhs_shape, attrs in cases:
        at = standard_conv(2, layout, **attrs)
        lhs, rhs = random(lhs_shape, dtype), random(rhs_shape, dtype)
        if layout == "NHWC":
            lhs = np.ascontiguousarray(lhs.transpose(0, 2, 3, 1))
            rhs = np.ascontiguousarray(rhs.transpose(2, 3, 1, 0))
        want = conv_reference(lhs, rhs, at)
        close(call("conv", [lhs, rhs], [(want.shape, dtype)], at)[0], want, dtype, 400)


def test_conv_empty():
    at = standard_conv(1)
    for lhs, rhs, out in [((0, 5, 2), (3, 2, 4), (0, 3, 4)), ((2, 5, 0), (3, 0, 4), (2, 3, 4))]:
        got = call("conv", [np.ones(lhs, "f"), np.ones(rhs, "f")], [(out, "f")], at)[0]
        assert got.shape == out and not got.any()


# --- sort, topk -------------------------------------------------------------------------------------------------
def with_specials(shape, dtype):
    x = random(shape, dtype)
    flat = x.reshape(-1)
    if np.dtype(dtype).kind == "f" or dtype == bf16:
        for i, v in enumerate([np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf, 0.0, -0.0]):
            flat[i::23] = v
    return x


def total_key(x):
    bits = {2: np.int16, 4: np.int32, 8: np.int64}[x.itemsize]
    b = x.view(bits).astype(np.int64)
    return np.where(b < 0, np.iinfo(bits).max ^ b if x.itemsize < 8 else np.int64(np.iinfo(np.int64).max) ^ b, b)


@pytest.mark.parametrize("dtype", ["f", "d", bf16, "i", "B"])
@pytest.mark.parametrize("shape,dim", [((3, 700), 1), ((40, 3, 5), 0), ((200000,), 0), ((5, 1), 1), ((0, 4), 1)])
@pytest.mark.parametrize("kept", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_sort_of_which_some_is_kept(dtype, shape, dim, kept):
    x = with_specials(shape, dtype)
    operands = [x, np.arange(x.size, dtype=np.int32).reshape(shape), random(shape, np.int16)]
    at = dict(dimension=dim, is_stable=True, key=0, order="lt", total=x.dtype.kind == "f" or x.dtype == bf16)
    whole = call("sort", operands, [(shape, y.dtype) for y in operands], at)
    some = call("sort", operands, [(shape, operands[k].dtype) for k in kept], at | {"kept": kept})
    for k, found in zip(kept, some, strict=True):
        assert found.tobytes() == whole[k].tobytes()


@pytest.mark.parametrize("kept", [None, (2,), (-1,), (1,), (0, 0)])
def test_sort_refuses_results_of_no_operand(kept):
    x = np.arange(10, dtype=np.float32)
    at = dict(dimension=0, is_stable=True, key=0, order="lt", total=True)
    results = [(x.shape, x.dtype)] * (1 if kept is None else len(kept))
    with pytest.raises(RuntimeError, match="kept|operand"):
        call("sort", [x, x.astype(np.int32)], results, at if kept is None else at | {"kept": kept})


@pytest.mark.parametrize("dtype", ["f", "d", "e", bf16, "i", "l", "b", "B", "H", "I", "L", "?"])
@pytest.mark.parametrize("shape,dim", [((3, 700), 1), ((40, 3, 5), 0), ((200000,), 0), ((5, 1), 1), ((0, 4), 1)])
def test_sort_by_key(dtype, shape, dim):
    x = with_specials(shape, dtype)
    floats = x.dtype.kind == "f" or x.dtype == bf16
    payload = np.arange(x.size, dtype=np.int32).reshape(shape)
    for order in "lt", "gt":
        at = dict(dimension=dim, is_stable=True, key=0, order=order, total=floats)
        values, index = call("sort", [x, payload], [(shape, x.dtype), (shape, np.int32)], at)
        key = total_key(x) if floats else x
        if order == "gt":
            key = -key if floats else ~key if key.dtype.kind in "iu" else ~key
        perm = np.argsort(key, axis=dim, kind="stable")
        np.testing.assert_array_equal(index, np.take_along_axis(payload, perm, dim))
        want = np.take_along_axis(x, perm, dim)
        assert values.tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", ["f", "d", bf16, "e"])
def test_sort_canonical(dtype):
    x = with_specials((4, 300), dtype)
    payload = np.arange(x.size, dtype=np.int32).reshape(x.shape)
    at = dict(dimension=1, is_stable=True, key=0, order="lt", total=True, total_canonical=True)
    _, index = call("sort", [x, payload], [(x.shape, dtype), (x.shape, np.int32)], at)
    perm = np.argsort(x.astype(np.float64), axis=1, kind="stable")
    np.testing.assert_array_equal(index, np.take_along_axis(payload, perm, 1))


@pytest.mark.parametrize("dtype", ["f", "d", "e", bf16, "i", "l", "b", "H", "?"])
@pytest.mark.parametrize("shape,dim", [((3, 700), 1), ((90, 3, 5), 0), ((200000,), 0), ((3, 40), 1)])
@pytest.mark.parametrize("others", [[], ["h"], ["f", "d"]])
def test_sort_of_values(dtype, shape, dim, others):
    """Without positions among the operands; NaNs of different bits and zeros of both signs keep their order."""
    x = with_specials(shape, dtype)
    operands = [random(shape, other) for other in others]
    floats = x.dtype.kind == "f" or x.dtype == bf16
    rank = np.unique(np.where(np.isnan(wide(x)), np.inf, wide(x)) if floats else x, return_inverse=True)[1]
    rank = rank.reshape(shape) + (np.isnan(wide(x)) if floats else 0)
    for order in "lt", "gt":
        at = dict(dimension=dim, is_stable=True, key=len(others), order=order, total=True, total_canonical=True)
        found = call("sort", [*operands, x], [(shape, y.dtype) for y in (*operands, x)], at)
        perm = np.argsort(rank if order == "lt" else -rank, axis=dim, kind="stable")
        for got, given in zip(found, (*operands, x), strict=True):
            assert got.tobytes() == np.take_along_axis(given, perm, dim).tobytes()


@pytest.mark.parametrize("dtype", ["I", "L", "d"])
@pytest.mark.parametrize("length", [100_003, 300_007])
@pytest.mark.parametrize("run", [2, 20, 5000])
def test_sort_of_keys_that_differ_early(dtype, length, run):
    """Their last bits are not sorted by, but looked at: keys that have the first ones in common, few and many."""
    x = RNG.integers(0, np.iinfo("I" if dtype == "I" else "L").max, length, dtype="I" if dtype == "I" else "L")
    last = 8 if dtype == "I" else 31
    for start in (0, length // 2 - run // 2, length - run):  # in the middle the parts of two threads meet
        # A run at one place of the order: neighbours of its first key, some equal, far from each other in memory.
        at = RNG.permutation(length)[:run]
        first = np.sort(x)[min(start, length - 1)] >> np.asarray(last, x.dtype) << np.asarray(last, x.dtype)
        x[at] = first + RNG.integers(0, min(1 << last, 3 * run), run).astype(x.dtype)
    x = x & np.uint64(0x7FEFFFFFFFFFFFFF) if dtype == "d" else x
    x = x.view(dtype)
    payload = np.arange(length, dtype=np.int32)
    for order in "lt", "gt":
        at = dict(dimension=0, is_stable=True, key=0, order=order, total=dtype == "d")
        values, index = call("sort", [x, payload], [(x.shape, dtype), (x.shape, np.int32)], at)
        key = x.view("L") if dtype == "d" else x
        perm = np.argsort(key if order == "lt" else ~key, kind="stable")
        np.testing.assert_array_equal(index, perm)
        assert values.tobytes() == x[perm].tobytes()
        (values,) = call("sort", [x], [(x.shape, dtype)], at)
        assert values.tobytes() == x[perm].tobytes()


COMPARATOR = """
define void @less(ptr %p, i64 %begin, i64 %end) {
  %q1 = getelementptr ptr, ptr %p, i64 1
  %q2 = getelementptr ptr, ptr %p, i64 2
  %q3 = getelementptr ptr, ptr %p, i64 3
  %q6 = getelementptr ptr, ptr %p, i64 6
  %a0p = load ptr, ptr %p
  %b0p = load ptr, ptr %q1
  %a1p = load ptr, ptr %q2
  %b1p = load ptr, ptr %q3
  %r = load ptr, ptr %q6
  %a0 = load i32, ptr %a0p
  %b0 = load i32, ptr %b0p
  %a1 = load float, ptr %a1p
  %b1 = load float, ptr %b1p
  %lt = icmp slt i32 %a0, %b0
  %eq = icmp eq i32 %a0, %b0
  %gt1 = fcmp ogt float %a1, %b1
  %second = and i1 %eq, %gt1
  %both = or i1 %lt, %second
  %byte = zext i1 %both to i8
  store i8 %byte, ptr %r
  ret void
}
"""


def comparator_object() -> bytes:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic", jit=False)
    return machine.emit_object(llvm.parse_assembly(COMPARATOR))


@pytest.mark.parametrize("shape,dim", [((7, 300), 1), ((300, 2, 3), 0), ((150000,), 0), ((3, 2), 1)])
def test_sort_by_comparator(shape, dim):
    """i32 ascending, then f32 descending, then stable; NaNs are unordered and must only not do harm."""
    major = RNG.integers(0, 5, shape).astype(np.int32)
    minor = RNG.integers(0, 9, shape).astype(np.float32)
    payload = np.arange(major.size, dtype=np.int16).reshape(shape)
    code = {"objects": [comparator_object()], "functions": [(0, "less")]}
    at = dict(dimension=dim, is_stable=False, comparator=Fn(0))
    results = [(shape, x.dtype) for x in (major, minor, payload)]
    a, b, c = call("sort", [major, minor, payload], results, at, **code)
    perm = np.argsort(major * 100 - minor.astype(np.int64), axis=dim, kind="stable")
    for got, want in ((a, major), (b, minor), (c, payload)):
        np.testing.assert_array_equal(got, np.take_along_axis(want, perm, dim))
    minor.reshape(-1)[::3] = np.nan
    _, _, c = call("sort", [major, minor, payload], results, at, **code)
    np.testing.assert_array_equal(np.sort(c, axis=dim), np.sort(payload, axis=dim))


@pytest.mark.parametrize("dtype", ["f", "d", bf16, "i", "B"])
@pytest.mark.parametrize(
    "shape,k",
    [((3, 1000), 5), ((3, 1000), 500), ((2, 7), 7), ((2, 7), 0), ((100,), 1), ((3, 9000), 300), ((150001,), 10)]
    + [((70, 290), 16), ((70, 290), 17), ((500, 9), 3)],
)
def test_topk(dtype, shape, k):
    x = with_specials(shape, dtype)
    floats = x.dtype.kind == "f" or x.dtype == bf16
    values, index = call("topk", [x], [((*shape[:-1], k), dtype), ((*shape[:-1], k), np.int32)], {"k": k})
    perm = np.argsort(-(total_key(x) if floats else x.astype(np.int64)), axis=-1, kind="stable")[..., :k]
    np.testing.assert_array_equal(index, perm)
    assert values.tobytes() == np.take_along_axis(x, perm, -1).tobytes()


@pytest.mark.parametrize("k", [1, 5, 16, 17])
@pytest.mark.parametrize("rows", ["rising", "falling", "equal", "lowest"])
def test_topk_of_rows_in_order(rows, k):
    """Every element better than all before, none, equal ones, and those whose key is the largest there is."""
    line = np.arange(700, dtype=np.uint32)
    x = {"rising": line, "falling": line[::-1], "equal": line // 300 * 7, "lowest": line * 0}[rows]
    x = np.ascontiguousarray(np.tile(x, (3, 1)))
    _, index = call("topk", [x], [((3, k), np.uint32), ((3, k), np.int32)], {"k": k})
    np.testing.assert_array_equal(index, np.argsort(-x.astype(np.int64), axis=-1, kind="stable")[:, :k])


# --- fft --------------------------------------------------------------------------------------------------------
FFT_LENGTHS = [
    *range(1, 18),
    20,
    24,
    28,
    30,
    31,
    32,
    36,
    37,
    48,
    49,
    56,
    60,
    64,
    96,
    100,
    101,
    112,
    125,
    128,
    180,
    196,
    240,
    243,
    250,
    256,
]
FFT_LENGTHS += [308, 320, 343, 500, 512, 625, 720, 1000, 1001, 1024, 1250, 2018, 4096]


@pytest.mark.parametrize("length", FFT_LENGTHS)
@pytest.mark.parametrize("single", [False, True])
def test_fft(length, single):
    for batch in (1, 3, 21):
        c, r = (np.complex64, np.float32) if single else (np.complex128, np.float64)
        tolerance = (3e-6 if single else 4e-15) * length**0.5 * 4
        x = random((batch, length), c)
        for kind, reference in (("FFT", np.fft.fft), ("IFFT", np.fft.ifft)):
            got = call("fft", [x], [(x.shape, c)], dict(type=kind, length=(length,)))[0]
            want = reference(wide(x))
            assert np.abs(got - want).max() <= tolerance * max(1, np.abs(want).max())
        x = random((batch, length), r)
        half = length // 2 + 1
        got = call("fft", [x], [((batch, half), c)], dict(type="RFFT", length=(length,)))[0]
        want = np.fft.rfft(wide(x))
        assert np.abs(got - want).max() <= tolerance * max(1, np.abs(want).max())
        y = random((batch, half), c)
        got = call("fft", [y], [((batch, length), r)], dict(type="IRFFT", length=(length,)))[0]
        want = np.fft.irfft(wide(y), length)
        assert np.abs(got - want).max() <= tolerance * max(1, np.abs(want).max())


@pytest.mark.parametrize("isa", LESSER_SETS)
def test_fft_in_each_instruction_set(isa):
    under(isa, "import test_calls as t; [t.test_fft(n, single) for n in t.FFT_LENGTHS for single in (False, True)]")


@pytest.mark.parametrize("length", [1001, 808, 291, 2032, 157, 163, 326, 995, 251, 4072, 27221])
@pytest.mark.parametrize("single", [False, True])
def test_fft_of_prime_factors(length, single):
    """Stages of odd radices, with few points beside each other and with many, and convolutions, alone and as stages."""
    c, r = (np.complex64, np.float32) if single else (np.complex128, np.float64)
    tolerance = 5e-7 if single else 1e-15

    def close(got, want):
        size = np.sqrt(np.mean(np.abs(want) ** 2))
        assert np.sqrt(np.mean(np.abs(got - want) ** 2)) <= tolerance * size
        assert np.abs(got - want).max() <= 8 * tolerance * size

    for batch in (1, 5, 37):
        x = random((batch, length), c)
        for kind, reference in (("FFT", np.fft.fft), ("IFFT", np.fft.ifft)):
            close(call("fft", [x], [(x.shape, c)], dict(type=kind, length=(length,)))[0], reference(wide(x)))
        x = random((batch, length), r)
        half = ((batch, length // 2 + 1), c)
        y = call("fft", [x], [half], dict(type="RFFT", length=(length,)))[0]
        close(y, np.fft.rfft(wide(x)))
        close(call("fft", [y], [(x.shape, r)], dict(type="IRFFT", length=(length,)))[0], wide(x))


@pytest.mark.parametrize("lengths", [(157, 7), (163, 101), (9, 1009), (331, 40)])
def test_fft_dimensions_of_prime_factors(lengths):
    test_fft_dimensions(lengths, 3)


@pytest.mark.parametrize("length", [1 << 14, 16000, 49152, 1 << 18, 200_000, 1 << 20])
@pytest.mark.parametrize("single", [False, True])
def test_fft_of_long_signals(length, single):
    """As rows and columns: one alone, and from 2 ** 20 points on each of several."""
    c, r = (np.complex64, np.float32) if single else (np.complex128, np.float64)
    tolerance = 1e-6 if single else 1e-15
    for batch in (1, 3):
        x = random((batch, length), c)
        for kind, reference in (("FFT", np.fft.fft), ("IFFT", np.fft.ifft)):
            got = call("fft", [x], [(x.shape, c)], dict(type=kind, length=(length,)))[0]
            want = reference(wide(x))
            assert np.abs(got - want).max() <= tolerance * np.abs(want).max()
        x = random((batch, 2 * length), r)
        got = call("fft", [x], [((batch, length + 1), c)], dict(type="RFFT", length=(2 * length,)))[0]
        want = np.fft.rfft(wide(x))
        assert np.abs(got - want).max() <= tolerance * np.abs(want).max()
        got = call("fft", [got], [(x.shape, r)], dict(type="IRFFT", length=(2 * length,)))[0]
        assert np.abs(got - x).max() <= tolerance * np.abs(x).max()


@pytest.mark.parametrize("lengths", [(256, 33), (480, 48), (2000, 40), (4096, 16), (1 << 15, 16), (32, 64, 24)])
@pytest.mark.parametrize("c", [np.complex64, np.complex128])
def test_fft_of_columns(lengths, c):
    """Sixteen neighbours at a time, stage after stage and, of longer ones, part after part."""
    x = random((2, *lengths), c)
    for kind, reference in (("FFT", np.fft.fftn), ("IFFT", np.fft.ifftn)):
        got = call("fft", [x], [(x.shape, c)], dict(type=kind, length=lengths))[0]
        want = reference(wide(x), axes=tuple(range(1, x.ndim)))
        assert np.abs(got - want).max() <= (1e-6 if c == np.complex64 else 1e-15) * np.abs(want).max()


@pytest.mark.parametrize("lengths", [(4, 6), (5, 7), (3, 4, 8), (7, 1, 5), (24, 64), (200, 300)])
@pytest.mark.parametrize("signals", [1, 3, 4, 9])
def test_fft_dimensions(lengths, signals):
    """Of one signal after the other, and of several at once, each by one thread."""
    axes = tuple(range(-len(lengths), 0))
    x = random((signals, *lengths), np.complex128)
    for kind, reference in (("FFT", np.fft.fftn), ("IFFT", np.fft.ifftn)):
        got = call("fft", [x], [(x.shape, x.dtype)], dict(type=kind, length=lengths))[0]
        np.testing.assert_allclose(got, reference(x, axes=axes), atol=1e-10)
    r = random((signals, *lengths), np.float64)
    half = (signals, *lengths[:-1], lengths[-1] // 2 + 1)
    got = call("fft", [r], [(half, np.complex128)], dict(type="RFFT", length=lengths))[0]
    np.testing.assert_allclose(got, np.fft.rfftn(r, axes=axes), atol=1e-10)
    y = random(half, np.complex128)
    kept = y.copy()
    got = call("fft", [y], [(r.shape, np.float64)], dict(type="IRFFT", length=lengths))[0]
    np.testing.assert_allclose(got, np.fft.irfftn(y, lengths, axes=axes), atol=1e-10)
    np.testing.assert_array_equal(y, kept)


@pytest.mark.parametrize("length", [12, 15, 16, 21, 32, 64, 101, 128, 256])
@pytest.mark.parametrize("rows", [4, 9, 21])
def test_fft_keeps_nan_in_its_row(length, rows):
    """Rows alone, a few beside each other, and many; of odd lengths and short powers of two as well."""
    x = random((rows, length), np.float32)
    x[1, 3] = np.nan
    others = np.arange(rows) != 1
    half = (rows, length // 2 + 1)
    got = call("fft", [x], [(half, np.complex64)], dict(type="RFFT", length=(length,)))[0]
    assert np.isnan(got[1].real).all()
    np.testing.assert_allclose(got[others], np.fft.rfft(wide(x[others])), atol=3e-5)
    got = call("fft", [got], [(x.shape, np.float32)], dict(type="IRFFT", length=(length,)))[0]
    assert np.isnan(got[1]).all()
    np.testing.assert_allclose(got[others], x[others], atol=3e-5)


@pytest.mark.parametrize("length", [8, 15, 27])
@pytest.mark.parametrize("rows", [1, 9, 21])
def test_fft_to_real_ignores_the_first_imaginary_part(length, rows):
    """The spectrum of a real signal has none there; NumPy does not look at it, either."""
    y = random((rows, length // 2 + 1), np.complex64)
    want = np.fft.irfft(wide(y), length)
    y.imag[:, 0] = np.nan
    got = call("fft", [y], [((rows, length), np.float32)], dict(type="IRFFT", length=(length,)))[0]
    np.testing.assert_allclose(got, want, atol=3e-6)


# --- factorizations ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["f", "d", "F", "D"])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 16, 17, 40, 64, 65, 130, 259, 600])
@pytest.mark.parametrize("lower", [True, False])
def test_cholesky(dtype, n, lower):
    a = wide(random((3, n, n), dtype))
    a = (a @ a.conj().transpose(0, 2, 1) + n * np.eye(n)).astype(dtype)
    want = np.linalg.cholesky(wide(a))
    other = np.triu(np.full((n, n), 7), 1) if lower else np.tril(np.full((n, n), 7), -1)
    got = call("cholesky", [(a + other).astype(dtype)], [(a.shape, dtype)], dict(lower=lower))[0]
    want = want if lower else want.conj().transpose(0, 2, 1)
    close(got, want, dtype, n)


@pytest.mark.parametrize("n", [3, 50, 700])
def test_cholesky_of_an_indefinite_matrix(n):
    a = np.stack([np.eye(n), -np.eye(n), np.full((n, n), np.nan)]).astype("f")
    got = call("cholesky", [a], [(a.shape, "f")], dict(lower=True))[0]
    np.testing.assert_array_equal(got[0], np.eye(n))
    assert np.isnan(got[1:]).all()


@pytest.mark.parametrize("n", [30, 64, 300, 1100])
def test_cholesky_finds_the_pivot_that_fails(n):
    """Wherever it is; what is in the other triangle does not matter."""
    x = wide(random((n, 8), "f"))
    good = x @ x.T + n * np.eye(n)
    want = np.linalg.cholesky(good)
    for at in (0, 15, n // 2, n - 1):
        a = np.stack([good, good, good])
        a[0, at, at] = -1
        a[1, -1, min(at, n - 2)] = np.nan
        a += np.triu(np.full((n, n), np.nan), 1)
        got = call("cholesky", [a.astype("f")], [(a.shape, "f")], dict(lower=True))[0]
        assert np.isnan(got[:2]).all()
        close(got[2], want, "f", n)


@pytest.mark.parametrize("n", [48, 300, 1100])
@pytest.mark.parametrize("least", [1, 1e-3])
def test_cholesky_is_as_exact_as_lapack(n, least):
    """Over several matrices: of one, either error is twice the other by chance."""
    lapack = pytest.importorskip("scipy.linalg")
    rng, ours, theirs = np.random.default_rng(n), [], []
    for _ in range(2000 // n + 1):
        a = rng.standard_normal((n, n))
        a = (a @ a.T / n + least * np.eye(n)).astype("f")
        want = np.linalg.cholesky(wide(a))
        got = call("cholesky", [a], [(a.shape, "f")], dict(lower=True))[0]
        ours.append(np.linalg.norm(got - want) / np.linalg.norm(want))
        theirs.append(np.linalg.norm(lapack.cholesky(a, lower=True) - want) / np.linalg.norm(want))
    assert np.median(ours) <= 1.2 * np.median(theirs)


@pytest.mark.parametrize("dtype", ["f", "d", "F", "D"])
@pytest.mark.parametrize(
    "n,other",
    [(1, 3), (3, 4), (5, 0), (6, 4), (6, 8), (19, 1), (60, 35), (70, 0), (70, 1), (75, 6), (270, 65), (100, 1024)],
)
def test_triangular_solve(dtype, n, other):
    for left, lower, unit in itertools.product([True, False], repeat=3):
        for form in ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"):
            a = (random((2, n, n), dtype) * 0.3 + 3 * np.eye(n)).astype(dtype)
            if unit:
                a = (a / 10).astype(dtype)
            b = random((2, n, other) if left else (2, other, n), dtype)
            full = np.tril(wide(a)) if lower else np.triu(wide(a))
            if unit:
                full = full - full * np.eye(n) + np.eye(n)
            op = {"NO_TRANSPOSE": full, "TRANSPOSE": full.transpose(0, 2, 1)}.get(form, full.conj().transpose(0, 2, 1))
            want = (
                np.linalg.solve(op, wide(b))
                if left
                else np.linalg.solve(op.transpose(0, 2, 1), wide(b).transpose(0, 2, 1)).transpose(0, 2, 1)
            )
            at = dict(left_side=left, lower=lower, unit_diagonal=unit, transpose_a=form)
            close(call("triangular_solve", [a, b], [(b.shape, dtype)], at)[0], want, dtype, 200)


def test_few_rows_of_many_matrices_are_shared_among_threads():
    a, b = random((5000, 3, 3), "f") * 0.3 + 3 * np.eye(3, dtype="f"), random((5000, 3, 2), "f")
    at = dict(left_side=True, lower=True, unit_diagonal=False, transpose_a="NO_TRANSPOSE")
    close(call("triangular_solve", [a, b], [(b.shape, "f")], at)[0], np.linalg.solve(np.tril(wide(a)), b), "f", 200)


# --- errors -----------------------------------------------------------------------------------------------------
def test_errors_name_the_call_and_the_attribute():
    with pytest.raises(RuntimeError, match="library call gemm: attribute `batch` is missing"):
        call("gemm", [np.ones((2, 2), "f")] * 2, [((2, 2), "f")], {})
    with pytest.raises(RuntimeError, match="topk: k is larger than the last dimension"):
        call("topk", [np.ones(3, "f")], [((5,), "f"), ((5,), "i")], {"k": 5})

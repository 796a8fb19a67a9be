"""Products of integers whose results are narrower than their sums: the low bits, from every place of a row."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import jax


@pytest.mark.parametrize("columns", [1, 15, 16, 31, 32, 33, 100, 512])
@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16"])
def test_low_bits(device: jax.Device, name: str, columns: int) -> None:
    dtype, random = np.dtype(name), np.random.default_rng(columns)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = random.integers(low, high, (70, 90), dtype, endpoint=True)
    y = random.integers(low, high, (90, columns), dtype, endpoint=True)
    wanted = (x.astype(np.int64) @ y.astype(np.int64)).astype(dtype)
    np.testing.assert_array_equal(np.asarray(jax.jit(lambda x, y: x @ y)(x, y)), wanted)
    np.testing.assert_array_equal(np.asarray(jax.jit(lambda x, y: (x @ y.T).T)(y.T, x)), wanted)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kept", [False, True])
def test_low_bits_of_convolutions(device: jax.Device, kept: bool, layers: int) -> None:
    """Of one, and of one whose image is another's narrowed result; with kernels that are constants, too."""
    random = np.random.default_rng(layers)
    x = random.integers(-128, 127, (2, 9, 10, 16), np.int8, endpoint=True)
    kernels = [random.integers(-128, 127, (3, 3, 16, 16), np.int8, endpoint=True) for _ in range(layers)]

    def network(x, *kernels):
        for kernel in kernels:
            x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return x

    wanted = x.astype(np.int64)
    for kernel in kernels:
        padded = np.pad(wanted, ((0, 0), (1, 1), (1, 1), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
        wanted = np.einsum("nhwcij,ijco->nhwo", windows, kernel.astype(np.int64)).astype(np.int8).astype(np.int64)
    call = jax.jit((lambda x: network(x, *kernels)) if kept else network)
    for _ in range(3):
        np.testing.assert_array_equal(np.asarray(call(x) if kept else call(x, *kernels)), wanted)


BYTES = [("int8", "int8"), ("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8")]


@pytest.mark.parametrize("between", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
@pytest.mark.parametrize(("left", "right"), BYTES)
def test_widened_bytes(device: jax.Device, left: str, right: str, between: str) -> None:
    """Bytes that the program widens itself, by way of types in which some of them are other numbers."""
    random = np.random.default_rng(7)
    x = random.integers(np.iinfo(left).min, np.iinfo(left).max, (2, 12, 12, 32), left, endpoint=True)
    k = random.integers(np.iinfo(right).min, np.iinfo(right).max, (3, 3, 32, 48), right, endpoint=True)

    def wide(v):
        return v.astype(between).astype(np.int32)

    def both(x, k):
        numbers = ("NHWC", "HWIO", "NHWC")
        convolved = jax.lax.conv_general_dilated(wide(x), wide(k), (1, 1), "VALID", dimension_numbers=numbers)
        return wide(x).reshape(288, 32) @ wide(k).reshape(9 * 48, 32).T, convolved

    a, b = (wide(v).astype(np.int64) for v in (x, k))
    windows = np.lib.stride_tricks.sliding_window_view(a, (3, 3), (1, 2))
    product, convolved = jax.jit(both)(x, k)
    np.testing.assert_array_equal(np.asarray(product), (a.reshape(288, 32) @ b.reshape(9 * 48, 32).T).astype(np.int32))
    np.testing.assert_array_equal(np.asarray(convolved), np.einsum("nhwcij,ijco->nhwo", windows, b).astype(np.int32))


@pytest.mark.parametrize(
    "shape", [(1, 90, 1, 70), (300, 4, 4, 4), (1, 500, 3, 5), (20, 9, 17, 6), (1, 16, 16, 16)], ids=str
)
@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16"])
def test_small(device: jax.Device, name: str, shape: tuple[int, ...]) -> None:
    """A batch, rows, terms and columns of products that kernels are generated for."""
    dtype, random, (batch, m, k, n) = np.dtype(name), np.random.default_rng(3), shape
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = random.integers(low, high, (batch, m, k), dtype, endpoint=True)
    y = random.integers(low, high, (batch, k, n), dtype, endpoint=True)
    wanted = x.astype(np.int64) @ y.astype(np.int64)
    np.testing.assert_array_equal(np.asarray(jax.jit(lambda x, y: x @ y)(x, y)), wanted.astype(dtype))
    more = np.asarray(jax.jit(lambda x, y: (x @ y) * 3 + x[:, :, :1])(x, y))
    np.testing.assert_array_equal(more, (wanted * 3 + x[:, :, :1]).astype(dtype))


FLOATS = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e3m4", "float16"]


@pytest.mark.parametrize("result", ["same", "float32", "float64"])
@pytest.mark.parametrize("name", FLOATS)
def test_narrow_floats(device: jax.Device, name: str, result: str) -> None:
    """Sums that f32 has exactly are rounded once; what is not a number stays so."""
    if result == "float64" and not jax.config.jax_enable_x64:
        result = "float32"
    dtype, random = np.dtype(getattr(ml_dtypes, name, name)), np.random.default_rng(11)
    kind = dtype if result == "same" else np.dtype(result)
    x = (random.integers(-6, 7, (1, 9, 9, 24)) / 4).astype(dtype)
    k = (random.integers(-6, 7, (3, 3, 24, 40)) / 4).astype(dtype)
    x[0, 4, 4, 3] = np.nan

    def both(x, k):
        numbers = ("NHWC", "HWIO", "NHWC")
        convolved = jax.lax.conv_general_dilated(
            x, k, (1, 1), "VALID", dimension_numbers=numbers, preferred_element_type=kind
        )
        return jax.lax.dot(x.reshape(81, 24), k[0, 0], preferred_element_type=kind), convolved

    a, b = x.astype(np.float64), k.astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(a, (3, 3), (1, 2))
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = [(a.reshape(81, 24) @ b[0, 0]).astype(kind), np.einsum("nhwcij,ijco->nhwo", windows, b).astype(kind)]
    for got, want in zip(jax.jit(both)(x, k), wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(got).astype(np.float64), want.astype(np.float64))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_gradients_of_strided_depthwise_convolutions(device: jax.Device, rank: int) -> None:
    """Sums that f32 has exactly are rounded once, also where oneDNN knows them for f32 only."""
    random, image = np.random.default_rng(4), "DHW"[3 - rank :]
    numbers, steps = ("N" + image + "C", image + "IO", "N" + image + "C"), (2,) * rank
    x = (random.integers(-6, 7, (2, *(9,) * rank, 24)) / 4).astype(ml_dtypes.bfloat16)
    k = (random.integers(-6, 7, (*(3,) * rank, 1, 24)) / 4).astype(ml_dtypes.bfloat16)

    def gradients(x, k):
        def convolved(x, k):
            return jax.lax.conv_general_dilated(x, k, steps, "SAME", dimension_numbers=numbers, feature_group_count=24)

        y, back = jax.vjp(convolved, x, k)
        return back(jax.numpy.ones_like(y))

    exact = gradients(x.astype(np.float32), k.astype(np.float32))
    for got, want in zip(jax.jit(gradients)(x, k), exact, strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want).astype(ml_dtypes.bfloat16))

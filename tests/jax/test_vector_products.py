"""A vector times a large matrix, which is read row by row, in parts that are added up at the end."""

from __future__ import annotations

import denormals
import numpy as np
import pytest

import jax

# k, n: odd ones, several pieces of columns, fewer rows than are read at once, parts of unequal size.
SIZES = [(513, 1031), (4097, 300), (70, 9001), (5, 70001), (2048, 1), (3000, 131)]


def filled(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.fixture(autouse=True)
def on_ferrule():
    with jax.default_device(jax.devices("ferrule")[0]), jax.enable_x64(True):
        yield


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("size", SIZES)
def test_rows_and_columns(size, dtype):
    k, n = size
    scale = 100 if dtype == "int32" else 1
    x, w = (filled(k) * scale).astype(dtype), (filled(k, n, seed=1) * scale).astype(dtype)
    want = x.astype(np.float64) @ w.astype(np.float64)
    close = {"float32": 2e-6 * k**0.5, "float64": 1e-13 * k**0.5, "int32": 0}[dtype]
    size_of_terms = np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64)
    row = np.array(jax.jit(lambda x, w: x[None] @ w)(x, w))
    column = np.array(jax.jit(lambda x, w: w.T @ x[:, None])(x, w))
    turned = np.array(jax.jit(lambda x, w: jax.lax.dot_general(w, x, (((0,), (0,)), ((), ()))))(x, w))
    for result in (row[0], column[:, 0], turned):
        assert result.dtype == dtype
        assert (np.abs(result - want) <= close * size_of_terms).all()


def test_what_is_no_number_stays_in_its_column():
    x, w = filled(1, 1000), filled(1000, 700, seed=1)
    x[0, 3] = 0
    w[3, 0], w[5, 1], w[6, 2], w[7, 2], w[999, 699] = np.inf, np.inf, np.inf, -np.inf, np.nan
    x[0, 5:8] = 1
    result = np.array(jax.jit(lambda x, w: x @ w)(x, w))[0]
    assert np.isnan(result[[0, 2, 699]]).all() and result[1] == np.inf
    assert np.isfinite(np.delete(result, [0, 1, 2, 699])).all()


def test_what_follows_sees_whole_sums():
    x, w, b = filled(1, 1500), filled(1500, 1111, seed=1), filled(1111, seed=2)
    result = jax.jit(lambda x, w, b: jax.nn.relu(x @ w + b) * 2)(x, w, b)
    want = 2 * np.maximum(x.astype(np.float64) @ w.astype(np.float64) + b, 0)
    np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-4)
    result = jax.jit(lambda x, w, b: jax.nn.relu(w.T @ x.T + b[:, None]) * 2)(x, w, b)
    np.testing.assert_allclose(result, want.T, rtol=1e-4, atol=1e-4)


def test_denormal_sums():
    denormals.need(jax.devices("ferrule")[0])
    w = np.full((600, 600), 1e-40, np.float32)
    result = np.array(jax.jit(lambda x, w: x @ w)(np.ones((1, 600), np.float32), w))
    np.testing.assert_allclose(result, 6e-38, rtol=1e-3)

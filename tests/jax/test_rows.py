"""Softmax, layer norm and their like, one kernel over rows each: odd sizes, narrow types, NaN, memory shared."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

import jax

SHAPES = [(9, 32), (40, 37), (3, 5, 64), (33, 1, 129), (17, 1000), (2, 70), (1, 300), (260, 4099)]


def softmax(x):
    return jax.nn.softmax(x, axis=-1)


def layer_norm(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def rms_norm(x):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * 1.5 + 0.25


def log_softmax(x):
    return jax.nn.log_softmax(x, axis=-1)


def with_residual(x):
    """The result may lie in the memory of an operand that is read at its own element only."""
    return jax.nn.softmax(x * 2, axis=-1) + x[::-1]


def costly(x):
    """What the reduction sums up costs more than a trip through memory."""
    y = jnp.tanh(jnp.sin(x) * jnp.exp(-x * x))
    return y / (1 + jnp.abs(y).sum(-1, keepdims=True))


def two_results(x):
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True), e * 2


def softmax_gradient(x):
    """The exponentials are read again by a reduction, too, after they were kept."""
    return jax.grad(lambda y: (jax.nn.softmax(y, axis=-1) * jnp.cos(x)).sum())(x)


def rotated(x):
    """Exponentials kept in the result would be read where they are overwritten already."""
    y, half = jax.nn.softmax(x, axis=-1), x.shape[-1] // 2
    return y + jnp.concatenate([-y[..., half:], y[..., :half]], -1) * 0.5


def flipped(x):
    y = jnp.exp(x - x.max(-1, keepdims=True))
    return jnp.where(y[..., ::-1] > 0.5, y, 0) / y.sum(-1, keepdims=True)


FUNCTIONS = [softmax, softmax_gradient, layer_norm, rms_norm, log_softmax, with_residual, costly, two_results]
FUNCTIONS += [rotated, flipped]


def agree(function, x: np.ndarray, tolerance: float) -> None:
    got = jax.tree.leaves(jax.jit(function)(x))
    with jax.default_device(jax.devices("cpu")[0]), jax.enable_x64(True):
        want = jax.tree.leaves(function(jnp.asarray(np.asarray(x, np.float64))))
    for g, w in zip(got, want, strict=True):
        assert g.dtype == x.dtype
        np.testing.assert_allclose(np.asarray(g, np.float64), w, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows(device: jax.Device, shape: tuple[int, ...], function) -> None:
    agree(function, np.random.RandomState(sum(shape)).uniform(-3, 3, shape).astype(np.float32), 3e-5)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow(device: jax.Device, dtype: str, function) -> None:
    x = np.random.RandomState(1).uniform(-2, 2, (19, 200)).astype(jnp.dtype(dtype))
    agree(function, x, 0.06 if dtype == "bfloat16" else 0.01)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_nan_and_infinity_stay_in_their_row(device: jax.Device, dtype: str) -> None:
    x = np.random.RandomState(2).uniform(-2, 2, (40, 150)).astype(jnp.dtype(dtype))
    x[3, 7], x[5, 149], x[8, 0] = np.nan, np.inf, -np.inf
    got = np.asarray(jax.jit(softmax)(x)).astype(np.float32)
    assert np.isnan(got[[3, 5]]).all() and got[8, 0] == 0
    assert np.isfinite(np.delete(got, [3, 5], 0)).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("function", [softmax, layer_norm, with_residual], ids=lambda f: f.__name__)
def test_donated(device: jax.Device, dtype: str, function) -> None:
    """The result lies in the operand's memory, or a copy is made: right either way."""
    x = np.random.RandomState(3).uniform(-2, 2, (64, 300)).astype(jnp.dtype(dtype))
    want = np.asarray(jax.jit(function)(x))
    got = jax.jit(function, donate_argnums=0)(jnp.array(x))
    np.testing.assert_array_equal(np.asarray(got), want)


def test_gradients(device: jax.Device) -> None:
    x = np.random.RandomState(4).uniform(-2, 2, (50, 260)).astype(np.float32)
    for function in (softmax, layer_norm, log_softmax):
        weighted = partial(lambda f, x: (f(x) * jnp.cos(jnp.arange(260.0))).sum(), function)
        agree(jax.grad(weighted), x, 2e-4)

"""Few rows times a large matrix of weights that are stored narrower than they are multiplied: read as stored."""

from __future__ import annotations

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jax

BF16 = ml_dtypes.bfloat16
K, N = 515, 1030


def weights(dtype: object, *shape: int) -> np.ndarray:
    values = np.random.default_rng(1).standard_normal(shape) * (40 if np.dtype(dtype).kind in "iu" else 1)
    return values.clip(0 if dtype == np.uint8 else -128, 127).astype(dtype)


def rows(dtype: object, *shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


@pytest.fixture(autouse=True)
def on_ferrule():
    with jax.default_device(jax.devices("ferrule")[0]):
        yield


def check(f, x: np.ndarray, w: np.ndarray, want, depth: int = K) -> None:
    result = jax.jit(f)(x, w)
    assert result.dtype == x.dtype
    near = 3e-6 if x.dtype == np.float32 else 1e-2
    size = np.abs(want(np.abs(x.astype(np.float64)), np.abs(w.astype(np.float64))))
    error = np.abs(np.asarray(result).astype(np.float64) - want(x.astype(np.float64), w.astype(np.float64)))
    assert (error <= near * size + 1e-6).all()


@pytest.mark.parametrize("count", [1, 3, 8, 9])
@pytest.mark.parametrize(
    "x_type, w_type", [(np.float32, BF16), (np.float32, np.int8), (BF16, np.int8), (BF16, np.uint8), (np.float32, "f2")]
)
def test_weights(count, x_type, w_type):
    x, w = rows(x_type, count, K), weights(w_type, K, N)
    check(lambda x, w: x @ w.astype(x.dtype), x, w, lambda x, w: x @ w)
    check(lambda x, w: x @ w.astype(x.dtype).T, x, weights(w_type, N, K), lambda x, w: x @ w.T)
    check(lambda x, w: x @ w.T.astype(x.dtype), x, weights(w_type, N, K), lambda x, w: x @ w.T)
    check(lambda x, w: w.T.astype(x.dtype) @ x.T, x, w, lambda x, w: w.T @ x.T)
    check(lambda x, w: jax.nn.relu(x @ w.astype(x.dtype) + 1), x, w, lambda x, w: np.maximum(x @ w + 1, 0))


def test_batches_and_several_dimensions():
    x, w = rows(np.float32, 3, 2, 200), weights(BF16, 3, 200, 900)
    check(lambda x, w: x @ w.astype(x.dtype), x, w, lambda x, w: x @ w)
    x, w = rows(np.float32, 2, 3, 20, 30), weights(np.int8, 20, 30, 900)

    def contracted(x, w):
        return jnp.tensordot(x, w.astype(x.dtype), ((2, 3), (0, 1)))

    check(contracted, x, w, lambda x, w: np.tensordot(x, w, ((2, 3), (0, 1))))


def test_roundings_stay():
    """A conversion that rounds is not left out, nor one to a type that rounds the sums."""
    x, w = rows(np.float32, 1, K), rows(np.float32, K, N)
    result = jax.jit(lambda x, w: x @ w.astype(jnp.bfloat16).astype(x.dtype))(x, w)
    want = x.astype(np.float64) @ w.astype(BF16).astype(np.float64)
    np.testing.assert_allclose(result, want, atol=1e-4)
    one = jax.jit(lambda x, w: x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16))(x, w)
    want = x.astype(BF16).astype(np.float64) @ w.astype(BF16).astype(np.float64)
    np.testing.assert_allclose(np.asarray(one).astype(np.float64), want, rtol=1e-2, atol=1e-2)


def test_in_a_loop():
    x, w = rows(np.float32, 2, 600), weights(BF16, 600, 600)

    def steps(x, w):
        return jax.lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x @ w.astype(x.dtype) / 30), x)

    want = x.astype(np.float64)
    for _ in range(3):
        want = np.tanh(want @ w.astype(np.float64) / 30)
    np.testing.assert_allclose(jax.jit(steps)(x, w), want, atol=1e-5)


def test_the_weights_are_not_written_out():
    """The temporary memory has no room for the converted matrix."""
    compiled = jax.jit(lambda x, w: x @ w.astype(x.dtype)).lower(rows(np.float32, 1, K), weights(BF16, K, N)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < K * N


@pytest.mark.parametrize("isa", ["", "avx2", "baseline"])
def test_some_rows(python, isa):
    """Converted while they are packed, by each of the instruction sets; transposed, and converted in a loop."""
    program = """
import jax, jax.numpy as jnp, ml_dtypes, numpy as np
x = np.random.default_rng(0).normal(size=(30, 1027)).astype(np.float32)
with jax.default_device(jax.devices("ferrule")[0]):
    for dtype in (ml_dtypes.bfloat16, np.int8, np.uint8):
        w = np.random.default_rng(1).uniform(0, 100, (1027, 1030)).astype(dtype)
        wide = w.astype(np.float64)
        def step(h, w):
            return jax.lax.fori_loop(0, 2, lambda i, h: (h @ w.astype(h.dtype))[:, :1027] / 1e4, h)
        for f, g in (
            (lambda x, w: x @ w.astype(x.dtype), lambda x, w: x @ w),
            (lambda x, w: jnp.tanh((w.T.astype(x.dtype) @ x.T).T / 1e3), lambda x, w: np.tanh(x @ w / 1e3)),
            (step, lambda x, w: (x @ w[:, :1027]) @ w[:, :1027] / 1e8),
        ):
            got, want = np.asarray(jax.jit(f)(x, w)), g(x.astype(np.float64), wide)
            assert abs(got - want).max() < 1e-5 * abs(want).max(), (dtype, abs(got - want).max())
"""
    done = python(program, **({"FERRULE_ISA": isa} if isa else {}))
    assert done.returncode == 0, done.stderr[-2000:]

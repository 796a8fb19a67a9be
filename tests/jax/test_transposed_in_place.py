"""Sums of a transposed array and one in whose memory the result lies: no element may be computed twice."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jax

SHAPES = [
    ((70, 37), (1, 0)),
    ((64, 33), (1, 0)),
    ((3, 22, 16, 2, 64), (2, 3, 4, 1, 0)),
    ((9, 32, 14, 33), (3, 1, 0, 2)),
    ((14, 6, 24, 6, 5), (0, 4, 2, 1, 3)),
    ((12, 14, 16, 7), (2, 1, 0, 3)),
]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("shape", "order"), SHAPES)
def test_sum_in_place(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    def add(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.transpose(x, order) + y

    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    y = np.full([shape[d] for d in order], 0.5, np.float32)
    ours = jax.device_put(y) + 0
    place = ours.unsafe_buffer_pointer()
    got = jax.jit(add, donate_argnums=1)(x, ours)
    assert got.unsafe_buffer_pointer() == place
    np.testing.assert_array_equal(got, x.transpose(order) + y)


@pytest.mark.usefixtures("device")
def test_a_smaller_array_crosses() -> None:
    """It is spread over the result, which lies in the memory of the other operand."""

    def add(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.broadcast_to(x.T, (3, 37, 70)) + y

    x, y = np.arange(70 * 37, dtype=np.float32).reshape(70, 37), np.full((3, 37, 70), 0.5, np.float32)
    got = jax.jit(add, donate_argnums=1)(x, jax.device_put(y) + 0)
    np.testing.assert_array_equal(got, x.T + y)


@pytest.mark.usefixtures("device")
def test_temporaries_in_place() -> None:
    """Where the compiler itself puts the result into an operand's memory."""
    x = np.arange(70 * 37, dtype=np.float32).reshape(70, 37)
    got = jax.jit(lambda x, w: jnp.sin(jnp.cos(x @ w) @ jnp.ones((37, 37))).T + (w @ x.T) * 2)(x, np.eye(37, dtype="f"))
    want = np.sin(np.cos(x) @ np.ones((37, 37), "f")).T + x.T * 2
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)

"""A few elements and rows that are picked of joined and padded arrays, which are not written (passes/expand.py)."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest

import jax

JOINED: dict[str, Callable] = {
    "rows more": lambda xp, x: xp.concatenate([x[:3] - 1, x, x[:1] * 0]),
    "padded": lambda xp, x: xp.pad(x, ((2, 1), (1, 3)), constant_values=7),
    "columns": lambda xp, x: xp.concatenate([x, x * 2, x[:, :5]], 1),
    "of joined": lambda xp, x: xp.concatenate([xp.pad(x, ((1, 0), (0, 0))), x + 1]),
}
PLACES = np.array([0, 1, 2, 3, 499, 500, 501, 502, 250, 2, -1, 503])


@pytest.mark.parametrize("name", JOINED)
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.float16])
def test_rows(name: str, dtype: type) -> None:
    x = (np.random.default_rng(0).integers(-9, 9, (501, 37))).astype(dtype)
    want = JOINED[name](np, x).astype(dtype)
    places = PLACES % len(want)
    got = jax.jit(lambda x, i: JOINED[name](jnp, x)[i])(x, places)
    np.testing.assert_array_equal(got, want[places])
    got = jax.jit(lambda x, i, j: JOINED[name](jnp, x)[i, j])(x, places, places % want.shape[1])
    np.testing.assert_array_equal(got, want[places, places % want.shape[1]])
    for at in (0, 1, 490, len(want) - 10):
        part = jax.jit(lambda x, i: jax.lax.dynamic_slice(JOINED[name](jnp, x), (i, 1), (10, 36)))(x, at)
        np.testing.assert_array_equal(part, want[at : at + 10, 1:37])


def test_outside() -> None:
    x = np.random.default_rng(1).standard_normal((400, 8), np.float32)
    places = np.array([0, 400, 401, 5000, 399])
    got = jax.jit(lambda x, i: jnp.pad(x, ((0, 1), (0, 0))).at[i].get(mode="fill", fill_value=-3))(x, places)
    want = np.concatenate([x, np.zeros((1, 8), np.float32), np.full((4600, 8), -3, np.float32)])[places]
    np.testing.assert_array_equal(got, want)


def test_in_a_loop() -> None:
    """What is joined changes from one step to the next."""
    x = np.random.default_rng(2).standard_normal((300, 16), np.float32)

    def step(state: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
        joined = jnp.concatenate([state, state[:1] * 0 - 1])
        return state * 0.5, joined[jnp.stack([i, 300 - i, 300])]

    got = jax.jit(lambda x: jax.lax.scan(step, x, jnp.arange(9))[1])(x)
    for i in range(9):
        state = np.concatenate([x * np.float32(0.5) ** i, np.full((1, 16), -1, np.float32)])
        np.testing.assert_allclose(got[i], state[[i, 300 - i, 300]], rtol=1e-6)

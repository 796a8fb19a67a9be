"""Products of few terms on a device, where they are part of the kernels around them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from test_small_dots import agree, numbers

import jax
from jax import lax


@pytest.mark.parametrize("shape", [(1023, 3, 3), (1024, 4, 4), (5000, 2, 8), (8, 3001, 8), (2, 700, 2), (1500, 1, 5)])
def test_orders(device: jax.Device, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    agree(lambda x, y: (x @ y, (x @ y).T, jnp.tanh(x @ y)), numbers(m, k), numbers(k, n))
    agree(lambda x, y: (x.T @ y.T, (x.T @ y.T).sum(0)), numbers(k, m), numbers(n, k))
    agree(lambda x, y: jnp.exp(0.1 * x) @ jnp.cos(y), numbers(m, k), numbers(k, n))


@pytest.mark.parametrize("axis", [0, 3, 9, 10])
def test_gates(device: jax.Device, axis: int) -> None:
    """One qubit's gate on each axis of a state, and two qubits' on two."""

    def function(g, h, s):
        one = jnp.moveaxis(jnp.tensordot(g, s, ((1,), (axis,))), 0, axis)
        axes = (axis, (axis + 4) % 11)
        two = jnp.moveaxis(jnp.tensordot(h, one, ((2, 3), axes)), (0, 1), axes)
        return one, two, jnp.moveaxis(jnp.tensordot(g, two, ((1,), (axis,))), 0, axis).at[..., 1, 1].multiply(-1)

    agree(function, numbers(2, 2), numbers(2, 2, 2, 2), numbers(*(2,) * 11))


def test_complex(device: jax.Device) -> None:
    g, s = (numbers(2, *d) + 1j * numbers(2, *d, seed=1) for d in ((2,), (1500,)))
    want = g @ s
    got = jax.jit(lambda g, s: (g @ s, (s.T @ g.T).T))(g.astype(np.complex64), s.astype(np.complex64))
    for found in got:
        np.testing.assert_allclose(np.asarray(found), want, rtol=1e-5, atol=1e-5)


def test_loops_and_gradients(device: jax.Device) -> None:
    def turned(r, x):
        def step(c, s):
            y = jnp.tanh(c @ r) + s * jnp.einsum("ij,nj->ni", r, x)
            return y, y.sum(0)

        return lax.scan(step, x, numbers(7).astype(x.dtype))

    agree(turned, numbers(3, 3) * 0.3, numbers(900, 3))
    agree(jax.grad(lambda r, x: (turned(r, x)[0] ** 2).sum(), (0, 1)), numbers(3, 3) * 0.3, numbers(900, 3))


def test_stages_of_batches(device: jax.Device) -> None:
    """Weighted sums of stages, as Runge-Kutta methods form them for a batch of initial values."""

    def function(w, k):
        return lax.fori_loop(0, 6, lambda i, k: k.at[:, i].set(jnp.tanh(jnp.einsum("s,bsd->bd", w[i], k))), k)

    agree(function, numbers(7, 7), numbers(64, 7, 2))


def test_updates_of_states(device: jax.Device) -> None:
    """Windows of many short dimensions, in the memory of the target and beside it."""

    def function(s):
        turned = jnp.moveaxis(s, (4, 7), (0, 1)).at[1, 1].multiply(-1)
        again = jnp.moveaxis(turned, (0, 1), (4, 7)).at[:, 1].add(s[:, 0])
        return again, again.at[..., 0, :].set(s[..., 1, :]), s + 1

    agree(function, numbers(*(2,) * 10))
    agree(lambda s: lax.fori_loop(0, 9, lambda i, s: s.at[i % 2, 1].multiply(-0.5), s), numbers(*(2,) * 9))

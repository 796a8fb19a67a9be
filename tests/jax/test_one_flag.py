"""Selections by one flag for all elements: whichever side it is, the result is that side's, also in place, in loops."""

import jax.numpy as jnp
import numpy as np
import pytest

import jax
from jax import lax


def skipped(p, x, y):
    return jnp.where(p, x * y + 1, x)


def read(p, x, y):
    return jnp.where(p, x, y)


def masked(p, x, y):
    return jnp.where(p & (x > y) & (x < 2 * y), x + y, y)


def flags(p, x, y):
    return jnp.where(p & (x > y), x == y, x < y)


def shared(p, x, y):
    """A side that another result is made of, and one that both sides are."""
    z = x * y - x
    return jnp.where(p, z, x), z + 1, jnp.where(p, (x + y) * 2, (x + y) * 3)


def nested(p, x, y):
    q = x.sum() > 0
    return jnp.where(p, jnp.where(q, x + 1, y), jnp.where(q, y * 2, x))


def summed(p, x, y):
    return jnp.where(p, x * y, x).sum(0), jnp.where(p, x + x.max(1, keepdims=True), y)


def moved(p, x, y):
    return jnp.where(p, x.T[::-1] * 2, y.T), jnp.where(p, x[:, :1] + y, 0)


def steps(p, x, y):
    """The flag is another in each step."""
    return lax.fori_loop(0, 5, lambda i, c: jnp.where(p ^ (i % 2 == 0), c + y, c), x)


def kept_if_finite(p, x, y):
    """Two states that are both kept as they were: in place where they are donated."""
    new = x - y
    ok = jnp.isfinite(new).all() & p
    return jnp.where(ok, new, x), jnp.where(ok, y * 2, y)


@pytest.mark.filterwarnings("ignore:Some donated buffers")
@pytest.mark.parametrize("device", ["cpu"], indirect=True)  # kernels of devices compute both sides
@pytest.mark.parametrize("donate", [False, True], ids=["kept", "donated"])
@pytest.mark.parametrize("shape", [(3, 5), (67, 129)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "uint8"])
@pytest.mark.parametrize(
    "function",
    [skipped, read, masked, flags, shared, nested, summed, moved, steps, kept_if_finite],
    ids=lambda f: f.__name__,
)
def test_either_side(device, function, dtype, shape, donate) -> None:
    if dtype == "complex64" and function in (masked, flags, nested, summed):
        pytest.skip("complex numbers have no order")
    rng = np.random.default_rng(3)
    x, y = (jnp.asarray(rng.integers(1, 9, shape), dtype) for _ in range(2))
    if dtype == "complex64":
        x, y = x + 1j * y, y - 2j * x
    for p in (True, False):
        a, b = jnp.array(x), jnp.array(y)
        found = jax.jit(function, donate_argnums=(1, 2) if donate else ())(p, a, b)
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            expected = jax.jit(function)(p, np.asarray(x), np.asarray(y))
        for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert got.devices() == {device} and want.devices() != {device}
            np.testing.assert_array_equal(np.asarray(got), np.asarray(want))

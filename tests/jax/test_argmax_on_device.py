"""argmax and argmin of large arrays, in parts and along rows, with counters of 32 and 64 bits."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jax
from jax import lax


@pytest.mark.parametrize("counter", [jnp.int32, jnp.int64])
@pytest.mark.parametrize(("shape", "axis"), [((200_000,), 0), ((2, 131_072), 1), ((300, 20_000), 0), ((500, 700), 1)])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_argmax(device, name, shape, axis, counter):
    random = np.random.default_rng(0)
    x = random.integers(-9, 10, shape).astype(np.float32)
    y = x.copy()
    y.reshape(-1)[random.integers(0, x.size, 9)] = np.nan
    with jax.enable_x64(True):
        call = jax.jit(lambda x: getattr(lax, name)(x, axis, counter))
        for values in (x, y, np.full_like(x, np.inf), np.full_like(x, -np.inf), x.astype(np.int32), x.astype(np.int8)):
            got = call(jax.device_put(values, device))
            assert got.dtype == counter
            np.testing.assert_array_equal(got, getattr(np, name)(values, axis))

"""jnp.pad beside np.pad: each mode joins what lies beyond an edge, dimension by dimension."""

from __future__ import annotations

from math import prod

import jax.numpy as jnp
import numpy as np
import pytest

import jax


@pytest.mark.parametrize("mode", ["reflect", "symmetric", "wrap", "edge", "linear_ramp"])
@pytest.mark.parametrize("shape", [(7, 1000), (2, 45, 50, 3), (5003,)])
def test_paddings_of_numpy(device: jax.Device, mode: str, shape: tuple[int, ...]) -> None:
    x = np.arange(prod(shape), dtype=np.float32).reshape(shape)
    width = [(2, 3) if n > 3 else (0, 0) for n in shape]
    got = jax.jit(lambda x: jnp.pad(x, width, mode=mode))(jax.device_put(x, device))
    np.testing.assert_allclose(got, np.pad(x, width, mode=mode), rtol=1e-6)

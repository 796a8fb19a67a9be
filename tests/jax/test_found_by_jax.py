"""What JAX's own tests found: one test for each cause."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import jax


def test_rounding_of_short_bf16_code(device: jax.Device) -> None:
    """LLVM's quick instruction selector aborted the process on the mask of the rounding's bits."""

    def f(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        wide = jax.lax.reduce_precision(x.astype(jnp.float32), 8, 7)
        return wide.astype(jnp.bfloat16), wide

    x = jnp.asarray([1.5, -2.25, np.nan, np.inf], jnp.bfloat16)
    narrow, wide = jax.jit(f)(x)
    np.testing.assert_array_equal(narrow.astype(jnp.float32), x.astype(jnp.float32))
    np.testing.assert_array_equal(wide, x.astype(jnp.float32))

"""Rows of the dimension before the innermost that are written out one after the other (codegen/loop.py)."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jax
from ferrule.codegen.loop import AT_ONCE, rows_at_once


def test_as_many_as_divide_the_dimension():
    assert rows_at_once((800, 2, 6), 8, 0.0) == 2
    assert rows_at_once((800, 112, 8), 8, 0.0) == AT_ONCE
    assert rows_at_once((800, 7, 8), 8, 0.0) == 7
    assert rows_at_once((800, 112, 12), 8, 0.0) == AT_ONCE // 2  # of two vectors each
    assert rows_at_once((800, 11, 8), 8, 0.0) == 1
    assert rows_at_once((800, 112, 8), 8, 20.0) == 2  # more work is more code
    assert rows_at_once((4, 112, 8), 8, 0.0) == 1  # too few are left for threads to share
    assert rows_at_once((800, 8), 8, 0.0) == 1
    assert rows_at_once((800, 4, 100), 8, 0.0) == 1


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("rows", [2, 3, 7, 12, 16])
@pytest.mark.parametrize("count", [2, 5, 6, 8, 12, 31])
def test_moved_rows(dtype, rows, count):
    """Rows of blocks that change places, and of which something is computed."""
    x = np.arange(40 * 30 * rows * count).reshape(40, 30, rows, count)
    x = (x % 101).astype(dtype)
    y = np.moveaxis(x, 1, 2).copy()
    with jax.enable_x64(True), jax.default_device(jax.devices("ferrule")[0]):
        moved = jax.jit(lambda x: x.swapaxes(1, 2))(x)
        turned = jax.jit(lambda x, y: jnp.swapaxes(x, 2, 3) + y.transpose(0, 2, 3, 1)[..., :1, :])(x, y)
        inside = jax.jit(lambda x: x[:, 1:, :, 1:] * 2)(x)
        donated = jax.jit(lambda x, b: x + b, donate_argnums=0)(jnp.asarray(x), x[:1, :, :1])
    np.testing.assert_array_equal(moved, x.swapaxes(1, 2))
    np.testing.assert_array_equal(turned, x.swapaxes(2, 3) + x.swapaxes(2, 3)[..., :1, :])
    np.testing.assert_array_equal(inside, x[:, 1:, :, 1:] * np.array(2, dtype))
    np.testing.assert_array_equal(donated, x + x[:1, :, :1])

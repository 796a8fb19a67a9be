"""Flags and bytes packed into bits and joined along short rows, beside NumPy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jax

R = np.random.default_rng(5)


@pytest.mark.parametrize("shape, axis", [((1000,), None), ((30, 67), 0), ((30, 67), 1), ((1, 3), 1), ((0,), None)])
@pytest.mark.parametrize("order", ["big", "little"])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32"])
def test_packbits(device: jax.Device, shape: tuple[int, ...], axis: int | None, order: str, dtype: str) -> None:
    x = R.integers(0, 3, shape).astype(dtype)
    found = jax.jit(lambda x: jnp.packbits(x, axis=axis, bitorder=order))(x)
    np.testing.assert_array_equal(np.asarray(found), np.packbits(x != 0, axis=axis, bitorder=order))


@pytest.mark.parametrize("count", [2, 3, 8, 15])
@pytest.mark.parametrize("rows", [1, 1000, 4099])
def test_flags_side_by_side(device: jax.Device, count: int, rows: int) -> None:
    flags = [R.integers(0, 2, rows) > 0 for _ in range(count)]
    found = jax.jit(lambda *flags: jnp.stack(flags, -1))(*flags)
    np.testing.assert_array_equal(np.asarray(found), np.stack(flags, -1))

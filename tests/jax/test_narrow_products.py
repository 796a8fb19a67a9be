"""Products of integers whose results are narrower than their sums: the low bits, from every place of a row."""

from __future__ import annotations

import numpy as np
import pytest

import jax


@pytest.mark.parametrize("columns", [1, 15, 16, 31, 32, 33, 100, 512])
@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16"])
def test_low_bits(device: jax.Device, name: str, columns: int) -> None:
    dtype, random = np.dtype(name), np.random.default_rng(columns)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = random.integers(low, high, (70, 90), dtype, endpoint=True)
    y = random.integers(low, high, (90, columns), dtype, endpoint=True)
    wanted = (x.astype(np.int64) @ y.astype(np.int64)).astype(dtype)
    np.testing.assert_array_equal(np.asarray(jax.jit(lambda x, y: x @ y)(x, y)), wanted)
    np.testing.assert_array_equal(np.asarray(jax.jit(lambda x, y: (x @ y.T).T)(y.T, x)), wanted)

"""Copies of many megabytes go over threads and past the caches: each byte still arrives, at any offset."""

import jax.numpy as jnp
import numpy as np
import pytest

import jax

MANY = 5 * 2**20  # 20 MB of floats: more than native/large_copy.cc leaves to one plain copy


@pytest.mark.parametrize("extra", [0, 1, 7, 63])
def test_to_the_device_and_back(extra):
    source = np.random.default_rng(extra).integers(0, 255, MANY * 4 + extra, np.uint8)
    for offset in (0, 1, 17):  # JAX keeps an aligned array's memory, and copies one that is not
        array = jax.device_put(source[offset:])
        np.testing.assert_array_equal(np.asarray(array), source[offset:])
        np.testing.assert_array_equal(np.array(array, copy=True), source[offset:])
        np.testing.assert_array_equal(np.asarray(jnp.array(array, copy=True)), source[offset:])


def test_an_operand_that_must_stay():
    table = np.random.default_rng(0).standard_normal((MANY // 500, 503), np.float32)
    kept = jnp.asarray(table)
    at, rows = np.array([0, 5, len(table) - 1]), np.ones((3, 503), np.float32)
    result = jax.jit(lambda t: t.at[at].add(rows))(kept)
    expected = table.copy()
    expected[at] += rows
    np.testing.assert_array_equal(np.asarray(result), expected)
    np.testing.assert_array_equal(np.asarray(kept), table)

"""Large copies go over threads, and past the caches from some megabytes on: each byte still arrives, at any offset."""

import jax.numpy as jnp
import numpy as np
import pytest

import jax

MANY = 5 * 2**20  # 20 MB of floats: more than native/large_copy.cc leaves to one plain copy


@pytest.mark.parametrize("count", [4 * MANY, 5 << 20, 1 << 19, (1 << 19) - 3])
@pytest.mark.parametrize("extra", [0, 1, 7, 63])
def test_to_the_device_and_back(extra, count):
    source = np.random.default_rng(extra).integers(0, 255, count + extra, np.uint8)
    for offset in (0, 1, 17):  # JAX keeps an aligned array's memory, and copies one that is not
        array = jax.device_put(source[offset:])
        np.testing.assert_array_equal(np.asarray(array), source[offset:])
        np.testing.assert_array_equal(np.array(array, copy=True), source[offset:])
        np.testing.assert_array_equal(np.asarray(jnp.array(array, copy=True)), source[offset:])


@pytest.mark.parametrize("rows", [MANY // 500, 1000])
def test_an_operand_that_must_stay(rows):
    table = np.random.default_rng(0).standard_normal((rows, 503), np.float32)
    kept = jnp.asarray(table)
    at, ones = np.array([0, 5, len(table) - 1]), np.ones((3, 503), np.float32)
    result = jax.jit(lambda t: t.at[at].add(ones))(kept)
    expected = table.copy()
    expected[at] += ones
    np.testing.assert_array_equal(np.asarray(result), expected)
    np.testing.assert_array_equal(np.asarray(kept), table)

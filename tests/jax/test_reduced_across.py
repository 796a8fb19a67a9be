"""Reductions of transposed arrays, and what is turned there and back, give what NumPy gives."""

import jax.numpy as jnp
import numpy as np
import pytest

import jax

R = np.random.default_rng(11)


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "complex64"])
@pytest.mark.parametrize("axes, dims", [((0, 1), (1,)), ((0, 2), (2,)), ((2, 0), (0, 1)), ((1, 2), (0, 2))])
def test_sums(device, dtype, axes, dims):
    x = (R.normal(size=(37, 24, 65)) * 3).astype(dtype)
    with jax.default_device(device):
        got = jax.jit(lambda x: jnp.swapaxes(x, *axes).sum(dims))(x)
    np.testing.assert_allclose(got, np.swapaxes(x, *axes).sum(dims), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", [(1024, 256), (13, 100)])
@pytest.mark.parametrize("order", ["big", "little"])
@pytest.mark.parametrize("axis", [0, 1])
def test_packed_bits(device, shape, order, axis):
    x = R.random(shape) < 0.5
    with jax.default_device(device):
        got = jax.jit(lambda x: jnp.packbits(x, axis, order))(x)
    np.testing.assert_array_equal(got, np.packbits(x, axis, order))


@pytest.mark.parametrize("shape", [(128, 256), (13, 9, 20)])
@pytest.mark.parametrize("order", ["big", "little"])
@pytest.mark.parametrize("axis, count", [(0, None), (0, 77), (1, None), (1, -3)])
def test_unpacked_bits(device, shape, order, axis, count):
    x = R.integers(0, 256, shape).astype(np.uint8)
    with jax.default_device(device):
        got = jax.jit(lambda x: jnp.unpackbits(x, axis, count, order))(x)
    np.testing.assert_array_equal(got, np.unpackbits(x, axis, count, order))


def test_a_softmax_of_columns(device):
    """What is reduced is read again, transposed."""
    x = R.normal(size=(300, 70)).astype("f")
    with jax.default_device(device):
        got, of = jax.jit(lambda x: (jax.nn.softmax(x.T, axis=1), x.T * 2))(x)
    e = np.exp(x.T - x.T.max(1, keepdims=True))
    np.testing.assert_allclose(got, e / e.sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(of, x.T * 2)

"""Sums of products are rounded once, the same wherever they are computed; what users count on stays exact."""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

import jax

X, Y, Z = np.random.RandomState(0).randn(3, 1000)


def formula(op: Callable, first: bool) -> Callable:
    return lambda x, y, z: op(x * y, z) if first else op(z, x * y)


@pytest.mark.parametrize("op", [operator.add, operator.sub])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_rounded_once(device: jax.Device, op: Callable, first: bool, dtype: str) -> None:
    f = formula(op, first)
    args = [a.astype(dtype) for a in (X, Y, Z)]
    exact = [f(*map(Fraction, map(float, numbers))) for numbers in zip(*args, strict=True)]
    with jax.enable_x64(dtype == "f8"):
        found = np.asarray(jax.jit(f)(*jax.device_put(args, device)))
    np.testing.assert_array_equal(found, np.array(list(map(float, exact))).astype(dtype))


@pytest.mark.parametrize("op", [operator.add, operator.sub])
@pytest.mark.parametrize("first", [True, False])
def test_infinities_and_signs(device: jax.Device, op: Callable, first: bool) -> None:
    values, f = np.array([0.0, -0.0, 1.5, np.inf, -np.inf, np.nan], np.float32), formula(op, first)
    x, y, z = (a.reshape(-1) for a in np.meshgrid(values, values, values))
    with np.errstate(invalid="ignore"):
        expected = f(x, y, z)
    found = np.asarray(jax.jit(f)(*jax.device_put((x, y, z), device)))
    np.testing.assert_array_equal(found, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found)[number], np.signbit(expected)[number])


def test_symmetric_stays_symmetric(device: jax.Device) -> None:
    x, y = np.random.RandomState(1).randn(2, 65).astype(np.float32)
    matrix = np.asarray(jax.jit(lambda x, y: x[:, None] * y + y[:, None] * x)(*jax.device_put((x, y), device)))
    np.testing.assert_array_equal(matrix, matrix.T)


def test_the_same_in_every_kernel(device: jax.Device) -> None:
    """The largest element is found again among those that are computed a second time."""
    x, y, z = jax.device_put(tuple(np.random.RandomState(2).randn(3, 300, 500).astype(np.float32)), device)

    def f(x: jax.Array, y: jax.Array, z: jax.Array) -> jax.Array:
        values = x * y + z
        return jnp.sum(values == jnp.max(values, 1, keepdims=True), 1), jnp.sum(values == jnp.max(values))

    rows, one = jax.jit(f)(x, y, z)
    np.testing.assert_array_equal(rows, np.ones(300, int))
    assert one == 1

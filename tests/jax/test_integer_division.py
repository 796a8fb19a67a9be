"""Quotients and remainders of vectors of integers, where floats divide, against NumPy's wider integers."""

from __future__ import annotations

import numpy as np
import pytest

import jax


@pytest.mark.parametrize("one", [False, True], ids=["by many", "by one"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32])
def test_division(dtype, one):
    limits, generator, n = np.iinfo(dtype), np.random.default_rng(0), 20_011
    x = generator.integers(limits.min, limits.max, n, dtype, endpoint=True)
    x[:900] = np.repeat(np.array([limits.min, limits.max, limits.max - 1], dtype), 300)
    divisors = [
        limits.min,
        limits.max,
        limits.max - 1,
        0,
        1,
        2,
        3,
        7,
        limits.max // 2,
        -1 if limits.min else limits.max,
    ]
    y = generator.integers(limits.min, limits.max, n, dtype, endpoint=True)
    y[: 2 * n // 3] = np.resize(np.array(divisors, dtype), 2 * n // 3)
    run = jax.jit(lambda x, y: (jax.lax.div(x, y), jax.lax.rem(x, y)))
    for divisor in divisors if one else [y]:
        divisor = np.array(divisor, dtype)
        a, b = x.astype("i8"), divisor.astype("i8")
        safe = np.where(b == 0, 1, b)
        quotient = np.where(b == 0, -1, np.sign(a) * np.sign(safe) * (abs(a) // abs(safe)))
        remainder = np.where(b == 0, a, a - quotient * b)
        results = run(x, divisor)
        np.testing.assert_array_equal(results[0], quotient.astype(dtype))
        np.testing.assert_array_equal(results[1], remainder.astype(dtype))

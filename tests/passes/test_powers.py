"""Powers with constant exponents become products and roots (tests/jax/test_constant_powers.py looks at the values)."""

from __future__ import annotations

import numpy as np
import pytest
from test_passes import graph

import jax
from ferrule.passes.simplify import simplify


@pytest.mark.parametrize("exponent, left", [(2, 0), (0.5, 0), (-0.5, 0), (1, 0), (2.5, 1), (-3, 1)])
def test_what_is_left(exponent: float, left: int) -> None:
    x = np.ones((4, 5), np.float32)
    block = simplify(graph(lambda x: jax.lax.pow(x, np.float32(exponent)), x))
    assert sum(op.name == "power" for op in block.ops) == left


def test_of_two_roundings_only_where_they_are_fine() -> None:
    x = np.ones((4, 5), np.float16)
    block = simplify(graph(lambda x: jax.lax.pow(x, np.float16(3)), x))
    assert [op.name for op in block.ops if op.result.shape and op.name != "constant"] == ["power"]


def test_of_one() -> None:
    """A factor that grows with the steps is often 1 to the power of their number; of NaN and ∞ it is 1, too."""
    y = np.array([2.5, np.nan, np.inf, -np.inf, -0.0], np.float32)

    def f(y: jax.Array) -> jax.Array:
        return jax.lax.pow(np.ones(5, np.float32), y)

    assert not any(op.name == "power" for op in simplify(graph(f, y)).ops)
    np.testing.assert_array_equal(np.ones(5, np.float32) ** y, jax.jit(f)(y))

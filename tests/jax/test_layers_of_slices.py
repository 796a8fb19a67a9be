"""Slices, paddings and joined arrays in many layers, as associative scans and their gradients have them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jax
from ferrule.pipeline import compile_program


def squares(x):
    return (jnp.cumprod(x) ** 2).sum()


def expected(x: np.ndarray) -> np.ndarray:
    """d/dx_i of the sum of squares of the running product."""
    total = np.cumprod(x.astype(np.float64)) ** 2
    return 2 * np.cumsum(total[::-1])[::-1] / x


@pytest.mark.parametrize("size", [5, 8, 9, 16, 33, 1000, 5000])
def test_gradient_of_a_running_product(size):
    """Lanes outside of one operand stay out in the paddings within it: some read what was no memory of the process."""
    x = 1 + 0.01 * np.random.default_rng(size).standard_normal(size).astype(np.float32)
    with jax.default_device(jax.devices("ferrule")[0]):
        np.testing.assert_allclose(jax.jit(jax.grad(squares))(x), expected(x), rtol=1e-4)


def test_code_grows_with_the_layers():
    """What is read at several indices is computed once for each, not once for each path through the layers."""
    sizes = []
    for length in (32, 1024):
        module = jax.jit(jax.grad(squares)).trace(np.ones(length, np.float32)).lower(lowering_platforms=("cpu",))
        program = compile_program(str(module.compiler_ir("stablehlo")).encode())
        sizes.append(sum(len(code) for code in program.objects))
    assert sizes[1] < 6 * sizes[0], sizes  # five more layers

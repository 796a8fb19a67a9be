"""Numerical promises that need whole programs: long sums keep their digits, and functions JAX lowers in its own way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from scipy import special

import jax

SUMS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "all": (jnp.sum, np.sum),
    "rows": (lambda x: x.reshape(50, -1).sum(1), lambda x: x.reshape(50, -1).sum(1)),
    "columns": (lambda x: x.reshape(-1, 10).sum(0), lambda x: x.reshape(-1, 10).sum(0)),
    "mean of columns": (lambda x: x.reshape(-1, 10).mean(0), lambda x: x.reshape(-1, 10).mean(0)),
    "dot": (lambda x: x @ x, lambda x: x @ x),
    "vector times matrix": (lambda x: x[:10000] @ x.reshape(10000, 10), lambda x: x[:10000] @ x.reshape(10000, 10)),
    "matrix times vector": (lambda x: x.reshape(10, 10000) @ x[:10000], lambda x: x.reshape(10, 10000) @ x[:10000]),
}


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("name", SUMS)
def test_long_sums(name: str, dtype: type) -> None:
    """Errors of 100,000 additions stay those of a few: they are added up in runs."""
    function, reference = SUMS[name]
    x = np.random.default_rng(0).random(100_000).astype(dtype)
    want = reference(x.astype(np.complex128))
    got = np.asarray(jax.jit(function)(x))
    assert np.max(np.abs(got - want) / np.abs(want)) < 5e-7


@pytest.mark.parametrize(
    "shape, axes, limit",
    [
        ((64, 50257), 1, 1.6e-7),
        ((96, 1 << 16), 1, 1.6e-7),
        ((4096, 1024), 0, 1.25e-7),
        ((512, 80, 128), (0, 2), 1.8e-7),
    ],
)
def test_sums_of_either_sign(shape: tuple[int, ...], axes: int | tuple[int, ...], limit: float) -> None:
    """Their errors do not grow with the number of elements either, as against the root of that number."""
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    want = x.astype(np.float64).sum(axes)
    got = np.asarray(jax.jit(lambda x: x.sum(axes))(jax.device_put(x, jax.devices("ferrule")[0])))
    assert np.sqrt(np.mean((got - want) ** 2) / (x.size / want.size)) < limit


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("name", ["sinh", "cosh"])
def test_complex_hyperbolic_functions(name: str, dtype: type) -> None:
    """No cancellation near 0 and no infinity where only an intermediate result is one."""
    with jax.enable_x64(True):
        limit = 89.0 if dtype == np.complex64 else 710.0
        z = np.array([1e-9 + 1e-12j, -3e-8 + 0.76j, 1e-20 - 2j, limit + 1.5j, -limit + 1.57j, 0.5 - 0.25j], dtype)
        got = np.asarray(jax.jit(getattr(jnp, name))(z))
        want = getattr(np, name)(z.astype(np.clongdouble))
        for g, w in ((got.real, want.real), (got.imag, want.imag)):
            np.testing.assert_allclose(g, w.astype(g.dtype), rtol=8 * np.finfo(g.dtype).eps)
        astray = np.asarray(jax.jit(getattr(jnp, name))(np.array([np.inf + 1j * np.inf], dtype)))
        assert np.isnan(astray.real).all() and np.isnan(astray.imag).all()


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", ["erf", "erfc", "erf_inv", "bessel_i1e"])
def test_functions_of_eight_bits(name: str) -> None:
    """jaxlib cannot take these functions of 8-bit floats apart; they go through f32 before it sees them."""
    x = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
    got = np.asarray(jax.jit(getattr(jax.lax, name))(x))
    with np.errstate(all="ignore"):
        scipy_name = {"erf_inv": "erfinv", "bessel_i1e": "i1e"}.get(name, name)
        want = getattr(special, scipy_name)(x.astype(np.float64)).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))

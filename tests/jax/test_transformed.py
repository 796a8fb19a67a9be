"""Convolutions by Fourier transforms whose lengths are slow (passes/transformed.py)."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.signal
from jax.scipy.signal import correlate, fftconvolve

import jax
from ferrule.pipeline import compile_program
from ferrule.program import Call
from jax import lax

RNG = np.random.default_rng(8)


def lengths(function, *args) -> set[tuple[int, ...]]:
    """Of the transforms of a program."""
    module = jax.jit(function).trace(*args).lower(lowering_platforms=("ferrule",))
    program = compile_program(str(module.compiler_ir("stablehlo")).encode())
    calls = [step for block in program.blocks for step in block if isinstance(step, Call)]
    return {tuple(call.attrs["length"]) for call in calls if call.target == "fft"}


def normal(*shape: int, dtype: str = "f4") -> np.ndarray:
    x = RNG.standard_normal(shape)
    return (x + 1j * RNG.standard_normal(shape) if dtype == "c8" else x).astype(dtype)


CASES = {
    "one dimension": ((994,), (16,), "f4", {(1024,)}, {}),
    "same": ((994,), (16,), "f4", {(1024,)}, {"mode": "same"}),
    "valid": ((16,), (994,), "f4", {(1024,)}, {"mode": "valid"}),
    "complex": ((994,), (16,), "c8", {(1024,)}, {}),
    "two dimensions": ((100, 101), (8, 9), "f4", {(120, 120)}, {}),
    "one of two is quick": ((93, 92), (8, 10), "f4", {(100, 120)}, {}),
    "both are quick": ((93, 92), (8, 9), "f4", {(100, 100)}, {}),
    "along one of two": ((5, 994), (5, 16), "f4", {(1024,)}, {"axes": 1}),
}


@pytest.mark.parametrize("name", CASES)
def test_beside_scipy(device, name):
    x, y, dtype, wanted, options = CASES[name]
    a, b = normal(*x, dtype=dtype), normal(*y, dtype=dtype)

    def convolve(a, b):
        return fftconvolve(a, b, **options)

    wide = "c16" if dtype == "c8" else "f8"
    expected = scipy.signal.fftconvolve(a.astype(wide), b.astype(wide), **options)
    with jax.default_device(device):
        found = np.asarray(jax.jit(convolve)(a, b))
    np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())
    assert lengths(convolve, a, b) == wanted


def test_rows_with_one_kernel(device):
    a, b = normal(3, 994), normal(16)
    convolve = jax.vmap(fftconvolve, (0, None))
    with jax.default_device(device):
        found = np.asarray(jax.jit(convolve)(a, b))
    expected = np.stack([np.convolve(row, b.astype("f8")) for row in a])
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert lengths(convolve, a, b) == {(1024,)}


def test_correlation(device):
    a, b = normal(994), normal(16)
    with jax.default_device(device):
        found = np.asarray(jax.jit(lambda a, b: correlate(a, b, method="fft"))(a, b))
    np.testing.assert_allclose(found, scipy.signal.correlate(a.astype("f8"), b.astype("f8")), atol=1e-4)


def padded(n: int, filled: int, low: int = 0, value: float = 0.0):
    def convolve(x, y):
        x, y = (lax.pad(z, value, [(low, n - low - len(z), 0)]) for z in (x, y))
        return jnp.fft.irfft(jnp.fft.rfft(x) * jnp.fft.rfft(y), n)

    return convolve, normal(filled), normal(9)


WRAPPING = {
    "too little padding": padded(1009, 1002),
    "in front": padded(1009, 900, low=5),
    "with ones": padded(1009, 900, value=1.0),
    "without": (lambda x, y: jnp.fft.irfft(jnp.fft.rfft(x) * jnp.fft.rfft(y), 1009), normal(1009), normal(1009)),
    "a conjugate": (
        lambda x, y: jnp.fft.irfft(jnp.fft.rfft(x, 1009) * jnp.fft.rfft(y, 1009).conj(), 1009),
        normal(900),
        normal(9),
    ),
}


@pytest.mark.parametrize("name", WRAPPING)
def test_what_wraps_around_keeps_its_length(device, name):
    function, *args = WRAPPING[name]
    with jax.default_device(device):
        found = np.asarray(jax.jit(function)(*args))
    with jax.default_device(jax.devices("cpu")[0]):
        expected = np.asarray(jax.jit(function)(*args))
    np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())
    assert lengths(function, *args) == {(1009,)}


def test_just_enough_padding():
    function, *args = padded(1009, 1001)
    assert lengths(function, *args) == {(1024,)}

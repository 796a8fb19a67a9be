"""Fourier transforms of many rows, whose results are written past the caches (native/fft.cc)."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jax

# Rows that begin anywhere in a line of memory; 1009 is a prime, and a convolution.
CASES = [("fft", 1700, 1001), ("fft", 1700, 1000), ("ifft", 1600, 1004), ("rfft", 3300, 1002), ("rfft", 3200, 1009)]
CASES += [("irfft", 3300, 1000), ("irfft", 3200, 1009)]
# Short ones go some at a time.
CASES += [("fft", 30001, 64), ("ifft", 13002, 128), ("rfft", 60003, 64), ("irfft", 30001, 128)]


@pytest.mark.parametrize(("kind", "rows", "n"), CASES)
def test_past_the_caches(kind: str, rows: int, n: int) -> None:
    draw = np.random.default_rng(n)
    x = draw.standard_normal((rows, n)).astype(np.float32)
    if kind in ("fft", "ifft"):
        x = x + 1j * draw.standard_normal((rows, n)).astype(np.float32)
    if kind == "irfft":
        x = np.fft.rfft(x).astype(np.complex64)
    sizes = {"n": n} if kind == "irfft" else {}
    got = np.asarray(jax.jit(lambda v: getattr(jnp.fft, kind)(v, **sizes))(x))
    want = getattr(np.fft, kind)(x.astype(np.complex128 if np.iscomplexobj(x) else np.float64), **sizes)
    assert got.nbytes > 12 << 20
    np.testing.assert_allclose(got, want, atol=3e-6 * np.abs(want).max())


@pytest.mark.parametrize("n", [12, 16, 32, 64, 128, 256, 1000])
def test_in_place_of_the_operand(n: int) -> None:
    draw = np.random.default_rng(n)
    x = draw.standard_normal((37, n)) + 1j * draw.standard_normal((37, n))
    there = jnp.asarray(x, jnp.complex64)
    place = there.unsafe_buffer_pointer()
    got = jax.jit(jnp.fft.fft, donate_argnums=0)(there)
    assert got.unsafe_buffer_pointer() == place
    np.testing.assert_allclose(got, np.fft.fft(x), atol=3e-6 * np.abs(x).max() * n**0.5)

"""Powers with a constant exponent have C's values at zeros, infinities and NaN, and the last digits of `pow`."""

from __future__ import annotations

import denormals
import ml_dtypes
import numpy as np
import pytest

import jax

EDGES = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, 1e-30, 1e-19, 3e38, -3e38, 1e20, -2.5, 1e13, -1e-13]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, 0.5, -0.5, 1.5, -2, 2.5])
def test_values(device: jax.Device, exponent: float, dtype: type) -> None:
    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"), jax.enable_x64(dtype == np.float64):
        parts = np.array(EDGES), rng.lognormal(0, 3, 400), -np.arange(9.0)
        x = np.concatenate([part.astype(dtype) for part in parts])
        zeros = denormals.flushed(device) and dtype != np.float16 and exponent != 1  # x itself is not computed
        tiny = np.finfo(dtype).tiny if zeros else 0
        want = np.power(np.where(np.abs(x) < tiny, x * 0, x).astype(np.longdouble), exponent)
        want = np.where(np.abs(want) < tiny, want * 0, want)
        got = np.asarray(jax.jit(lambda x: jax.lax.pow(x, x.dtype.type(exponent)))(x))
        rounded = want.astype(dtype)
        ulps = np.abs(got - want) / np.spacing(np.abs(rounded))
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    assert np.array_equal(np.signbit(got[rounded == 0]), np.signbit(rounded[rounded == 0]))
    assert (same | (ulps <= 2)).all(), (x[~same], got[~same], rounded[~same])


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, 0.5, -0.5, 1.5])
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn"])
def test_narrow_values(device: jax.Device, name: str, exponent: float) -> None:
    """All numbers of types that lack a zero, a sign, infinities or NaN."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    x = np.arange(16 if dtype == ml_dtypes.float4_e2m1fn else 256, dtype=np.uint8).view(dtype)
    power = np.array(exponent).astype(dtype)
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64).astype(np.longdouble), float(power)).astype(np.float64)
        rounded = want.astype(dtype).astype(np.float64)
    got = np.asarray(jax.jit(lambda x: jax.lax.pow(x, power))(x)).astype(np.float64)
    known = ~np.isnan(want) | np.isnan(rounded)  # a type without NaN has some number there
    if denormals.flushed(device):  # float8_e8m0fnu has no zero, but 2 to the power of -127
        known &= [v == 0 or abs(v) >= np.finfo(np.float32).tiny for v in x.astype(np.float64)]
        known &= ~((np.abs(want) < np.finfo(np.float32).tiny) & (want != 0))
    np.testing.assert_array_equal(got[known], rounded[known])

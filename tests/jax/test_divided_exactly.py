"""Integers divided by constants are rounded as NumPy's quotients are, to the last bit (passes/quotients.py)."""

from __future__ import annotations

from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

import jax

R, DEVICE = np.random.default_rng(5), jax.devices("ferrule")[0]
# Some whose inverses lie as far from a float as can be, and those with one bit, or all bits, set.
SIGNIFICANDS = [255, 3, 7, 10, 127.5, 0.1, np.nextafter(np.float32(1), 0), np.nextafter(np.float32(1), 2), 1.9999999]


def farthest(bits: int) -> list[float]:
    """Significands whose inverses are nearly halfway between two floats."""
    found = []
    for n in R.integers(1 << (bits - 1), 1 << bits, 20000):
        inverse = Fraction(1 << (2 * bits), int(n))
        found.append((abs(inverse - int(inverse) - Fraction(1, 2)), int(n)))
    return [float(n) for _, n in sorted(found)[:20]]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int32, np.int64])
@pytest.mark.parametrize("to", [np.float32, np.float64])
def test_quotients(dtype: type, to: type) -> None:
    info = np.iinfo(dtype)
    size = min(1 << 16, int(info.max) - int(info.min) + 1)
    x = R.integers(info.min, info.max, 1 << 16, dtype, endpoint=True) >> R.integers(0, info.bits - 1, 1 << 16, dtype)
    x[:size] = np.linspace(info.min, info.max, size).astype(dtype) if size < 1 << 16 or info.bits == 16 else x[:size]
    divisors = [to(d) for d in (*SIGNIFICANDS, *farthest(24 if to is np.float32 else 53), *R.uniform(0.001, 1000, 20))]
    with jax.enable_x64(True):
        found = jax.jit(lambda x: [x.astype(to) / d for d in divisors])(jax.device_put(x, DEVICE))
        for d, y in zip(divisors, found, strict=True):
            np.testing.assert_array_equal(np.asarray(y), x.astype(to) / d, str(d))


def test_normalized_bytes() -> None:
    x = np.broadcast_to(np.arange(256, dtype=np.uint8)[:, None, None], (256, 5, 3))
    mean, deviation = R.uniform(0, 1, (2, 3)).astype(np.float32)
    for d in (mean, deviation):
        d[2] = np.float32(100) / np.float32(255)  # of some bytes nothing is left
    found = jax.jit(lambda x: jnp.transpose((x.astype(jnp.float32) / 255 - mean) / deviation, (2, 0, 1)))(
        jax.device_put(x, DEVICE)
    )
    wanted = ((x.astype(np.float32) / np.float32(255) - mean) / deviation).transpose(2, 0, 1)
    np.testing.assert_array_equal(np.asarray(found), wanted)
    assert not np.signbit(np.asarray(found)[found == 0]).any() and (wanted == 0).any()

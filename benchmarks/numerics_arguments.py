"""What `numerics.py` tries: whole types where they are small, else bit patterns of all kinds and clusters."""

from __future__ import annotations

from itertools import product

import ml_dtypes
import numpy as np

SPECIALS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 2.5, 1024.0, np.inf, -np.inf, np.nan]


def info(dtype: np.dtype) -> ml_dtypes.finfo:
    return ml_dtypes.finfo(part(dtype))


def part(dtype: np.dtype) -> np.dtype:
    """The type of a complex type's parts; else the type itself."""
    return np.dtype({"c": f"f{dtype.itemsize // 2}"}[dtype.kind]) if dtype.kind == "c" else dtype


def bits(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"u{dtype.itemsize}")


def unary(dtype: np.dtype, quick: bool) -> np.ndarray:
    """f16 and narrower: all patterns. Others: all magnitudes, normal distributions, and neighbours of specials."""
    rng = np.random.default_rng(0)
    if dtype.kind == "c":
        return _plane(part(dtype), quick)
    if dtype.itemsize <= 2:
        return np.arange(1 << (8 * dtype.itemsize), dtype=np.uint32).astype(bits(dtype)).view(dtype)
    if dtype == np.float32:
        raw = np.arange(0, 1 << 32, 65521 if quick else 4093, dtype=np.uint64).astype(np.uint32).view(dtype)
    else:
        raw = rng.integers(0, 1 << 64, 1 << (13 if quick else 16), dtype=np.uint64).view(dtype)
    count = 1 << (13 if quick else 16)
    near = [rng.standard_normal(count) * scale for scale in (0.03, 0.3, 1, 10, 100)]
    return np.concatenate([raw, *(v.astype(dtype) for v in near), _neighbours(dtype)])


def _neighbours(dtype: np.dtype) -> np.ndarray:
    """Up to 64 steps on either side of whole numbers, halves, powers of two, multiples of π/2 and the type's limits."""
    whole = np.arange(-40, 41) / 2
    powers = np.ldexp(1.0, np.arange(-30, 31))
    angles = np.pi / 2 * np.concatenate([np.arange(1, 200), 2.0 ** np.arange(8, 60)])
    limits = [float(info(dtype).max), float(info(dtype).tiny), float(info(dtype).smallest_subnormal)]
    at = np.concatenate([whole, powers, -powers, angles, -angles, limits]).astype(dtype)
    steps = np.arange(-64, 65)[:, None]
    with np.errstate(all="ignore"):
        around = (at.view(bits(dtype)).astype(np.int64) + steps).astype(bits(dtype)).view(dtype).ravel()
    return around[np.isfinite(around)]


def few(dtype: np.dtype, count: int) -> np.ndarray:
    """For references that are slow: whole numbers' neighbours, a normal distribution, and all magnitudes."""
    rng = np.random.default_rng(1)
    near = [rng.standard_normal(count // 4) * scale for scale in (0.3, 2, 8)]
    powers = np.exp2(rng.uniform(-80, 40, count // 4)) * rng.choice([-1, 1], count // 4)
    unit = 1 - np.exp2(-rng.uniform(1, 52, count // 8))
    return np.concatenate([*near, powers, unit, -unit]).astype(dtype)


def _plane(dtype: np.dtype, quick: bool) -> np.ndarray:
    """Points of the plane: of all magnitudes and ratios of the parts, and near the unit circle and both axes."""
    rng = np.random.default_rng(2)
    count = 1 << (9 if quick else 12)
    to = np.result_type(dtype, np.complex64)
    scattered = [(rng.standard_normal((2, count)) * scale) for scale in (0.03, 0.3, 1, 10, 50)]
    reach = min(30, info(dtype).maxexp - 10)
    wide = np.exp2(rng.uniform(-reach, reach, (2, count))) * rng.choice([-1, 1], (2, count))
    full = np.exp2(rng.uniform(info(dtype).minexp + 2, info(dtype).maxexp - 2, (2, count)))
    full *= rng.choice([-1, 1], (2, count))
    angle = rng.uniform(-np.pi, np.pi, count)
    circle = np.array([np.cos(angle), np.sin(angle)]) * (1 + rng.standard_normal(count) * 1e-4)
    axis = np.array([rng.standard_normal(count), np.exp2(rng.uniform(-60, -5, count))])
    every = np.concatenate([*scattered, wide, full, circle, axis, axis[::-1]], axis=1).astype(dtype)
    z = np.empty(every.shape[1], to)
    z.real, z.imag = every
    return z


def binary(dtype: np.dtype, quick: bool, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Pairs: all of a type of 8 bits; else magnitudes of all kinds, and for some functions what suits them."""
    rng = np.random.default_rng(3)
    if dtype.kind == "c":
        z = _plane(part(dtype), quick)
        return z, rng.permutation(z)
    if dtype.itemsize == 1:
        x, y = np.meshgrid(*[np.arange(256, dtype=np.uint8)] * 2)
        return x.ravel().view(dtype), y.ravel().view(dtype)
    count = 1 << (13 if quick else 17)
    raw = [rng.integers(0, 1 << (8 * dtype.itemsize), count, np.uint64).astype(bits(dtype)).view(dtype) for _ in "xy"]
    scale = np.exp2(rng.uniform(-8, 8, count))
    near = [rng.standard_normal(count), rng.standard_normal(count) * scale]
    if name == "power":
        near = [np.exp(rng.uniform(-5, 5, count)), rng.standard_normal(count) * scale]
    elif name == "zeta":
        near = [1 + np.exp(rng.uniform(-5, 4, count)), np.exp(rng.uniform(-5, 5, count))]
        raw = near
    elif name == "polygamma":
        near = [rng.integers(0, 6, count).astype(float), np.exp(rng.uniform(-5, 5, count))]
        raw = near
    pairs = np.array(list(product(SPECIALS, SPECIALS))).T
    if name in ("zeta", "polygamma"):
        pairs = pairs[:, :0]
    x, y = (np.concatenate([r.astype(dtype), n.astype(dtype), p.astype(dtype)]) for r, n, p in zip(raw, near, pairs))
    return x, y


def specials(dtype: np.dtype) -> np.ndarray:
    """The arguments whose results are compared one by one."""
    if dtype.kind == "c":
        parts = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, np.inf, -np.inf, np.nan]
        return np.array([complex(a, b) for a in parts for b in parts]).astype(dtype)
    limits = info(dtype)
    edge = [float(limits.max), float(limits.tiny), -float(limits.max), -float(limits.tiny)]
    return np.array([*SPECIALS, *edge, *[-float(n) for n in range(4, 7)], 1e30, 1e6, -1e6]).astype(dtype)

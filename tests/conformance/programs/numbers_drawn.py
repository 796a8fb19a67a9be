"""Random arrays: mostly plain values, some at the edges where implementations go wrong."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ferrule.ir.types import DType


def array(
    rng: np.random.Generator,
    dtype: DType,
    shape: tuple[int, ...],
    *,
    low: float = -3.0,
    high: float = 3.0,
    special: bool = False,
    bounded: bool = False,
) -> np.ndarray:
    """Values of [low, high]; with `special` some are at the edges; `bounded` keeps integers in the interval."""
    if dtype.kind == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.is_int:
        return _integers(rng, dtype, shape, low, high, bounded)
    if dtype.is_complex:
        parts = [_floats(rng, dtype.part, shape, low, high, special and rng.random() < 0.3) for _ in range(2)]
        out = np.empty(shape, dtype.numpy)
        out.real, out.imag = parts
        return out
    return _floats(rng, dtype, shape, low, high, special)


def _integers(
    rng: np.random.Generator, dtype: DType, shape: tuple[int, ...], low: float, high: float, bounded: bool
) -> np.ndarray:
    info = ml_dtypes.iinfo(dtype.numpy)
    least, most = int(info.min), int(info.max)
    wide = np.int64 if dtype.kind == "int" else np.uint64
    if bounded:
        first, last = max(least, int(low)), min(most, int(high))
        return np.asarray(rng.integers(first, max(first, last), shape, wide, endpoint=True)).astype(dtype.numpy)
    full = rng.integers(least, most, shape, wide, endpoint=True)
    small = rng.integers(max(least, -9), min(most, 9), shape, wide, endpoint=True)
    edges = np.array([least, most, 0, 1, most - 1], wide)[rng.integers(0, 5, shape)]
    roll = rng.random(shape)
    return np.asarray(np.where(roll < 0.65, small, np.where(roll < 0.92, full, edges))).astype(dtype.numpy)


def _floats(
    rng: np.random.Generator, dtype: DType, shape: tuple[int, ...], low: float, high: float, special: bool
) -> np.ndarray:
    plain = np.asarray(rng.uniform(low, high, shape))
    # some values on a coarse grid: ties, equal keys, exact halves and zeros
    plain = np.where(rng.random(shape) < 0.3, np.clip(np.round(plain * 2) / 2, low, high), plain)
    if special:
        info = ml_dtypes.finfo(dtype.numpy)
        edge = [0.0, -0.0, np.inf, -np.inf, np.nan, float(info.max), float(info.smallest_normal)]
        edge += [-float(info.smallest_subnormal), 1.0, float(info.eps), 0.5, -2.5]
        plain = np.where(rng.random(shape) < 0.2, np.array(edge)[rng.integers(0, len(edge), shape)], plain)
    with np.errstate(all="ignore"):
        first = plain if dtype.bits == 64 else plain.astype(np.float32)
        return np.asarray(first).astype(dtype.numpy)

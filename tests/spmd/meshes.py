"""Meshes over the devices that the process has, four or eight of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jax

COUNT = len(jax.devices())
assert COUNT in (4, 8), f"these checks want 4 or 8 devices, JAX has {COUNT}: set FERRULE_NUM_DEVICES"
X, Y = COUNT // 2, 2
P = PartitionSpec


def line() -> Mesh:
    """All devices along one axis."""
    return jax.make_mesh((COUNT,), ("i",), axis_types=(AxisType.Auto,))


def grid() -> Mesh:
    """All devices along two axes, x = X and y = 2."""
    return jax.make_mesh((X, Y), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def put(value: Any, mesh: Mesh, *spec: Any) -> jax.Array:
    """The array split over a mesh."""
    return jax.device_put(value, NamedSharding(mesh, P(*spec)))


def numbers(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """Random data."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)

"""Random numbers. JAX's are the same on every engine; of PyTorch's other generator only moments are checked."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from harness import torch
from harness.case import Case, normal

import jax

MEGA = 1 << 20


def cases() -> list[Case]:
    def key():
        return (np.array([0, 7], np.uint32),)

    def case(name, function, arguments, counterpart, count, **more):
        common = {"reference": "f32", "torch_check": "moments", "bytes": 4.0 * count, "tolerance": 1e-2}
        return Case(name, function, arguments, torch=counterpart, **{**common, **more})

    f32 = jnp.float32
    return [
        case(
            "normal, 1 M",
            lambda k: jax.random.normal(k, (MEGA,), f32),
            key,
            lambda k: torch.randn(MEGA),
            MEGA,
            **from_uniform(MEGA),
        ),
        case(
            "normal, 16 M",
            lambda k: jax.random.normal(k, (16 * MEGA,), f32),
            key,
            lambda k: torch.randn(16 * MEGA),
            16 * MEGA,
            **from_uniform(16 * MEGA),
        ),
        case(
            "uniform, 16 M",
            lambda k: jax.random.uniform(k, (16 * MEGA,), f32),
            key,
            lambda k: torch.rand(16 * MEGA),
            16 * MEGA,
        ),
        case(
            "dropout, 4 M",
            dropout,
            lambda: (*key(), normal(4 * MEGA)),
            lambda k, x: torch.nn.functional.dropout(x, 0.1),
            8 * MEGA,
            reference="f64",
        ),
        case(
            "permutation of 100 K",
            lambda k: jax.random.permutation(k, 100_000),
            key,
            lambda k: torch.randperm(100_000),
            1e5,
            tolerance=0,
        ),
        case(
            "categorical, 1024 × 1000",
            jax.random.categorical,
            lambda: (*key(), normal(1024, 1000)),
            None,
            MEGA,
            tolerance=0,
        ),
        case("normal, 16", lambda k: jax.random.normal(k, (16,), f32), key, None, 16, **from_uniform(16)),
    ]


def from_uniform(count):
    """How a case of normal numbers is judged: what float64 makes of the same uniform numbers of float32."""
    low, root = np.nextafter(np.float32(-1), np.float32(0)), np.float64(np.float32(np.sqrt(2)))

    def exact(k):
        u = jax.random.uniform(k, (count,), jnp.float32, low, np.float32(1))
        return root * jax.lax.erf_inv(u.astype(jnp.float64))

    return {"exact": exact, "reference": "f64"}


def dropout(key, x):
    keep = jax.random.bernoulli(key, np.float32(0.9), x.shape)
    return jnp.where(keep, x / np.float32(0.9), 0)

"""Elementwise chains from 1 K to 100 M elements, with fresh and with donated outputs, and single functions."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from harness import torch
from harness.case import Case, normal

import jax

SIZES = {"1 K": 1 << 10, "64 K": 1 << 16, "1 M": 1 << 20, "16 M": 1 << 24, "100 M": 100_000_000}


def line(x):
    return x * 0.5 + 0.25


def curve(x):
    return jnp.tanh(x) * jnp.exp(-x * x) + 0.5 * x


def curve_torch(x):
    return torch.tanh(x) * torch.exp(-x * x) + 0.5 * x


def select(x, y):
    return jnp.where(x > y, x * y, x - y) * 2


def select_torch(x, y):
    return torch.where(x > y, x * y, x - y) * 2


def functions():
    """JAX's and PyTorch's function, and where its arguments lie."""
    return {
        "exp": (jnp.exp, "exp", 1),
        "log": (lambda x: jnp.log(jnp.abs(x)), lambda x: torch.log(torch.abs(x)), 1),
        "tanh": (jnp.tanh, "tanh", 1),
        "erf": (jax.lax.erf, "erf", 1),
        "exact GELU": (
            lambda x: jax.nn.gelu(x, approximate=False),
            lambda x: torch.nn.functional.gelu(x),
            1,
        ),
        "sin": (jnp.sin, "sin", 10),
        "pow": (lambda x: jnp.abs(x) ** 1.7, lambda x: torch.abs(x) ** 1.7, 1),
        "rsqrt": (lambda x: jax.lax.rsqrt(x * x + 1), lambda x: torch.rsqrt(x * x + 1), 1),
    }


def cases() -> list[Case]:
    found = []
    for name, n in SIZES.items():

        def data(n=n):
            return (normal(n),)

        found.append(Case(f"x·0.5 + 0.25, {name}", line, data, torch=line, bytes=8 * n))
        if n != 1 << 16:
            title = f"x·0.5 + 0.25, {name}, donated"
            found.append(Case(title, line, data, torch=lambda x: x.mul_(0.5).add_(0.25), bytes=8 * n, donate=(0,)))
        if n < 100_000_000:
            found.append(Case(f"tanh(x)·exp(-x²) + x/2, {name}", curve, data, torch=curve_torch, bytes=8 * n))
    n = 1 << 24
    found.append(
        Case(
            "where(x > y, x·y, x - y)·2, 16 M",
            select,
            lambda: (normal(n), normal(n, seed=1)),
            torch=select_torch,
            bytes=12 * n,
        )
    )
    found.append(
        Case(
            "first of three conditions, 1 M",
            lambda x: jnp.select([x < -1, x < 0, x < 1], [x * 2, x * x, -x], 0),
            lambda: (normal(1_000_000),),
            torch=lambda x: torch.where(x < -1, x * 2, torch.where(x < 0, x * x, torch.where(x < 1, -x, 0.0))),
            bytes=8e6,
        )
    )
    bf16 = jnp.bfloat16
    found.append(
        Case(
            "x·0.5 + 0.25 of bf16, 16 M",
            line,
            lambda: (normal(n, dtype=bf16),),
            torch=line,
            bytes=4 * n,
            tolerance=1e-2,
        )
    )
    found.append(
        Case(
            "uint8 to f32, scaled, 16 M",
            lambda x: x.astype(jnp.float32) * np.float32(1 / 255),
            lambda: (np.resize(np.arange(251, dtype=np.uint8), n),),
            torch=lambda x: x.float() * (1 / 255),
            bytes=5 * n,
        )
    )
    for name, (ours, theirs, scale) in functions().items():
        counterpart = theirs if callable(theirs) else (getattr(torch, theirs) if torch else None)
        found.append(
            Case(
                f"{name}, 1 M",
                ours,
                lambda scale=scale: (normal(1 << 20, scale=scale),),
                torch=counterpart,
                bytes=8 << 20,
            )
        )
    return found

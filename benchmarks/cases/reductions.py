"""Reductions of rows, columns, the middle, and everything; running totals."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from harness import torch
from harness.case import Case, normal

import jax

N = 1 << 24


def recurrence(a, b):
    """h[i] = a[i] h[i - 1] + b[i]."""
    return jax.lax.associative_scan(lambda x, y: (x[0] * y[0], y[0] * x[1] + y[1]), (a, b))[1]


def cases() -> list[Case]:
    def square():
        return (normal(4096, 4096),)

    return [
        Case("sum, 16 M", jnp.sum, lambda: (normal(N),), torch=lambda x: x.sum(), bytes=4 * N, read_only=True),
        Case("sum, 64 K", jnp.sum, lambda: (normal(1 << 16),), torch=lambda x: x.sum(), bytes=4 << 16, read_only=True),
        Case(
            "sum of each row, 4096²", lambda x: x.sum(1), square, torch=lambda x: x.sum(1), bytes=4 * N, read_only=True
        ),
        Case(
            "sum of each column, 1000²",
            lambda x: x.sum(0),
            lambda: (normal(1000, 1000),),
            torch=lambda x: x.sum(0),
            bytes=4e6,
            read_only=True,
        ),
        Case(
            "sum of each column, 4096²",
            lambda x: x.sum(0),
            square,
            torch=lambda x: x.sum(0),
            bytes=4 * N,
            read_only=True,
        ),
        Case(
            "max of the middle axis, 256³",
            lambda x: x.max(1),
            lambda: (normal(256, 256, 256),),
            torch=lambda x: x.amax(1),
            bytes=4 * N,
            read_only=True,
        ),
        Case(
            "argmax of each row, 4096²",
            lambda x: x.argmax(1),
            square,
            torch=lambda x: x.argmax(1),
            bytes=4 * N,
            read_only=True,
            tolerance=0,
        ),
        Case(
            "sum of squared differences, 16 M",
            lambda x, y: jnp.sum((x - y) ** 2),
            lambda: (normal(N), normal(N, seed=1)),
            torch=lambda x, y: ((x - y) ** 2).sum(),
            bytes=8 * N,
            read_only=True,
        ),
        Case(
            "mean and variance of each column, 16384 × 1024",
            lambda x: (x.mean(0), x.var(0)),
            lambda: (normal(16384, 1024),),
            torch=lambda x: (x.mean(0), x.var(0, correction=0)),
            bytes=4 * N,
            read_only=True,
        ),
        Case(
            "mean of squared differences, 100 K × 10",
            lambda x, y: ((x - y) ** 2).mean(),
            lambda: (normal(100_000, 10), normal(100_000, 10, seed=1)),
            torch=lambda x, y: ((x - y) ** 2).mean(),
            bytes=8e6,
            read_only=True,
        ),
        Case(
            "variance of all, 1009 × 1013",
            jnp.var,
            lambda: (normal(1009, 1013),),
            torch=lambda x: x.var(correction=0),
            bytes=4 * 1009 * 1013,
            read_only=True,
        ),
        Case(
            "distance from the mean of 100 K points in space",
            lambda x: ((x - x.mean(0)) ** 2).mean(),
            lambda: (normal(100_003, 3),),
            torch=lambda x: ((x - x.mean(0)) ** 2).mean(),
            bytes=4 * 3 * 100_003,
            read_only=True,
        ),
        Case(
            "mean and mean square of each channel, 8 × 56² × 256",
            lambda x: (x.mean((0, 1, 2)), (x * x).mean((0, 1, 2))),
            lambda: (normal(8, 56, 56, 256),),
            torch=lambda x: (x.mean((0, 1, 2)), (x * x).mean((0, 1, 2))),
            bytes=4 * 8 * 56 * 56 * 256,
            read_only=True,
        ),
        Case(
            "mean of 100 steps, 32 × 100 × 4096",
            lambda x: x.mean(1),
            lambda: (normal(32, 100, 4096),),
            torch=lambda x: x.mean(1),
            bytes=4 * 32 * 100 * 4096,
            read_only=True,
        ),
        Case(
            "largest of 21 classes, channels first, 8 × 21 × 256²",
            lambda x: x.argmax(1),
            lambda: (normal(8, 21, 256, 256),),
            torch=lambda x: x.argmax(1),
            bytes=4 * 8 * 256 * 256 * 22,
            tolerance=0,
        ),
        Case(
            "sum of each row, bf16, 4096²",
            lambda x: x.sum(1),
            lambda: (normal(4096, 4096, dtype=jnp.bfloat16),),
            torch=lambda x: x.sum(1),
            bytes=2 * N,
            read_only=True,
            tolerance=2e-2,
        ),
        Case(
            "any(x > 5), 16 M",
            lambda x: jnp.any(x > 5.5),
            lambda: (np.clip(normal(N), -4, 4),),
            torch=lambda x: (x > 5.5).any(),
            bytes=4 * N,
            read_only=True,
            tolerance=0,
        ),
        Case("cumsum, 1 M", jnp.cumsum, lambda: (normal(1 << 20),), torch=lambda x: torch.cumsum(x, 0), bytes=8 << 20),
        Case(
            "tanh of a running total, 1 M",
            lambda x: jnp.tanh(jnp.cumsum(x)),
            lambda: (normal(1 << 20, scale=1e-3),),
            torch=lambda x: torch.tanh(torch.cumsum(x, 0)),
            bytes=8 << 20,
        ),
        Case(
            "linear recurrence of 1 M, associative scan",
            recurrence,
            lambda: (0.9 + 0.05 * normal(1 << 20), normal(1 << 20, seed=1)),
            bytes=12 << 20,
            tolerance=1e-3,
        ),
        Case(
            "running logsumexp, 300 K",
            jax.lax.cumlogsumexp,
            lambda: (normal(300_000),),
            torch=lambda x: torch.logcumsumexp(x, 0),
            bytes=8.0 * 300_000,
        ),
        Case(
            "cumsum of each row, 4096 × 1024",
            lambda x: jnp.cumsum(x, 1),
            lambda: (normal(4096, 1024),),
            torch=lambda x: torch.cumsum(x, 1),
            bytes=32 << 20,
        ),
        Case(
            "running maximum of each column, 4096 × 256",
            lambda x: jax.lax.cummax(x, 0),
            lambda: (normal(4096, 256),),
            torch=lambda x: torch.cummax(x, 0)[0],
            bytes=8 << 20,
        ),
    ]

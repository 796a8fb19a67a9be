"""Sorts, stable as JAX's are, and the largest elements."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from harness import torch
from harness.case import Case, integers, normal

import jax

MEGA = 1_000_000


def cases() -> list[Case]:
    def million():
        return (normal(MEGA),)

    def top(x, k):
        return jax.lax.top_k(x, k)

    return [
        Case("sort, 1 M f32", jnp.sort, million, torch=lambda x: torch.sort(x, stable=True)[0], bytes=8 * MEGA),
        Case(
            "argsort, 1 M f32",
            jnp.argsort,
            million,
            torch=lambda x: torch.argsort(x, stable=True),
            bytes=8 * MEGA,
            tolerance=0,
        ),
        Case(
            "sort, 1 M int32",
            jnp.sort,
            lambda: (integers(1 << 30, MEGA),),
            torch=lambda x: torch.sort(x, stable=True)[0],
            bytes=8 * MEGA,
            tolerance=0,
        ),
        Case(
            "sort, 1 K f32",
            jnp.sort,
            lambda: (normal(1024),),
            torch=lambda x: torch.sort(x, stable=True)[0],
            bytes=8 << 10,
        ),
        Case(
            "sort of each row, 4096 × 256",
            lambda x: jnp.sort(x, 1),
            lambda: (normal(4096, 256),),
            torch=lambda x: torch.sort(x, dim=1, stable=True)[0],
            bytes=8 << 20,
        ),
        Case(
            "sort by key with two more operands, 1 M",
            lambda k, a, b: jax.lax.sort((k, a, b), num_keys=1),
            lambda: (normal(MEGA), np.arange(MEGA, dtype=np.int32), normal(MEGA, seed=1)),
            torch=by_key_torch,
            bytes=24 * MEGA,
        ),
        Case(
            "lexsort by two keys, 1 M",
            lambda a, b: jnp.lexsort((a, b)),
            lambda: (integers(50, MEGA), integers(1000, MEGA, seed=1)),
            torch=lexsort_torch,
            bytes=12 * MEGA,
            tolerance=0,
        ),
        Case(
            "top 10 of 1 M",
            lambda x: top(x, 10),
            lambda: (np.random.default_rng(0).permutation(MEGA).astype(np.float32),),
            torch=lambda x: tuple(torch.topk(x, 10)),
            bytes=4 * MEGA,
            tolerance=0,
        ),
        Case(
            "top 50 of each row, 64 × 32000",
            lambda x: top(x, 50),
            distinct_rows,
            torch=lambda x: tuple(torch.topk(x, 50)),
            bytes=4 * 64 * 32000,
            tolerance=0,
        ),
        Case(
            "top 5 of each row, 2000 × 500",
            lambda x: top(x, 5),
            lambda: (np.resize(distinct_rows()[0], (2000, 500)),),
            torch=lambda x: tuple(torch.topk(x, 5)),
            bytes=4 * 2000 * 500,
            tolerance=0,
        ),
        Case(
            "median of each row, 1024 × 1001",
            lambda x: jnp.sort(x, 1)[:, 500],
            lambda: (normal(1024, 1001),),
            torch=lambda x: x.median(1)[0],
            bytes=4 * 1024 * 1001,
        ),
        Case(
            "median filter 3×3, 512²",
            lambda x: jnp.median(neighbours(jnp, x), 0),
            lambda: (normal(514, 514),),
            torch=lambda x: neighbours(torch, x).median(0)[0],
            bytes=8 * 512 * 512,
            tolerance=0,
        ),
        Case(
            "top 2 of each row, 8192 × 8",
            lambda x: top(x, 2),
            lambda: (normal(8192, 8),),
            torch=lambda x: tuple(torch.topk(x, 2)),
            bytes=8 * 8192 * 6,
            tolerance=0,
        ),
        Case(
            "argsort of each row, 20000 × 16",
            lambda x: jnp.argsort(x, 1),
            lambda: (normal(20000, 16),),
            torch=lambda x: torch.argsort(x, dim=1, stable=True),
            bytes=8 * 20000 * 16,
            tolerance=0,
        ),
        Case(
            "searchsorted, 100 K in 10 K",
            jnp.searchsorted,
            lambda: (np.sort(normal(10_000)), normal(100_000, seed=1)),
            torch=torch.searchsorted if torch else None,
            tolerance=0,
            reference="f32",
        ),
    ]


def neighbours(of, x):
    return of.stack([x[i : i + 512, j : j + 512] for i in range(3) for j in range(3)])


def by_key_torch(k, a, b):
    k, order = torch.sort(k, stable=True)
    return k, a[order], b[order]


def lexsort_torch(a, b):
    order = torch.argsort(a, stable=True)
    return order[torch.argsort(b[order], stable=True)]


def distinct_rows():
    rng = np.random.default_rng(0)
    return (np.stack([rng.permutation(32000) for _ in range(64)]).astype(np.float32),)

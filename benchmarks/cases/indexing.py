"""Gathers and scatters: embeddings, their gradient, single elements, updates of a slice."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from harness import torch
from harness.case import Case, integers, normal

import jax

VOCABULARY, WIDTH, TOKENS, MEGA = 32000, 512, 4096, 1 << 20


def gather_torch(table, ids):
    return torch.nn.functional.embedding(ids, table)


def scatter_torch(table, ids, rows):
    return torch.index_add(table, 0, ids, rows)


def rotated(image):
    """By 0.3 rad about its centre, linearly interpolated; what lies outside is zero."""
    n = image.shape[0]
    i, j = jnp.mgrid[:n, :n] - n / 2
    c, s = float(np.cos(0.3)), float(np.sin(0.3))
    return jax.scipy.ndimage.map_coordinates(image, [c * i - s * j + n / 2, s * i + c * j + n / 2], 1)


def crops(images, corners):
    """Of 32² each, of images with 4 zeros around them."""

    def crop(image, corner):
        padded = jnp.pad(image, ((4, 4), (4, 4), (0, 0)))
        return jax.lax.dynamic_slice(padded, (corner[0], corner[1], 0), image.shape)

    return jax.vmap(crop)(images, corners)


def cases() -> list[Case]:
    def table():
        return normal(VOCABULARY, WIDTH)

    def ids():
        return integers(VOCABULARY, TOKENS, seed=1)

    rows = 4.0 * TOKENS * WIDTH
    return [
        Case(
            "embedding, 4096 of 32000 × 512",
            lambda t, i: t[i],
            lambda: (table(), ids()),
            torch=gather_torch,
            bytes=2 * rows,
        ),
        Case(
            "embedding's gradient",
            lambda i, g: jnp.zeros((VOCABULARY, WIDTH), g.dtype).at[i].add(g),
            lambda: (ids(), normal(TOKENS, WIDTH, seed=2)),
            torch=lambda i, g: torch.zeros(VOCABULARY, WIDTH).index_add_(0, i, g),
            bytes=rows + 4.0 * VOCABULARY * WIDTH,
        ),
        Case(
            "scatter-add of rows",
            lambda t, i, g: t.at[i].add(g),
            lambda: (table(), ids(), normal(TOKENS, WIDTH, seed=2)),
            torch=scatter_torch,
            bytes=rows + 8.0 * VOCABULARY * WIDTH,
        ),
        Case(
            "scatter-add of rows, donated",
            lambda t, i, g: t.at[i].add(g),
            lambda: (table(), ids(), normal(TOKENS, WIDTH, seed=2)),
            torch=lambda t, i, g: t.index_add_(0, i, g),
            donate=(0,),
            bytes=3 * rows,
        ),
        Case(
            "gather of 1 M elements",
            lambda x, i: x[i],
            lambda: (normal(MEGA), integers(MEGA, MEGA)),
            torch=lambda x, i: x[i],
            bytes=12.0 * MEGA,
        ),
        Case("rotated image, 512²", rotated, lambda: (normal(512, 512),), bytes=8 * 512 * 512, tolerance=1e-3),
        Case(
            "histogram of 1 M in 1024 bins",
            lambda i: jnp.zeros(1024, jnp.int32).at[i].add(1),
            lambda: (integers(1024, MEGA),),
            torch=lambda i: torch.bincount(i, minlength=1024),
            bytes=4.0 * MEGA,
            tolerance=0,
        ),
        Case(
            "segment sum, 1 M in 10 K segments",
            lambda x, i: jax.ops.segment_sum(x, i, 10000, indices_are_sorted=True),
            lambda: (normal(MEGA), np.sort(integers(10000, MEGA))),
            torch=lambda x, i: torch.zeros(10000).index_add_(0, i, x),
            bytes=8.0 * MEGA,
        ),
        Case(
            "take along rows, 4096 × 1024",
            lambda x, i: jnp.take_along_axis(x, i, 1),
            lambda: (normal(4096, 1024), integers(1024, 4096, 1024)),
            torch=lambda x, i: torch.take_along_dim(x, i.long(), 1),
            bytes=48.0 * MEGA,
        ),
        Case(
            "random crops, 256 × 32² × 3",
            crops,
            lambda: (normal(256, 32, 32, 3), integers(9, 256, 2)),
            bytes=8.0 * 256 * 32 * 32 * 3,
        ),
        Case(
            "roll of rows by a traced number, 1000²",
            lambda x, k: jnp.roll(x, k[0], 0),
            lambda: (normal(1000, 1000), integers(1000, 1)),
            torch=lambda x, k: torch.roll(x, int(k[0]), 0),
            bytes=8.0 * 1000 * 1000,
        ),
        Case(
            "16 K rows of 50 K × 64 and a zero",
            lambda x, i: jnp.concatenate([x, jnp.zeros((1, 64), x.dtype)])[i],
            lambda: (normal(50000, 64), integers(50001, 1 << 14)),
            torch=lambda x, i: torch.cat([x, torch.zeros(1, 64)])[i],
            bytes=8.0 * 64 * (1 << 14),
        ),
    ]

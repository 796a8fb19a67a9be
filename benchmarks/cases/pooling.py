"""Reductions over windows, as networks and image processing have them, and their gradients. Channels come last."""

from __future__ import annotations

from functools import partial

import numpy as np
from harness import torch
from harness.case import Case, Gradient, normal

import jax
from cases.convolution import first, last
from jax import lax


def maxima(x, size, step):
    return lax.reduce_window(x, -np.inf, lax.max, (1, size, size, 1), (1, step, step, 1), "SAME")


def means(x, size, step):
    return lax.reduce_window(x, 0.0, lax.add, (1, size, size, 1), (1, step, step, 1), "VALID") / size**2


def maxima_torch(x, size, step):
    total = max((-(-x.shape[1] // step) - 1) * step + size - x.shape[1], 0)
    low, high = total // 2, total - total // 2
    if low == high:
        return last(torch.max_pool2d(first(x), size, step, low))
    edges = torch.nn.functional.pad(first(x), (low, high, low, high), value=-torch.inf)
    return last(torch.max_pool2d(edges, size, step))


def means_torch(x, size, step):
    return last(torch.nn.functional.avg_pool2d(first(x), size, step))


def squares(pool):
    return lambda x: (pool(x) ** 2).sum()


def cases():
    found = []
    for kind, pool, pool_torch in (("max", maxima, maxima_torch), ("mean", means, means_torch)):
        for size, step, shape in (
            (2, 2, (8, 56, 56, 64)),
            (3, 2, (8, 112, 112, 64)),
            (3, 1, (16, 28, 28, 192)),
            (5, 1, (4, 100, 100, 3)),
        ):
            one, other = partial(pool, size=size, step=step), partial(pool_torch, size=size, step=step)
            name = f"{kind} {size}×{size}{f' / {step}' if step > 1 else ''}, {shape[0]} × {shape[1]}² × {shape[3]}"
            arguments = partial(lambda shape: (normal(*shape),), shape)
            count = np.prod(shape)
            moved = 4.0 * count * (1 + 1 / step**2)
            found.append(Case(name, one, arguments, torch=other, bytes=moved))
            found.append(
                Case(
                    f"{name}, gradient",
                    jax.grad(squares(one)),
                    arguments,
                    torch=Gradient(squares(other), 1, lambda args, value, g: g[0]),
                    bytes=8.0 * count,
                )
            )
    found.append(
        Case(
            "maximum of 15×15, 1024²",
            lambda x: lax.reduce_window(x, -np.inf, lax.max, (15, 15), (1, 1), "SAME"),
            lambda: (normal(1024, 1024),),
            torch=lambda x: torch.max_pool2d(x[None, None], 15, 1, 7)[0, 0],
            bytes=8.0 * 1024**2,
        )
    )
    return found

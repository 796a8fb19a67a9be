"""While loops whose bodies hold a scalar, a small vector, a dot, a dynamic-update-slice, or a branch; scans."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from harness.case import Case, normal

import jax

MANY, SOME = 10_000, 1000


def scalar(x):
    return jax.lax.fori_loop(0, MANY, lambda i, c: c * 0.999 + 0.1, x)


def collatz(n):
    """A loop whose end depends on the data."""

    def body(state):
        n, steps = state
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1

    return jax.lax.while_loop(lambda s: s[0] != 1, body, (n, jnp.int32(0)))[1]


def vector(x):
    return jax.lax.fori_loop(0, SOME, lambda i, c: c * 0.999 + 0.1 * jnp.sin(c), x)


def dot(w, x):
    return jax.lax.fori_loop(0, SOME, lambda i, c: jnp.tanh(w @ c), x)


def product(w, x):
    return jax.lax.fori_loop(0, SOME, lambda i, c: c @ w, x)


def updates(x):
    """Fibonacci-like: each step reads two elements and writes the next."""

    def body(i, x):
        value = x[i - 1] * 0.5 + x[i - 2] * 0.49
        return jax.lax.dynamic_update_slice(x, value[None], (i,))

    return jax.lax.fori_loop(2, MANY, body, x)


def rows(x):
    def body(i, x):
        row = jax.lax.dynamic_slice(x, (i - 1, 0), (1, x.shape[1]))
        return jax.lax.dynamic_update_slice(x, row * 0.99 + 0.01, (i, 0))

    return jax.lax.fori_loop(1, SOME, body, x)


def branches(x):
    def body(i, x):
        return jax.lax.cond(x.sum() > 0, lambda x: x * 0.9 - 0.1, lambda x: x * 0.8 + 0.2, x)

    return jax.lax.fori_loop(0, SOME, body, x)


def stacked(x):
    def body(c, _):
        c = c * np.float32(0.999) + np.float32(0.01)  # the reference's as well: small differences grow
        return c, c * 2

    return jax.lax.scan(body, x, None, length=SOME)


def summed(xs):
    return jax.lax.scan(lambda c, x: (c + x, c * x), jnp.zeros(xs.shape[1], xs.dtype), xs)


def nested(x):
    def inner(j, c):
        return c * 0.99 + 0.001

    return jax.lax.fori_loop(0, 100, lambda i, c: jax.lax.fori_loop(0, 100, inner, c) + 0.1, x)


def cases() -> list[Case]:
    return [
        Case("10000 scalar steps", scalar, lambda: (np.float32(1),)),
        Case("100 × 100 nested scalar steps", nested, lambda: (np.float32(1),)),
        Case("Collatz from 837799 (524 steps)", collatz, lambda: (np.uint32(837799),), tolerance=0, reference="f32"),
        Case("1000 steps, vector of 64", vector, lambda: (normal(64),)),
        Case(
            "1000 steps, 64 × 64 times a vector",
            dot,
            lambda: (normal(64, 64, scale=0.12), normal(64, seed=1)),
            flops=2.0 * SOME * 64 * 64,
            tolerance=1e-2,
        ),
        Case(
            "1000 steps, 32 × 32 × 32",
            product,
            lambda: (orthogonal(32), normal(32, 32, seed=1)),
            flops=2.0 * SOME * 32**3,
            tolerance=1e-3,
        ),
        Case("10000 steps, update of an element", updates, lambda: (normal(MANY),)),
        Case("1000 steps, update of a row of 256", rows, lambda: (normal(SOME, 256),), bytes=8.0 * SOME * 256),
        Case("1000 steps, branch, vector of 16", branches, lambda: (normal(16),)),
        Case("scan of 1000 steps, stacked results of 64", stacked, lambda: (normal(64),), bytes=4.0 * SOME * 64),
        Case("scan over 1000 rows of 256", summed, lambda: (normal(SOME, 256),), bytes=8.0 * SOME * 256),
    ]


def orthogonal(n):
    return np.linalg.qr(normal(n, n).astype(np.float64))[0].astype(np.float32)

"""Loops that carry an array in parts; and those that only look as if they did."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import graph, normal

from ferrule.ir.verifier import verify
from ferrule.passes.simplify import simplify
from ferrule.passes.split import split
from ferrule.targets.reference import evaluate_block
from jax import lax


def rotated(s):
    x, y, z = s
    return jnp.stack([10 * (y - x), x * (28 - z) - y, x * y - z])


def rows(s):
    return lax.fori_loop(0, 4, lambda i, s: s + 0.01 * rotated(s + 0.005 * rotated(s)), s)


def columns(s):
    """Parts of the last dimension, of several sizes; values from outside; a constant; something broadcast."""
    scale, shift, weights = jnp.arange(1.0, 6), s[:, 0] * 0.1, normal(3, 5)

    def body(i, c):
        a, b = c[:, :2], c[:, 2:]
        new = jnp.concatenate([b[:, :2] * 0.5 + i, jnp.tanh(a).sum(1)[:, None] + b[:, 1:], a[:, 1:]], 1)
        return jnp.where(c > 0, new * scale, c - shift[:, None]) + weights * 0.1

    return lax.fori_loop(0, 5, lambda i, c: pieces(body(i, c)), s)


def pieces(c):
    return jnp.concatenate([c[:, :2] + 1, c[:, 2:] * 2], 1)


def pair(s):
    """Position and velocity in one array, those of each in rows."""

    def force(x):
        a, b = x
        return jnp.stack([b - a, -a * b])

    def body(c):
        s, t = c
        x, v = s[:2], s[2:]
        return s + 0.1 * jnp.concatenate([v, force(x)]), t + 1

    return lax.while_loop(lambda c: c[1] < 6, body, (s, 0))


def until(s):
    """The condition reads the array: it stays whole."""
    return lax.while_loop(lambda s: s[0, 0] < 3, lambda s: s + 0.3 + 0.01 * rotated(s) ** 2, s)


def stacked(s):
    """What is stacked is the whole array."""
    return lax.scan(lambda s, _: (s + 0.01 * rotated(s), s), s, None, length=4)


def shifted(s):
    return lax.fori_loop(0, 5, lambda i, s: jnp.concatenate([s[1:], s[:1] * 0.5]) + s, s)


def summed(s):
    return lax.fori_loop(0, 5, lambda i, s: jnp.stack([s[0] * 0.5, s.sum(0), s[2]]), s)


@pytest.mark.parametrize(
    ("function", "shape", "carries"),
    [
        *((rows, (3, 5), 3), (columns, (3, 5), None), (pair, (4, 3), 4)),
        *((until, (3, 2), 1), (stacked, (3, 2), None), (shifted, (3, 2), 1), (summed, (3, 2), 1)),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_split(function, shape, carries):
    x = (normal(*shape) * 0.5).astype(np.float32)
    before = simplify(graph(function, x))
    after = split(before)
    verify(after, "split")
    (loop,) = [op for op in after.ops if op.name == "while"]
    if carries is not None:
        assert sum(v.shape != () for v in loop.operands) == carries
    for got, want in zip(evaluate_block(after, [x]), evaluate_block(before, [x]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_nothing_is_put_together():
    """The loop of a system of equations has neither slices nor concatenations left."""
    after = split(simplify(graph(rows, normal(3, 7))))
    (loop,) = [op for op in after.ops if op.name == "while"]
    assert not {op.name for op in loop.regions[1].ops} & {"slice", "concatenate", "reshape", "broadcast_in_dim"}

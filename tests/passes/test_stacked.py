"""Reductions of stacked arrays: what becomes elementwise ops, with the same values, and what stays."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import graph, normal

import jax
from ferrule.passes.scatter_sums import scatter_sums
from ferrule.passes.simplify import simplify
from ferrule.passes.stacked import MOST, stacked
from ferrule.targets.reference import evaluate_block
from jax import lax

X, Y, Z = (normal(6, 10, seed=k) for k in range(3))


def names(block):
    return {op.name for op in block.ops}


def before(function, *args):
    """As the stage finds it: a graph of its own."""
    return scatter_sums(simplify(graph(function, *args)))


REPLACED = {
    "sum": lambda x, y, z: jnp.stack([x, y, z]).sum(0),
    "mean of the last": lambda x, y, z: jnp.stack([x, y * 2, z], -1).mean(-1),
    "largest in the middle": lambda x, y, z: jnp.stack([x, y, z], 1).max(1),
    "a start": lambda x, y, z: jnp.stack([x, y, z]).min(0, initial=-0.5),
    "product": lambda x, y, z: jnp.stack([x, jnp.exp(y), z]).prod(0),
    "any": lambda x, y, z: jnp.stack([x > 1, y > 1, z > 1]).any(0),
    "first largest": lambda x, y, z: jnp.stack([x, y, z, x]).argmax(0),
    "first smallest": lambda x, y, z: jnp.stack([x, y, z, x], 2).argmin(2),
    "select": lambda x, y, z: jnp.select([x < -1, y < 0, z < 1], [x * 2, y**2, -z], 7.0),
    "own body": lambda x, y, z: lax.reduce(jnp.stack([x, y, z]), np.float32(0), lambda a, b: a + b + a * b, (0,)),
}


@pytest.mark.parametrize("name", REPLACED)
def test_replaced(name):
    function = REPLACED[name]
    wanted = evaluate_block(graph(function, X, Y, Z), [X, Y, Z])
    block = stacked(before(function, X, Y, Z))
    assert not names(block) & {"reduce", "concatenate"}
    for found, right in zip(evaluate_block(block, [X, Y, Z]), wanted, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-6, atol=1e-6)


STAYS = {
    "read again": lambda x, y, z: (lambda s: (s.sum(0), -s[::-1]))(jnp.stack([x, y, z])),
    "a result": lambda x, y, z: (lambda s: (s.sum(0), s))(jnp.stack([x, y, z])),
    "along the arrays": lambda x, y, z: jnp.stack([x, y, z]).sum(1),
    "not a stack": lambda x, y, z: jnp.concatenate([x, y, z]).sum(0),
    "too many": lambda x, y, z: jnp.stack([x, y, z] * MOST).sum(0),
    "two dimensions": lambda x, y, z: jnp.stack([x, y, z]).sum((0, 1)),
    "sums of bf16, which are rounded once": lambda x, y, z: lax.reduce(
        jnp.stack([x, y, z]).astype(jnp.bfloat16), jnp.bfloat16(0), lax.add, (0,)
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_stays(name):
    assert "reduce" in names(stacked(before(STAYS[name], X, Y, Z)))


def test_ties_go_to_the_first():
    zeros = np.zeros((6, 10), np.float32)
    block = stacked(before(REPLACED["first largest"], X, Y, Z))
    assert (evaluate_block(block, [zeros] * 3)[0] == 0).all()


@pytest.mark.parametrize("name", REPLACED)
def test_compiled(name):
    """The same on the device as NumPy and XLA:CPU have it, with what is no number among the values."""
    args = [a.copy() for a in (X, Y, Z)]
    for k, a in enumerate(args):
        a[k, :4] = [np.nan, np.inf, -np.inf, -0.0]
    cpu, ours = (jax.devices(p)[0] for p in ("cpu", "ferrule"))
    right, found = (jax.jit(REPLACED[name])(*(jax.device_put(a, d) for a in args)) for d in (cpu, ours))
    np.testing.assert_allclose(found, right, rtol=1e-6, atol=1e-6)

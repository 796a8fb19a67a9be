"""Gathers and scatters of a few places that are known (passes/picked.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import graph, normal

import jax
from ferrule.passes.simplify import simplify
from ferrule.targets.reference import evaluate_block

N = 1500
M, X, V = normal(N, 4, 4), normal(N, 6), normal(N, 5)
SYMMETRIC = np.array([[0, 1, 2], [1, 3, 4], [2, 4, 5]])
ROWS, COLUMNS = (np.array(a) for a in ([[0, 1, 2], [3, 3, 0]], [[0, 3, 1], [2, 2, 0]]))  # one place twice
LONG = normal(3, 3000)

# Functions of which nothing is looked up in tables.
KNOWN: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "columns": (lambda x: x[:, np.array([4, 0, 2])], (X,)),
    "columns from the end": (lambda x: x[:, np.array([-1, -6, 2])], (X,)),
    "a symmetric matrix": (lambda x: x[:, SYMMETRIC], (X,)),
    "elements of matrices": (lambda m: m[:, ROWS, COLUMNS], (M,)),
    "past the end": (lambda x: jnp.take(x, np.array([0, 9, -9]), axis=1, mode="clip"), (X,)),
    "filled": (lambda x: jnp.take(x, np.array([0, 9, 2]), axis=1, mode="fill", fill_value=7), (X,)),
    "of two dimensions": (lambda m: m[..., np.array([3, 0, 0])], (M,)),
    "gradient": (jax.grad(lambda x: (x[:, SYMMETRIC] ** 2).sum()), (X,)),
    "gradient of elements": (jax.grad(lambda m: (m[:, ROWS, COLUMNS] ** 3).sum()), (M,)),
    "set": (lambda x, v: x.at[:, np.array([5, 1, 1, 0, 3])].set(v), (X, V)),
    "added": (lambda x, v: x.at[:, np.array([5, 1, 1, 0, 3])].add(v), (X, V)),
    "dropped": (lambda x, v: x.at[:, np.array([6, 1, 17, 0, -8])].add(v, mode="drop"), (X, V)),
    "dropped, set": (lambda x, v: x.at[:, np.array([6, 1, 17, 0, -8])].set(v, mode="drop"), (X, V)),
    "clipped": (lambda x, v: x.at[:, np.array([6, 1, 17, 0, -8])].set(v, mode="clip"), (X, V)),
    "set in two dimensions": (lambda v: jnp.zeros((N, 4, 4)).at[:, ROWS, COLUMNS].set(v[:, None, :3] + ROWS), (V,)),
    "integers": (lambda x, v: x.at[:, np.array([5, 1, 1, 0, 3])].add(v), (X.astype("i2"), V.astype("i2"))),
    "flags": (lambda x, v: x.at[:, np.array([5, 1, 1, 0, 3])].set(v), (X > 0, V > 0)),
}
OTHERS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "rows": (lambda x: x[np.array([2, 0])], (LONG,)),
    "many": (lambda x: x[:, np.arange(17) % 6], (X,)),
    "few elements": (lambda x: x[:60, np.array([4, 0, 2])], (X,)),
    "places that are given": (lambda x, at: x[:, at], (X, np.array([4, 0, 2]))),
    "many columns": (lambda x, v: x.at[:, np.array([0, 900])].add(v), (normal(9, 1000), normal(9, 2))),
    "a few of many": (lambda m, v: m.at[:, np.array([0, 3, 3, 0, 2]), np.array([1, 2, 2, 1, 0])].add(v), (M, V)),
    "one column": (lambda x, v: x.at[:, np.array([3])].set(v[:, :1]), (X, V)),
    "multiplied": (lambda x, v: x.at[:, np.array([5, 1, 1, 0, 3])].multiply(v), (X, V)),
}


@pytest.mark.parametrize("name", [*KNOWN, *OTHERS])
def test_places(name: str) -> None:
    f, args = (KNOWN | OTHERS)[name]
    block = graph(f, *args)
    assert block.holds("gather", "scatter")
    want = evaluate_block(block, list(args))
    simple = simplify(graph(f, *args))
    assert simple.holds("gather", "scatter") == (name in OTHERS)
    for found, wanted in zip(evaluate_block(simple, list(args)), want, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)

"""Scatters of many numbers into few places become tables of parts: which do, and that they mean the same."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import graph

import jax
from ferrule.ir.verifier import verify
from ferrule.passes.expand import expand
from ferrule.passes.simplify import simplify
from ferrule.targets.cpu import host
from ferrule.targets.reference import evaluate_block

R = np.random.default_rng(11)
MANY = 1 << 18
MACHINE = replace(host(), threads=2)


def tables(function, *args: np.ndarray, machine=MACHINE) -> tuple[int, int]:
    """How many tables, and how many take turns, of the only scatter; the results stay what they were."""
    before = simplify(graph(function, *args))
    wanted = evaluate_block(before, [*args])
    after = expand(before, machine)
    verify(after, "expand")
    for found, value in zip(evaluate_block(after, [*args]), wanted, strict=True):
        np.testing.assert_array_equal(found, value)
    (op,) = [op for op in after.walk() if op.name in ("scatter", "scatter_tables")]
    return (op.attrs["tables"], op.attrs["turns"]) if op.name == "scatter_tables" else (0, 0)


def places(count: int, bins: int) -> np.ndarray:
    return R.integers(-bins, 2 * bins, count).astype(np.int32)


def counts(bins: int, dtype: str = "int32"):
    return lambda at: jnp.zeros(bins, dtype).at[at].add(1)


@pytest.mark.parametrize("dtype", ["int8", "uint32", "int32", "float32"])
def test_counts(dtype: str) -> None:
    assert tables(counts(100, dtype), places(MANY, 100))[0] > 2


@pytest.mark.parametrize("kind", ["max", "min", "mul", "add"])
def test_bodies(kind: str) -> None:
    old, new = (R.integers(-9, 9, n).astype(np.int32) for n in (50, MANY))
    assert tables(lambda x, at, u: getattr(x.at[at], kind)(u), old, places(MANY, 50), new)[0]


def test_flags() -> None:
    flags = R.integers(0, 2, MANY).astype(bool)
    assert tables(lambda at, u: jnp.zeros(50, bool).at[at].max(u), places(MANY, 50), flags)[0]


def test_two_indices_and_batches() -> None:
    assert tables(lambda a, b: jnp.zeros((9, 20), int).at[a, b].add(1), places(MANY, 9), places(MANY, 20))[0]
    rows = places(MANY, 30).reshape(4, -1)
    assert tables(jax.vmap(lambda at: jnp.zeros(30, int).at[at].add(1)), rows)[0]


def test_what_stays() -> None:
    at = places(MANY, 50)
    few, many = places(500, 50), places(MANY, MANY)
    rows = np.ones((MANY, 3), np.float32)
    assert tables(counts(50), few) == (0, 0)
    assert tables(counts(MANY), many) == (0, 0)
    assert tables(lambda at, u: jnp.zeros((50, 3)).at[at].add(u), at, rows) == (0, 0)
    assert tables(lambda at: jnp.ones(50).at[at].multiply(1.0), at) == (0, 0)
    alone = R.permutation(MANY).astype(np.int32)
    assert tables(lambda at: jnp.zeros(MANY, int).at[at].add(1, unique_indices=True), alone) == (0, 0)

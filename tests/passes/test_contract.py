"""A product and the sum that alone reads it become one op (tests/jax/test_rounded_once.py looks at values)."""

from __future__ import annotations

import operator
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import graph, normal

import jax
from ferrule.ir import Block, Op
from ferrule.passes.contract import contract
from ferrule.passes.simplify import simplify

X, Y, Z = (normal(1000, seed=s) for s in range(3))


def names(f: Callable, *args: np.ndarray) -> list[str]:
    ops: list[Op] = list(contract(simplify(graph(f, *args))).walk())
    return [op.name for op in ops if op.name in ("multiply", "add", "subtract", "multiply_add", "negate")]


@pytest.mark.parametrize("op", [operator.add, operator.sub])
@pytest.mark.parametrize("first", [True, False])
def test_what_is_left(op: Callable, first: bool) -> None:
    left = names(lambda x, y, z: op(x * y, z) if first else op(z, x * y), X, Y, Z)
    assert left.count("multiply_add") == 1 and not {"multiply", "add", "subtract"} & set(left)


APART: dict[str, Callable] = {
    "two products": lambda x, y, z: x * y + y * z,
    "read twice": lambda x, y, z: (x * y + z, jnp.sin(x * y)),
    "a result": lambda x, y, z: (x * y, x * y + z),
    "with itself": lambda x, y, z: x * y - x * y + z,
    "integers": lambda x, y, z: x.astype(int) * y.astype(int) + z.astype(int),
    "bf16": lambda x, y, z: (x.astype(jnp.bfloat16) * y.astype(jnp.bfloat16)) + z.astype(jnp.bfloat16),
    "complex": lambda x, y, z: (x + 1j * y) * (z + 1j * x) + (y + 1j * z),
}


@pytest.mark.parametrize("name", APART)
def test_left_alone(name: str) -> None:
    assert "multiply_add" not in names(APART[name], X, Y, Z)


def test_inside_of_loops_and_branches() -> None:
    def f(x: jax.Array, y: jax.Array, n: jax.Array) -> jax.Array:
        def body(i: jax.Array, c: jax.Array) -> jax.Array:
            return jax.lax.cond(c[0] > 0, lambda c: c * y + x, lambda c: c - y * x, c)

        return jax.lax.fori_loop(0, n, body, x)

    assert names(f, X, Y, np.int32(3)).count("multiply_add") == 2


def test_bodies_of_reductions_are_left_alone() -> None:
    def f(x: jax.Array) -> jax.Array:
        return jax.lax.reduce((x, x), (np.float32(0), np.float32(0)), lambda a, b: (a[0] * b[1] + b[0], b[1]), (0,))

    assert "multiply_add" not in names(f, X)


def test_nothing_to_do() -> None:
    block: Block = simplify(graph(lambda x: jnp.sin(x), X))
    assert contract(block) is block

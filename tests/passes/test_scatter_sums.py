"""Sums of what is scattered into zeros become one chain of scatters: which do, and that they mean the same."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import graph

import jax
from ferrule.ir import Block
from ferrule.ir.verifier import verify
from ferrule.passes.scatter_sums import scatter_sums
from ferrule.passes.simplify import simplify
from ferrule.targets.reference import evaluate_block
from jax import lax

R = np.random.default_rng(11)
TABLE = R.integers(-9, 9, (20, 3)).astype(np.float32)
AT = R.integers(0, 20, (4, 30)).astype(np.uint32)  # many of them the same; none is counted from the end


def results(function, *args: np.ndarray) -> Block:
    """The graph after the pass, whose results are those of the graph before."""
    before = simplify(graph(function, *args))
    wanted = evaluate_block(before, [*args])
    after = scatter_sums(simplify(graph(function, *args), ours=True))
    verify(after, "scatter_sums")
    for found, value in zip(evaluate_block(after, [*args]), wanted, strict=True):
        np.testing.assert_array_equal(found, value)
    return after


def zeros_and_sums(block: Block) -> tuple[int, int]:
    """Scatters into constants, and additions outside of scatters' regions."""
    scatters = [op for op in block.walk() if op.name == "scatter"]
    inside = {op for s in scatters for r in s.regions for op in r.walk()}
    into = sum(s.operands[0].op is not None and s.operands[0].op.name == "constant" for s in scatters)
    return into, sum(op.name == "add" and op not in inside and op.result.dtype.name != "uint32" for op in block.walk())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "complex64"])
def test_gradients_of_several_gathers(dtype: str) -> None:
    def function(table, at):
        return sum(jnp.zeros_like(table).at[i].add(table[i] * (k + 2)) for k, i in enumerate(at))

    block = results(function, TABLE.astype(jnp.dtype(dtype)), AT)
    assert zeros_and_sums(block) == (1, 0)
    assert sum(op.name == "scatter" for op in block.walk()) == 4


def test_pairs_of_sums() -> None:
    def function(table, at):
        parts = [jnp.zeros_like(table).at[i].add(table[i]) for i in at]
        return (parts[0] + parts[1]) + (parts[2] + parts[3])

    assert zeros_and_sums(results(function, TABLE, AT)) == (1, 0)


def test_other_shapes_of_updates() -> None:
    def function(table, at):
        one = jnp.zeros_like(table).at[at[0]].add(table[at[1]])
        return one + jnp.zeros_like(table).at[at[2], 1].add(table[at[3], 0])

    assert zeros_and_sums(results(function, TABLE, AT)) == (1, 0)


def test_through_reshapes() -> None:
    """Windows over neighbouring dimensions were joined by simplify."""

    def function(table, at):
        wide = table[:, None] * jnp.ones((1, 2, 1), table.dtype)
        one, two = (jnp.zeros_like(wide).at[at[k]].add(wide[at[k + 1]]) for k in (0, 2))
        return one + two

    assert zeros_and_sums(results(function, TABLE, AT)) == (1, 0)


@pytest.mark.parametrize(
    "function",
    [
        lambda t, at: (a := jnp.zeros_like(t).at[at[0]].add(t[at[1]])) + a,
        lambda t, at: (a := jnp.zeros_like(t).at[at[0]].add(t[at[1]]), a + jnp.zeros_like(t).at[at[2]].add(t[at[3]])),
        lambda t, at: jnp.zeros_like(t).at[at[0]].add(t[at[1]]) + t,
        lambda t, at: jnp.zeros_like(t).at[at[0]].max(t[at[1]]) + jnp.zeros_like(t).at[at[2]].add(t[at[3]]),
        lambda t, at: jnp.ones_like(t).at[at[0]].add(t[at[1]]) + jnp.zeros_like(t).at[at[2]].add(t[at[3]]),
        lambda t, at: (-jnp.zeros_like(t)).at[at[0]].add(t[at[1]]) + jnp.zeros_like(t).at[at[2]].add(t[at[3]]),
    ],
    ids=["twice the same", "read elsewhere", "dense", "maxima", "into ones", "into negative zeros"],
)
def test_what_stays(function) -> None:
    assert zeros_and_sums(results(function, TABLE, AT))[1] == 1


def test_in_loops() -> None:
    def function(table, at):
        def step(total, i):
            part = jnp.zeros_like(table).at[i].add(table[i]) + jnp.zeros_like(table).at[i + 1].add(table[i])
            return total + part, total[0, 0]

        return lax.scan(step, jnp.zeros_like(table), at)

    assert zeros_and_sums(results(function, TABLE, AT))[0] == 1


def test_as_a_gradient() -> None:
    def loss(table, at):
        return sum((table[i] ** 3).sum() for i in at)

    assert zeros_and_sums(results(jax.grad(loss), TABLE, AT))[0] == 1

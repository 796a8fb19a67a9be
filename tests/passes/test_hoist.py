"""Work of loops that is the same in every iteration, and work that only looks so."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import graph, normal

import jax
from ferrule.ir.verifier import verify
from ferrule.passes.hoist import hoist
from ferrule.passes.match import match
from ferrule.passes.simplify import simplify
from ferrule.passes.turn import turn
from ferrule.targets.reference import evaluate_block
from jax import lax


def products(w, x):
    """A product and what follows it go; what reads the carry stays, and so does what is cheap."""
    return lax.fori_loop(0, 4, lambda i, c: c * 0.5 + jnp.tanh(w @ w.T * 0.1 + 1) @ c + (w[0] * 2 - 1), x)


def sums(w, x):
    """A cheap expression goes with the sum that needs it, not for its own sake."""

    def body(c):
        c, n = c
        scaled = w * 2 + 1
        return c + scaled.sum(0) + scaled[0], n + 1

    return lax.while_loop(lambda c: c[1] < 5, body, (x, 0))[0]


def nested(w, x):
    def inner(i, c):
        return c + jnp.exp(w[0]) * jnp.sort(w[1]) + jnp.cos(x)

    return lax.fori_loop(0, 3, lambda i, c: lax.fori_loop(0, 2, inner, c) * 0.5, x)


def never(w, x):
    return lax.while_loop(lambda c: c[0] > 1e30, lambda c: c + jnp.exp(w[0]), x)


def changing(w, x):
    return lax.fori_loop(0, 4, lambda i, c: c + jnp.exp(-c) + jnp.sin(w[0] * i), x)


@pytest.mark.parametrize(
    ("function", "left"),
    [
        *((products, {"dot_general"}), (sums, set()), (nested, set()), (never, set())),
        *((changing, {"exponential", "sine"}),),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_hoist(function, left):
    w, x = normal(6, 6), normal(6)
    before = simplify(graph(function, w, x))
    after = simplify(hoist(before))
    verify(after, "hoist")
    heavy = {"dot_general", "reduce", "exponential", "sine", "cosine", "sort", "tanh"}
    loops = [op for op in after.walk() if op.name == "while"]
    assert {op.name for loop in loops for op in loop.regions[1].walk()} & heavy == left
    for got, want in zip(evaluate_block(after, [w, x]), evaluate_block(before, [w, x]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_effects_stay():
    """Random numbers without a state are others in each iteration."""

    def function(w, x):
        return lax.fori_loop(0, 3, lambda i, c: c + jnp.exp(lax.rng_uniform(jnp.float32(0), w[0, 0], (4,))), x)

    after = hoist(match(simplify(graph(function, normal(4, 4), normal(4)))))
    (loop,) = [op for op in after.ops if op.name == "while"]
    assert {"rng", "exponential"} <= {op.name for op in loop.regions[1].walk()}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_matrices_that_products_read_across_are_transposed_once(dtype):
    """x @ Wᵀ in a loop: the product reads rows of a copy; of a matrix that changes, and of one row, it stays."""

    def function(w, v, x):
        def body(i, c):
            y, z, w1 = c
            return jnp.tanh(y @ w.T @ v), z @ w.T @ v, w1 + (y @ w1.T).T @ y

        return lax.fori_loop(0, 3, body, (x, x[:1], v[:40, :40]))

    with jax.enable_x64(dtype == np.float64):
        args = [a.astype(dtype) * 0.1 for a in (normal(70, 40), normal(70, 40, seed=1), normal(5, 40))]
        after = turn(hoist(match(simplify(graph(function, *args)))))
    (loop,) = [op for op in after.ops if op.name == "while"]
    calls = [op for op in loop.regions[1].ops if op.name == "library"]
    turned = {op for op in after.ops if op.name == "transpose"}
    assert [op.operands[1].op in turned for op in calls].count(True) == 1
    for op in calls:
        if op.operands[1].op in turned:
            assert op.attrs["attrs"]["b_strides"] == (0, 70, 1) and op.attrs["attrs"]["m"] == 5
    verify(after, "turn")


def rows_times(x, w, v, steps):
    """Two products of few rows in a loop, one of them by a transposed matrix."""

    def body(c, _):
        y = jnp.tanh(c @ w)
        return jnp.tanh(y @ v.T + 0.1), y

    return lax.scan(body, x, None, length=steps)


@pytest.mark.parametrize(
    ("rows", "k", "n", "packs"), [(2, 64, 128, 2), (5, 48, 64, 1), (64, 64, 64, 2), (65, 64, 128, 0)]
)
def test_matrices_of_products_in_loops_are_packed_once(rows, k, n, packs):
    """In panels where whole ones fit, not for many rows; for both products with and without a transpose."""
    w, v, x = normal(k, n) * 0.2, normal(k, n, seed=1) * 0.2, normal(rows, k, seed=2)
    w, v, x = (a.astype(np.float32) for a in (w, v, x))
    after = turn(hoist(match(simplify(graph(lambda w, v, x: rows_times(x, w, v, 6), w, v, x)))))
    verify(after, "turn")
    assert sum(op.name == "library" and op.attrs["target"] == "gemm.pack" for op in after.ops) == packs
    (loop,) = [op for op in after.ops if op.name == "while"]
    calls = [op for op in loop.regions[1].walk() if op.name == "library"]
    assert sum(op.attrs["attrs"].get("packed", False) for op in calls) == packs


@pytest.mark.parametrize(("size", "steps"), [(64, 2), (512, 6)])
def test_few_iterations_and_large_parameters_are_not_packed(size, steps):
    """Panels are not worth it for two products; those of a large parameter are kept by the runtime anyway."""
    w, x = normal(size, size).astype(np.float32), normal(4, size).astype(np.float32)
    after = turn(hoist(match(simplify(graph(lambda w, x: rows_times(x, w, w, steps)[0], w, x)))))
    targets = [op.attrs["target"] for op in after.walk() if op.name == "library"]
    assert "gemm" in targets and "gemm.pack" not in targets


def test_a_matrix_of_nested_loops_is_packed_before_both():
    w, x = normal(64, 64).astype(np.float32) * 0.1, normal(4, 64).astype(np.float32)

    def function(w, x):
        return lax.fori_loop(0, 5, lambda i, c: lax.fori_loop(0, 5, lambda j, d: jnp.tanh(d @ w), c) + 1, x)

    after = turn(hoist(match(simplify(graph(function, w, x)))))
    assert [op.attrs["target"] for op in after.ops if op.name == "library"] == ["gemm.pack"]
    (loop,) = [op for op in after.ops if op.name == "while"]
    assert "gemm.pack" not in {op.attrs["target"] for op in loop.regions[1].walk() if op.name == "library"}

"""shard_map: collectives on one and two axes, in loops and branches, partly manual, nested."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from meshes import COUNT, P, X, Y, grid, line, numbers, put

import jax
from jax import lax

N = COUNT
A = numbers(2 * N, 3 * N)
ROWS = A.reshape(N, 2, 3 * N)  # what device i has of A split along dimension 0


SPLIT = P("i")


def mapped(body: Any, out: Any = SPLIT, spec: Any = SPLIT, **options: Any) -> Any:
    return jax.jit(jax.shard_map(body, mesh=line(), in_specs=spec, out_specs=out, **options))


@pytest.mark.parametrize(
    "reduce, expected",
    [(lax.psum, ROWS.sum(0)), (lax.pmean, ROWS.mean(0)), (lax.pmax, ROWS.max(0)), (lax.pmin, ROWS.min(0))],
    ids=["psum", "pmean", "pmax", "pmin"],
)
def test_reductions(reduce: Any, expected: np.ndarray) -> None:
    result = mapped(lambda a: reduce(a, "i"), P())(A)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    shards = [np.asarray(s.data) for s in result.addressable_shards]
    assert len(shards) == N and all((s == shards[0]).all() for s in shards)


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int32", "bfloat16", "float16", "complex64", "int4", "float8_e4m3fn"]
)
def test_sums_of_every_kind(dtype: str) -> None:
    small = (np.arange(2 * N) % 3).astype(jnp.dtype(dtype))
    result = mapped(lambda a: lax.psum(a, "i"), P())(small)
    expected = small.astype(np.complex64).reshape(N, 2).sum(0)
    if dtype == "int4":
        expected = (expected.real.astype(int) + 8) % 16 - 8
    np.testing.assert_array_equal(np.asarray(result).astype(np.complex64), expected)


def test_gather_and_scatter() -> None:
    np.testing.assert_array_equal(mapped(lambda a: lax.all_gather(a, "i", tiled=True), P(), check_vma=False)(A), A)
    stacked = mapped(lambda a: lax.all_gather(a, "i", axis=1), P(None, None), check_vma=False)(A)
    np.testing.assert_array_equal(stacked, ROWS.transpose(1, 0, 2))
    scattered = mapped(lambda a: lax.psum_scatter(a, "i", scatter_dimension=1, tiled=True), P(None, "i"))(A)
    np.testing.assert_allclose(scattered, ROWS.sum(0), rtol=1e-5, atol=1e-6)


def test_all_to_all() -> None:
    turned = mapped(lambda a: lax.all_to_all(a, "i", 1, 0, tiled=True), P(None, "i"))(A)
    np.testing.assert_array_equal(turned, A)


@pytest.mark.parametrize("pairs", [[(i, (i + 1) % N) for i in range(N)], [(0, 2), (3, 1)], [(1, 1)]])
def test_permute(pairs: list[tuple[int, int]]) -> None:
    result = mapped(lambda a: lax.ppermute(a, "i", pairs))(A)
    expected = np.zeros_like(ROWS)
    for source, target in pairs:
        expected[target] = ROWS[source]
    np.testing.assert_array_equal(result, expected.reshape(A.shape))


def test_axis_index_on_a_grid() -> None:
    def body() -> Any:
        return (10 * lax.axis_index("x") + lax.axis_index("y")).reshape(1, 1)

    result = jax.jit(jax.shard_map(body, mesh=grid(), in_specs=(), out_specs=P("x", "y")))()
    np.testing.assert_array_equal(result, 10 * np.arange(X)[:, None] + np.arange(Y))


@pytest.mark.parametrize("axes", ["x", "y", ("x", "y"), ("y", "x")])
def test_sums_along_axes_of_a_grid(axes: Any) -> None:
    spec = P("x", "y")
    body = partial(lax.psum, axis_name=axes)
    kept = P(*(None if n in axes else n for n in "xy"))
    result = jax.jit(jax.shard_map(body, mesh=grid(), in_specs=spec, out_specs=kept))(A)
    tiles = A.reshape(X, A.shape[0] // X, Y, A.shape[1] // Y)
    over = tuple({"x": 0, "y": 2}[n] for n in axes)
    expected = tiles.sum(over, keepdims=True)
    expected = expected.reshape(expected.shape[0] * expected.shape[1], -1)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_a_dimension_split_along_two_axes() -> None:
    """The order of the axes decides which device holds which part."""
    body = lambda a: a + 100 * (Y * lax.axis_index("x") + lax.axis_index("y"))  # noqa: E731
    for axes, order in ((("x", "y"), (0, 1)), (("y", "x"), (1, 0))):
        spec = P(axes)
        result = jax.jit(jax.shard_map(body, mesh=grid(), in_specs=spec, out_specs=spec))(A)
        place = np.arange(N).reshape(X, Y).transpose(order).reshape(-1)
        np.testing.assert_allclose(result, A + 100 * np.repeat(place, 2)[:, None], rtol=1e-5)


def test_matrix_product_by_a_ring() -> None:
    """Blocks of b travel around while partial products are made: a loop with a permute in it."""
    b = numbers(3 * N, 5, seed=1)

    def body(a: Any, b: Any) -> Any:
        me, width = lax.axis_index("i"), b.shape[0]

        def step(k: Any, carry: Any) -> Any:
            total, block = carry
            at = (me + k) % N
            total = total + lax.dynamic_slice(a, (0, at * width), (a.shape[0], width)) @ block
            return total, lax.ppermute(block, "i", [(d, (d - 1) % N) for d in range(N)])

        start = lax.pcast(jnp.zeros((a.shape[0], b.shape[1])), "i", to="varying")
        return lax.fori_loop(0, N, step, (start, b))[0]

    result = mapped(body, spec=(P("i"), P("i")))(A, b)
    np.testing.assert_allclose(result, A @ b, rtol=1e-4, atol=1e-4)


def test_collectives_in_loops_and_branches() -> None:
    def body(a: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            more = lax.cond(lax.psum(carry.sum(), "i") > 0, lambda: lax.psum(a, "i"), lambda: -lax.psum(2 * a, "i"))
            return carry + more, carry.sum()

        return lax.scan(step, a, None, length=3)[0]

    expected = ROWS
    for _ in range(3):
        expected = expected + (ROWS.sum(0) if expected.sum() > 0 else -2 * ROWS.sum(0))
    np.testing.assert_allclose(mapped(body)(A), expected.reshape(A.shape), rtol=1e-3, atol=1e-3)


def test_partly_manual() -> None:
    """Along y, which stays automatic, the body sees the whole."""

    def body(a: Any) -> Any:
        return lax.psum(a, "x") @ jnp.ones((a.shape[1], 2)) + lax.axis_index("x")

    f = jax.jit(jax.shard_map(body, mesh=grid(), in_specs=P("x"), out_specs=P("x"), axis_names={"x"}))
    total = A.reshape(X, -1, A.shape[1]).sum(0).sum(1, keepdims=True).repeat(2, 1)
    expected = np.concatenate([total + i for i in range(X)])
    for value in (A, put(A, grid(), "x", "y"), put(A, grid(), None, "y")):
        np.testing.assert_allclose(f(value), expected, rtol=1e-4, atol=1e-4)


def test_nested() -> None:
    """Inside, the parts of different x hold different data: a gather must stay within one x."""

    def outer(a: Any) -> Any:
        inner = jax.shard_map(
            lambda b: b * (1 + lax.axis_index("y")), in_specs=P(None, "y"), out_specs=P(None, "y"), axis_names={"y"}
        )
        return inner(a) + a.sum() + lax.axis_index("x")

    f = jax.jit(jax.shard_map(outer, mesh=grid(), in_specs=P("x"), out_specs=P("x"), axis_names={"x"}))
    scale = np.repeat(1 + np.arange(Y), A.shape[1] // Y)
    parts = A.reshape(X, -1, A.shape[1])
    expected = np.concatenate([p * scale + p.sum() + i for i, p in enumerate(parts)])
    np.testing.assert_allclose(f(A), expected, rtol=1e-4, atol=1e-4)


def test_between_whole_and_part() -> None:
    """Manual computations among ordinary ops, with values used on both sides."""
    halves = jax.shard_map(lambda a: a / lax.psum(a, "i"), mesh=line(), in_specs=P("i"), out_specs=P("i"))

    def f(a: Any) -> Any:
        b = jnp.tanh(a)
        c = halves(b) * a
        return (halves(c) + b.T.sum(0, keepdims=True).T, c.sum())

    def by_hand(a: np.ndarray) -> Any:
        def over(v: np.ndarray) -> np.ndarray:
            return (v.reshape(N, 2, -1) / v.reshape(N, 2, -1).sum(0)).reshape(v.shape)

        b = np.tanh(a)
        c = over(b) * a
        return over(c) + b.T.sum(0, keepdims=True).T, c.sum()

    positive = np.abs(A) + 0.1
    for value in (positive, put(positive, line(), "i"), put(positive, line(), None, "i")):
        for result, expected in zip(jax.jit(f)(value), by_hand(positive), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-4)


def test_gradients() -> None:
    w = numbers(3 * N, 4, seed=2)

    def loss(w: Any, a: Any) -> Any:
        return lax.pmean((jnp.tanh(a @ w) ** 2).mean(), "i")

    f = jax.jit(jax.grad(jax.shard_map(loss, mesh=line(), in_specs=(P(), P("i")), out_specs=P())))
    expected = jax.grad(lambda w: (jnp.tanh(A @ w) ** 2).mean())(jax.device_put(w, jax.devices("cpu")[0]))
    np.testing.assert_allclose(f(w, A), expected, rtol=1e-4, atol=1e-6)


def test_a_part_goes_straight_through() -> None:
    """What enters and leaves under one tiling is not gathered: the program has no collective."""
    f = jax.jit(jax.shard_map(lambda a: a + 1, mesh=line(), in_specs=P("i"), out_specs=P("i")))
    compiled = f.lower(put(A, line(), "i")).compile()
    np.testing.assert_array_equal(compiled(put(A, line(), "i")), A + 1)
    assert compiled.cost_analysis()["bytes accessed"] == 2 * A.nbytes / N

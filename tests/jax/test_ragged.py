"""Products of groups of rows as one call: beside float64, with groups of all kinds, and that the call is there."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

import jax
from ferrule.passes import ragged
from ferrule.pipeline import compile_program
from ferrule.program import Call

RNG = np.random.default_rng(0)
GROUPS = {
    "even": [50] * 4,
    "uneven, some empty": [0, 120, 0, 30],
    "more than rows": [150, 100, 20, 5],
    "none": [0, 0, 0, 0],
    "many": [3] * 64,
}


def targets(function, *args) -> list[str]:
    program = compile_program(str(jax.jit(function).lower(*args).compiler_ir("stablehlo")).encode())
    return [step.target for block in program.blocks for step in block if isinstance(step, Call)]


EPSILON = {"float64": 1e-14, "float32": 1e-6, "bfloat16": 4e-3, "float16": 5e-4}


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor without instructions for bf16."""
    monkeypatch.setattr(ragged, "FEWEST_NARROW", 2)


def arguments(sizes: list[int], dtype: str) -> tuple[np.ndarray, ...]:
    x, w = RNG.standard_normal((200, 40)), RNG.standard_normal((len(sizes), 40, 64))
    return x.astype(jnp.dtype(dtype)), w.astype(jnp.dtype(dtype)), np.array(sizes, np.int32)


def rows_of(sizes: np.ndarray) -> list[slice]:
    ends = np.cumsum(sizes)
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def reference(x: np.ndarray, w: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    y = np.zeros((len(x), w.shape[2]))
    for matrix, rows in zip(w.astype("d"), rows_of(sizes), strict=True):
        y[rows] = x[rows].astype("d") @ matrix
    return y


def close(got: jax.Array, want: np.ndarray, dtype: str) -> None:
    assert got.dtype == dtype
    scale = np.abs(np.nan_to_num(want)).max() + 1
    np.testing.assert_allclose(np.asarray(got).astype("d"), want, rtol=0, atol=scale * EPSILON[dtype])


@pytest.mark.parametrize("sizes", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("dtype", EPSILON)
def test_rows(sizes, dtype):
    with jax.enable_x64(True):
        args = arguments(sizes, dtype)
        assert "gemm.ragged" in targets(jax.lax.ragged_dot, *args)
        close(jax.jit(jax.lax.ragged_dot)(*args), reference(*args), dtype)


@pytest.mark.parametrize("sizes", GROUPS.values(), ids=GROUPS)
def test_gradients(sizes):
    x, w, sizes = arguments(sizes, "float32")
    slope = jax.grad(lambda x, w: (jax.lax.ragged_dot(x, w, sizes) ** 2).sum() / 2, (0, 1))
    assert targets(slope, x, w).count("gemm.ragged") == 3
    dx, dw = jax.jit(slope)(x, w)
    y = reference(x, w, sizes)
    want_dx, want_dw = np.zeros(x.shape), np.zeros(w.shape)
    for g, rows in enumerate(rows_of(sizes)):
        want_dx[rows] = y[rows] @ w[g].T.astype("d")
        want_dw[g] = x[rows].T.astype("d") @ y[rows]
    close(dx, want_dx, "float32")
    close(dw, want_dw, "float32")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_short_floats_into_f32(dtype):
    x, w, sizes = arguments([60, 0, 90, 20], dtype)
    wide = partial(jax.lax.ragged_dot, preferred_element_type=jnp.float32)
    assert "gemm.ragged" in targets(wide, x, w, sizes)
    close(jax.jit(wide)(x, w, sizes), reference(x, w, sizes), "float32")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", EPSILON)
def test_zero_times_what_is_not_finite(bad, dtype):
    """What the call leaves out is zero times the other groups' matrices, which may be NaN."""
    with jax.enable_x64(True):
        check_not_finite(bad, dtype)


def check_not_finite(bad, dtype):
    x, w, sizes = arguments([60, 0, 90, 20], dtype)
    w[1, 3, 7] = w[2, 39, 63] = bad
    want = np.zeros((200, 64))
    for g, rows in enumerate(rows_of(sizes)):
        alone = np.zeros(x.shape)
        alone[rows] = x[rows]
        with np.errstate(invalid="ignore"):
            want += alone @ w[g].astype("d")
    got = jax.jit(jax.lax.ragged_dot)(x, w, sizes)
    assert np.isnan(want).sum() > 200
    close(got, want, dtype)


def masked(x, start, end, flip: bool = False):
    place = jax.lax.broadcasted_iota(jnp.int32, (len(start), len(x), x.shape[1]), 1)
    start, end = start[:, None, None], end[:, None, None]
    inside = (place >= start) & (end > place) if flip else (start <= place) & (place < end)
    return jnp.where(inside, x[None], 0)


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_any_bounds(flip, dtype):
    """Groups that overlap, that run backwards, and that reach beyond the rows."""

    def f(x, w, start, end):
        return jnp.einsum("gmk,gkn->mn", masked(x, start, end, flip), w)

    def sums(x, y, start, end):
        return jnp.einsum("gmk,gmn->gkn", masked(x, start, end, flip), masked(y, start, end, flip))

    for start, end in (([0, 50, 40, 190], [60, 100, 30, 230]), ([-20, 100, 0, 7], [10, 200, 300, 7])):
        x, w, _ = arguments(start, dtype)
        bounds = np.array(start, np.int32), np.array(end, np.int32)
        assert "gemm.ragged" in targets(f, x, w, *bounds)
        want, y = np.zeros((200, 64)), RNG.standard_normal((200, 64)).astype(x.dtype)
        want_sums = np.zeros(w.shape)
        for g, (a, b) in enumerate(zip(np.maximum(start, 0), end, strict=True)):
            want[a:b] += x[a:b].astype("d") @ w[g].astype("d")
            want_sums[g] = x[a:b].T.astype("d") @ y[a:b].astype("d")
        close(jax.jit(f)(x, w, *bounds), want, dtype)
        assert "gemm.ragged" in targets(sums, x, y, *bounds)
        close(jax.jit(sums)(x, y, *bounds), want_sums, dtype)


def test_what_only_looks_like_it():
    """Other bounds on both sides, another comparison, something else than zero elsewhere."""
    x, w, _ = arguments([1] * 4, "float32")
    y = RNG.standard_normal((200, 64)).astype("f")
    start, end = np.array([0, 50, 100, 150], np.int32), np.array([50, 100, 150, 200], np.int32)
    place = np.arange(200)[None, :, None]

    def other_bounds(x, y):
        return jnp.einsum("gmk,gmn->gkn", masked(x, start, end), masked(y, start, end - 1))

    def included(x, w):
        inside = (start[:, None, None] <= place) & (place <= end[:, None, None])
        return jnp.einsum("gmk,gkn->mn", jnp.where(inside, x[None], 0), w)

    def ones(x, w):
        inside = (start[:, None, None] <= place) & (place < end[:, None, None])
        return jnp.einsum("gmk,gkn->mn", jnp.where(inside, x[None], 1), w)

    for function, args in ((other_bounds, (x, y)), (included, (x, w)), (ones, (x, w))):
        assert "gemm.ragged" not in targets(function, *args)
        close(jax.jit(function)(*args), np.asarray(function(*(a.astype("d") for a in args))), "float32")

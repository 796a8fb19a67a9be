"""LU factors of matrices of any size and what JAX makes of them: solutions, inverses, determinants, gradients."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.linalg import lu, lu_factor, lu_solve
from test_small_lu import kinds, normal, on

import jax


def test_no_handler_of_jaxlib_is_called():
    targets = kinds(jnp.linalg.solve, normal(100, 100), normal(100))
    assert targets[:2] == ["lu", "ferrule.lu_permutation"] and not any("lapack" in target for target in targets)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(65, 65), (3, 130, 130), (300, 300), (5, 70, 200), (333, 90)], ids=str)
def test_factors_and_permutations(device, shape, dtype):
    with jax.enable_x64(True):
        a, steps = normal(*shape, dtype=dtype), min(shape[-2:])
        got = on(device.platform, jax.lax.linalg.lu, a)
        factors, pivots, permutation = got
        lower = np.tril(factors[..., :, :steps].astype("f8"), -1) + np.eye(shape[-2], steps)
        product = lower @ np.triu(factors[..., :steps, :].astype("f8"))
        moved = np.take_along_axis(a, permutation[..., None], -2)
        np.testing.assert_allclose(product, moved, rtol=0, atol=400 * np.finfo(dtype).eps)
        for g, w in zip((pivots, permutation), on("cpu", jax.lax.linalg.lu, a)[1:], strict=True):
            np.testing.assert_array_equal(g, w)


@pytest.mark.parametrize("n", [100, 260])
def test_everything_that_is_made_of_factors(device, n):
    a, b = (normal(n, n) + 2 * n**0.5 * np.eye(n)).astype("f4") / n**0.5, normal(n, 5, seed=1)

    def run(a, b):
        solved = jnp.linalg.solve(a, b), jnp.linalg.inv(a), lu_solve(lu_factor(a), b), lu_solve(lu_factor(a), b, 1)
        return *solved, *jnp.linalg.slogdet(a), *lu(a)

    got, want = on(device.platform, run, a, b), on("cpu", run, a, b)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-3, atol=2e-4 * np.abs(w).max())
    wide = a.astype("f8")
    np.testing.assert_allclose(got[0], np.linalg.solve(wide, b), atol=1e-4)
    np.testing.assert_allclose(got[1], np.linalg.inv(wide), atol=1e-4)


def test_derivatives(device):
    n = 80
    a, b = (normal(n, n) / n**0.5 + 2 * np.eye(n)).astype("f4"), normal(n, seed=1)

    def all(a, b):
        return jnp.linalg.solve(a, b).sum() + jnp.linalg.inv(a)[0].sum() + jnp.linalg.slogdet(a)[1]

    def run(a, b):
        forward = jax.jvp(lambda a: (lu_factor(a)[0], jnp.linalg.det(a / 2)), (a,), (jnp.ones_like(a),))
        return *jax.grad(all, (0, 1))(a, b), forward

    got, want = (jax.tree.leaves(on(platform, run, a, b)) for platform in (device.platform, "cpu"))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-2, atol=1e-3 * np.abs(w).max())


def test_vmap(device):
    a = normal(4, 3, 90, 90)
    got, want = (on(platform, jax.vmap(jax.vmap(jax.lax.linalg.lu), 1), a) for platform in (device.platform, "cpu"))
    np.testing.assert_array_equal(got[1], want[1])
    np.testing.assert_array_equal(got[2], want[2])
    np.testing.assert_allclose(got[0], want[0], atol=1e-2)


def test_singular_and_not_a_number(device):
    """What comes out is what comes out of LAPACK: infinities and NaN where those are."""
    n = 100
    singular = normal(n, n)
    singular[:, 70] = 0
    nan, infinite = normal(n, n), normal(n, n)
    nan[50, 60], infinite[50, 60] = np.nan, np.inf
    a = np.stack([np.zeros((n, n)), np.ones((n, n)), singular, nan, infinite, np.full((n, n), np.nan)]).astype("f4")
    b = np.ones((len(a), n, 1), "f4")

    def run(a, b):
        return lu_factor(a)[1], jnp.linalg.det(a), jnp.linalg.solve(a, b), jnp.linalg.slogdet(a)

    got, want = (jax.tree.leaves(on(platform, run, a, b)) for platform in (device.platform, "cpu"))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(np.isnan(g), np.isnan(w))
        np.testing.assert_array_equal(np.isinf(g), np.isinf(w))
    np.testing.assert_array_equal(got[0][:3], want[0][:3])  # among NaN OpenBLAS takes rows that depend on the processor


def test_in_a_loop(device):
    a, b = normal(96, 96) + 20 * np.eye(96, dtype="f4"), normal(96, seed=1)

    def run(a, b):
        return jax.lax.fori_loop(0, 5, lambda i, x: jnp.linalg.solve(a + i * jnp.eye(96), x), b)

    np.testing.assert_allclose(on(device.platform, run, a, b), on("cpu", run, a, b), rtol=1e-3, atol=1e-6)

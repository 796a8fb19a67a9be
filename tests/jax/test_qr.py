"""QR factorizations through JAX: by Ferrule's own loops (native/qr.cc), with the answers of LAPACK."""

from __future__ import annotations

import denormals
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.lax.linalg import geqrf
from jax.lax.linalg import householder_product, ormqr
from test_small_lu import kinds, normal, on

import jax
from ferrule.ir import Block, Tensor, Token
from ferrule.ir.types import f32
from ferrule.passes.qr import qr

SHAPES = [(1, 1), (1, 4), (4, 1), (5, 5), (9, 4), (4, 9), (70, 70), (3, 40, 16), (2, 3, 16, 40), (150, 90), (90, 150)]


def test_no_call_of_lapack_and_no_transposes():
    for shape in [(8, 8), (5, 8, 4), (4, 8), (200, 100), (2, 3, 100, 200)]:
        assert kinds(jnp.linalg.qr, normal(*shape)) == ["geqrf", "householder_product"]
        assert kinds(lambda a: jnp.linalg.qr(a, mode="r"), normal(*shape)) == ["geqrf"]
    a, taus, c = normal(3, 20, 10), normal(3, 10), normal(3, 7, 20)
    assert kinds(lambda *x: ormqr(*x, left=False), a, taus, c) == ["ormqr"]
    assert "lapack_cgeqrf_ffi" in kinds(geqrf, normal(8, 8, dtype="complex64"))


def test_other_calls_are_left_alone():
    vector, matrix = Tensor((4,), f32), Tensor((4, 4), f32)
    for name in ("anything", "lapack_sgeqrf_ffi", "lapack_sorgqr_ffi", "lapack_sormqr_ffi", "lapack_dgeqrf_ffi"):
        for types in ([], [Token()], [vector], [matrix], [matrix, vector], [matrix, vector, matrix]):
            for results in ([], [vector], [matrix], [matrix, vector], [matrix, vector, vector]):
                for config in ({}, {"left": True, "transpose": False}):
                    block = Block(types)
                    about = {"call_target_name": name, "backend_config": config}
                    op = block.add("custom_call", block.args, results, about)
                    assert qr(block, op, op.operands) is None  # no layouts


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", ["reduced", "complete", "r", "raw"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_modes(device, shape, mode, dtype):
    with jax.enable_x64(True):
        a = normal(*shape, dtype=dtype)
        got, want = (jax.tree.leaves(on(p, lambda a: jnp.linalg.qr(a, mode=mode), a)) for p in (device.platform, "cpu"))
        for g, w in zip(got, want, strict=True):
            assert g.shape == w.shape and g.dtype == w.dtype
            np.testing.assert_allclose(g, w, rtol=0, atol=3e3 * np.finfo(dtype).eps * max(1, np.abs(w).max()))
        if len(got) == 2 and mode != "raw":
            q, r = (x.astype("f8") for x in got)
            eps = np.finfo(dtype).eps * (10 + 2 * max(shape[-2:]) ** 0.5)
            np.testing.assert_allclose(q @ r, a, rtol=0, atol=eps * np.abs(a).max())
            np.testing.assert_allclose(
                q.mT @ q, np.broadcast_to(np.eye(q.shape[-1]), q.mT.shape[:-1] + q.shape[-1:]), atol=eps
            )
            np.testing.assert_array_equal(np.tril(r, -1), 0 * r)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0), (0, 3, 3), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
def test_nothing(device, shape, mode):
    got, want = (
        jax.tree.leaves(on(p, lambda a: jnp.linalg.qr(a, mode=mode), normal(*shape))) for p in (device.platform, "cpu")
    )
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g, w)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("rows, columns, others", [(1, 1, 1), (20, 9, 6), (9, 20, 6), (140, 100, 130)])
def test_products_with_reflections(device, rows, columns, others, left, transpose):
    c = normal(3, *((rows, others) if left else (others, rows)), seed=1)

    def run(a, c):
        packed, taus = geqrf(a)
        return ormqr(packed, taus, c, left=left, transpose=transpose)

    a = normal(3, rows, columns)
    got, want = (on(p, run, a, c) for p in (device.platform, "cpu"))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * np.abs(want).max())


def test_products_of_any_vectors(device):
    """They need not come from a factorization, nor be as many as there are columns."""
    for rows, columns, count in [(6, 4, 4), (6, 4, 2), (30, 30, 1), (150, 120, 50)]:
        a, taus = normal(rows, columns) / rows, normal(count, seed=1)
        q = np.eye(rows)
        for j in range(count):
            v = np.concatenate([np.zeros(j), [1], a[j + 1 :, j].astype("f8")])
            q = q @ (np.eye(rows) - taus[j].astype("f8") * np.outer(v, v))
        got = on(device.platform, householder_product, a, taus)
        np.testing.assert_allclose(got, q[:, :columns], rtol=0, atol=1e-4 * np.abs(q).max())


def test_gradients_and_vmap(device):
    a = normal(6, 12, 7)

    def loss(a):
        q, r = jax.vmap(jnp.linalg.qr)(a)
        return (q**3).sum() + (r**2 * jnp.arange(7)).sum()

    def tangents(a):
        return jax.jvp(jnp.linalg.qr, (a,), (jnp.cos(a),))

    for run in (jax.grad(loss), tangents):
        got, want = (jax.tree.leaves(on(p, run, a)) for p in (device.platform, "cpu"))
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w, rtol=0, atol=1e-3 * np.abs(w).max())


def test_what_is_made_of_it(device):
    a, b = normal(60, 20), normal(60, 3, seed=1)

    def run(a, b):
        return (
            jax.scipy.linalg.qr(a, mode="economic"),
            jnp.linalg.lstsq(a, b)[0],
            jax.random.orthogonal(jax.random.key(0), 40),
            jax.random.orthogonal(jax.random.key(1), 6, (20,)),
        )

    got, want = (jax.tree.leaves(on(p, run, a, b)) for p in (device.platform, "cpu"))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=0, atol=1e-4 * np.abs(w).max())


@pytest.mark.parametrize("n", [5, 20, 100])
@pytest.mark.parametrize("size", [1e30, 1e-30, 1e-38])
def test_magnitudes(device, n, size):
    if size < 1e-37:
        denormals.need(device)
    a = normal(n, n) * np.float32(size)
    q, r = on(device.platform, jnp.linalg.qr, a)
    eps = np.finfo("f4").eps * (10 + 2 * n**0.5)
    np.testing.assert_allclose(q.astype("f8") @ r / size, a / size, rtol=0, atol=max(eps, 1e-44 / size) * 5)
    np.testing.assert_allclose(q.T.astype("f8") @ q, np.eye(n), rtol=0, atol=eps)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("n", [3, 40, 200])
def test_not_finite(device, n, bad):
    a = normal(n, n)
    a[n // 2, n // 2] = bad
    q, r = on(device.platform, jnp.linalg.qr, a)
    assert np.isnan(q).any() and np.isnan(np.triu(r)[n // 2 :, n // 2 :]).any()
    want = on("cpu", jnp.linalg.qr, a)[1]
    np.testing.assert_allclose(r[:, : n // 2], want[:, : n // 2], atol=1e-3)


def test_in_a_loop(device):
    """Subspace iteration, whose matrices are new ones in each step; and one that is the same in all."""
    a, x, fixed = normal(30, 30), normal(30, 5, seed=1), normal(30, 5, seed=2)

    def run(a, x, fixed):
        def step(i, x):
            return jnp.linalg.qr(a @ x)[0] + 0.1 * jnp.linalg.qr(fixed)[0]

        return jax.lax.fori_loop(0, 4, step, x)

    got, want = (on(p, run, a, x, fixed) for p in (device.platform, "cpu"))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-3)

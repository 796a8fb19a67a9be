"""Singular values and vectors through JAX: LAPACK's bidiagonal ones, turned back by Ferrule's own products."""

from __future__ import annotations

import denormals
import jax.numpy as jnp
import numpy as np
import pytest
from test_small_lu import kinds, normal, on

import jax
from ferrule.ir import Block, Tensor, Token
from ferrule.ir.types import f32
from ferrule.libraries import has_lapack
from ferrule.passes.svd import svd
from ferrule.pipeline import compile_program
from ferrule.program import Call

SHAPES = [(32, 32), (33, 70), (70, 33), (100, 100), (129, 128), (2, 3, 40, 50), (5, 64, 64), (400, 35), (35, 400)]
SHAPES += [(16, 16), (16, 300), (90, 17), (6, 20, 18), (1, 1), (1, 9), (9, 1), (8, 8), (3, 4, 20), (200, 190)]
needs_lapack = pytest.mark.skipif(not has_lapack(), reason="SciPy's wheel is not installed")


def values(a):
    return jnp.linalg.svd(a, compute_uv=False)


def check(a, u, s, vt):
    """A = U diag(s) V^T, with orthonormal U and V and s in order, beside NumPy's in f64."""
    exact = a.astype("f8")
    scale = max(np.abs(exact).max(initial=0), np.finfo(a.dtype).smallest_subnormal)
    exact, s = exact / scale, s.astype("f8") / scale
    rounds = np.finfo(a.dtype).smallest_subnormal / scale
    want = np.linalg.svd(exact, compute_uv=False)
    bound = (8 * np.finfo(a.dtype).eps * max(a.shape[-2:]) ** 0.5 + 8 * rounds) * max(want.max(initial=0), 1)
    np.testing.assert_allclose(s, want, rtol=0, atol=bound)
    assert (s >= 0).all() and (np.diff(s) <= 0).all()
    if u is not None:
        count = s.shape[-1]
        u, vt = u.astype("f8"), vt.astype("f8")
        np.testing.assert_allclose((u[..., :count] * s[..., None, :]) @ vt[..., :count, :], exact, rtol=0, atol=bound)
        for x in (u.mT @ u, vt @ vt.mT):
            np.testing.assert_allclose(x, np.broadcast_to(np.eye(x.shape[-1]), x.shape), atol=bound)


@needs_lapack
def test_which_calls():
    for shape in [(32, 32), (40, 100), (100, 40), (2, 50, 50)]:
        for full in (False, True):
            assert kinds(lambda a, full=full: jnp.linalg.svd(a, full_matrices=full), normal(*shape)) == ["svd"]
        assert kinds(values, normal(*shape)) == ["svd"]
    assert "svd" not in kinds(values, normal(15, 400))
    assert "svd" not in kinds(values, normal(40, 40, dtype="complex64"))


def calls(function, *args):
    module = jax.jit(function).trace(*args).lower(lowering_platforms=("ferrule",))
    program = compile_program(str(module.compiler_ir("stablehlo")).encode())
    return [step for block in program.blocks for step in block if isinstance(step, Call)]


@needs_lapack
def test_vectors_that_nobody_reads():
    a = normal(40, 50)
    for function, count in [
        (lambda a: jnp.linalg.svd(a)[1], 2),
        (lambda a: jnp.linalg.svd(a)[:2], 4),
        (lambda a: jnp.linalg.svd(a)[2], 4),
        (values, 2),
    ]:
        (call,) = calls(function, a)
        assert len(call.results) == count
    got, want = (on(p, lambda a: jnp.linalg.svd(a)[1], a) for p in ("ferrule", "cpu"))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * want.max())


def test_other_calls_are_left_alone():
    vector, matrix = Tensor((40,), f32), Tensor((40, 40), f32)
    for types in ([], [Token()], [vector], [matrix], [matrix, vector]):
        for results in ([], [vector], [matrix] * 5, [matrix, vector, matrix, matrix, vector]):
            for config in ({}, {"mode": ord("A")}, {"mode": ord("O")}):
                block = Block(types)
                about = {"call_target_name": "lapack_sgesdd_ffi", "backend_config": config}
                op = block.add("custom_call", block.args, results, about)
                assert svd(block, op, op.operands) is None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(device, shape, dtype):
    with jax.enable_x64(True):
        a = normal(*shape, dtype=dtype)
        for full in (False, True):
            check(a, *on(device.platform, lambda a, full=full: jnp.linalg.svd(a, full_matrices=full), a))
        check(a, None, on(device.platform, values, a), None)


@pytest.mark.parametrize("shape", [(0, 4), (40, 0), (0, 0), (0, 40, 40), (2, 0, 3)], ids=str)
def test_nothing(device, shape):
    got, want = (jax.tree.leaves(on(p, jnp.linalg.svd, normal(*shape))) for p in (device.platform, "cpu"))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g, w)


def made(kind, m, n):
    r, least = np.random.default_rng(3), min(m, n)
    left, right = (np.linalg.qr(r.standard_normal((x, least)))[0] for x in (m, n))
    match kind:
        case "zero":
            return np.zeros((m, n))
        case "half the rank":
            return r.standard_normal((m, least // 2)) @ r.standard_normal((least // 2, n))
        case "one column":
            return np.outer(r.standard_normal(m), np.eye(n)[n // 2])
        case "equal values":
            return (left * np.repeat([3.0, 1.0], [least // 2, least - least // 2])) @ right.T
        case "many magnitudes":
            return (left * np.logspace(0, -12, least)) @ right.T
        case "graded rows":
            return r.standard_normal((m, n)) * 10.0 ** r.uniform(-8, 8, (m, 1))
        case "bidiagonal":
            return np.eye(m, n) + 0.5 * np.eye(m, n, 1)
        case "two blocks":
            a = r.standard_normal((m, n))
            a[: m // 2, n // 2 :] = a[m // 2 :, : n // 2] = 0
            return a
        case _:
            return r.standard_normal((m, n)) * float(kind)


KINDS = ["zero", "half the rank", "one column", "equal values", "many magnitudes", "graded rows", "bidiagonal"]
KINDS += ["two blocks", "1e30", "1e-30", "1e-40"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m, n", [(60, 60), (150, 140), (130, 150), (300, 300)])
def test_kinds(device, kind, m, n):
    if kind == "1e-40":
        denormals.need(device)
    a = made(kind, m, n).astype("f4")
    check(a, *on(device.platform, jnp.linalg.svd, a))
    if kind != "bidiagonal":  # LAPACK without vectors: 80 rounding errors where neighbours are nearly equal
        check(a, None, on(device.platform, values, a), None)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("shape", [(50, 50), (2, 90, 40)], ids=str)
def test_not_finite(device, shape, bad):
    a = normal(*shape)
    a[(-1, 7, 7)[3 - len(shape) :]] = bad
    for x in (*on(device.platform, jnp.linalg.svd, a), on(device.platform, values, a)):
        assert np.isnan(x[-1] if len(shape) > 2 else x).all()
        assert len(shape) == 2 or np.isnan(x[0]).all() == np.isnan(a[0]).any()


def test_gradients_and_vmap(device):
    a = normal(3, 50, 40)

    def loss(a):
        u, s, vt = jax.vmap(lambda a: jnp.linalg.svd(a, full_matrices=False))(a)
        return (s**2 * jnp.arange(40)).sum() + ((u * jnp.cos(s)[:, None]) @ vt)[:, 0].sum()

    got, want = (on(p, jax.grad(loss), a) for p in (device.platform, "cpu"))
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-3 * np.abs(want).max())


def test_what_is_made_of_it(device):
    a, b = normal(90, 40), normal(90, 3, seed=1)

    def run(a, b):
        return (
            jnp.linalg.pinv(a),
            jnp.linalg.lstsq(a, b),
            jnp.linalg.matrix_rank(a @ a.T),
            [jnp.linalg.norm(a, kind) for kind in (2, -2, "nuc")],
            jnp.linalg.cond(a),
            jax.scipy.linalg.polar(a, method="svd"),
        )

    got, want = (jax.tree.leaves(on(p, run, a, b)) for p in (device.platform, "cpu"))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=0, atol=1e-4 * np.abs(w).max())


def test_in_a_loop(device):
    """Of matrices that are new ones in each step, and of one that is the same in all."""
    a, fixed = normal(40, 40), normal(40, 40, seed=1)

    def run(a, fixed):
        def step(i, a):
            u, s, vt = jnp.linalg.svd(a)
            return (u * jnp.tanh(s)) @ vt + 0.1 * jnp.linalg.svd(fixed)[1]

        return jax.lax.fori_loop(0, 3, step, a)

    got, want = (on(p, run, a, fixed) for p in (device.platform, "cpu"))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-3)

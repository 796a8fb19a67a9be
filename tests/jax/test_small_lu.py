"""LU factors of small matrices through jax.numpy.linalg: by Ferrule's own loops, with the answers of LAPACK."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.linalg import lu_factor

import jax
from ferrule.ir import Block, Tensor, Token
from ferrule.ir.types import f32
from ferrule.passes.lu import lu
from ferrule.pipeline import compile_program
from ferrule.program import Call, Launch, While


def normal(*shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def on(platform, function, *args):
    with jax.default_device(jax.devices(platform)[0]):
        return jax.tree.map(np.asarray, jax.jit(function)(*args))


def kinds(function, *args) -> list[str]:
    """The calls of the program, its loops, and launches of what only moves data."""
    module = jax.jit(function).trace(*args).lower(lowering_platforms=("ferrule",))
    program = compile_program(str(module.compiler_ir("stablehlo")).encode())
    found = []
    for block in program.blocks:
        for step in block:
            if isinstance(step, Call):
                found.append(step.target)
            elif isinstance(step, While):
                found.append("while")
            elif isinstance(step, Launch) and "transpose" in program.functions[step.function].symbol:
                found.append("transpose")
    return found


def test_no_call_of_lapack_no_loop_and_no_transposes():
    solve = ["lu", "ferrule.lu_permutation", "triangular_solve", "triangular_solve"]
    assert kinds(jnp.linalg.solve, normal(9, 32, 32), normal(9, 32, 1)) == solve
    assert kinds(jnp.linalg.slogdet, normal(9, 32, 32)) == ["lu"]
    assert kinds(lambda a: lu_factor(a)[0], normal(700, 650)) == ["lu"]
    assert "lapack_cgetrf_ffi" in kinds(lambda a: lu_factor(a)[0], normal(8, 8, dtype="complex64"))


def test_other_calls_are_left_alone():
    vector = Tensor((4,), f32)
    for name in ("anything", "lapack_sgetrf_ffi"):
        for types in ([], [Token()], [vector], [vector, vector]):
            block = Block(types)
            op = block.add("custom_call", block.args, [vector] * 3, {"call_target_name": name})
            assert lu(block, op, op.operands) is None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("batch", [(), (1,), (2, 3)], ids=str)
@pytest.mark.parametrize("n", [1, 2, 7, 33, 64])
def test_solve_and_what_else_needs_factors(device, n, batch, dtype):
    with jax.enable_x64(True):
        a = (normal(*batch, n, n) * 2 / n**0.5).astype(dtype)  # whose determinant is a number in f32, too
        b = normal(*batch, n, 3, dtype=dtype, seed=1)
        wide = a.astype("f8")

        def close(result, want):
            scale = 1e4 * n * np.finfo(dtype).eps * np.abs(want).max()
            np.testing.assert_allclose(result, want, rtol=0, atol=scale)

        got = on(
            device.platform,
            lambda a, b: (jnp.linalg.solve(a, b), jnp.linalg.inv(a), jnp.linalg.det(a), jnp.linalg.slogdet(a)),
            *(a, b),
        )
        close(got[0], np.linalg.solve(wide, b))
        close(got[1], np.linalg.inv(wide))
        close(got[2], np.linalg.det(wide))
        np.testing.assert_array_equal(got[3][0], np.linalg.slogdet(wide)[0])
        close(got[3][1], np.linalg.slogdet(wide)[1])


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (3, 40, 16), (2, 16, 40), (0, 4, 4), (4, 0), (0, 4)])
def test_shapes(device, shape):
    a, steps = normal(*shape), min(shape[-2:])
    factors, pivots, permutation = on(device.platform, jax.lax.linalg.lu, a)
    assert pivots.shape == (*shape[:-2], steps) and factors.shape == shape
    lower = np.tril(factors[..., :, :steps], -1) + np.eye(shape[-2], steps)
    moved = np.take_along_axis(a, permutation[..., None], -2)
    np.testing.assert_allclose(lower @ np.triu(factors[..., :steps, :]), moved, atol=1e-5)
    if 0 not in shape:
        want = on("cpu", jax.lax.linalg.lu, a)
        np.testing.assert_array_equal(pivots, want[1])
        np.testing.assert_array_equal(permutation, want[2])


def test_gradients_and_vmap(device):
    a, b = normal(6, 12, 12), normal(6, 12, seed=1)

    def loss(a, b):
        return jax.vmap(lambda a, b: jnp.linalg.solve(a, b).sum() + jnp.linalg.slogdet(a)[1])(a, b).sum()

    got, want = (on(platform, jax.grad(loss, (0, 1)), a, b) for platform in (device.platform, "cpu"))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-2, atol=1e-3 * np.abs(w).max())


def test_singular_and_not_a_number(device):
    a = np.stack([np.zeros((4, 4)), np.ones((4, 4)), np.full((4, 4), np.nan), np.diag([1.0, 0, 2, 3])]).astype("f4")
    b = np.ones((4, 4, 1), "f4")

    def run(a, b):
        return lu_factor(a)[0], jnp.linalg.det(a), jnp.linalg.solve(a, b), jnp.linalg.slogdet(a)

    got, want = (jax.tree.leaves(on(platform, run, a, b)) for platform in (device.platform, "cpu"))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g, w)


def test_in_a_loop(device):
    a, b = normal(16, 16) + 8 * np.eye(16, dtype="f4"), normal(16, seed=1)

    def run(a, b):
        return jax.lax.fori_loop(0, 5, lambda i, x: jnp.linalg.solve(a + i * jnp.eye(16), x), b)

    np.testing.assert_allclose(on(device.platform, run, a, b), on("cpu", run, a, b), rtol=1e-3, atol=1e-6)

"""Eigenvalues and vectors of one symmetric matrix: LAPACK's, turned back by Ferrule's own products."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jax
from ferrule.ir import Block, Tensor, Token
from ferrule.ir.types import f32
from ferrule.libraries import has_lapack
from ferrule.passes.eigh import eigh
from ferrule.pipeline import compile_program
from ferrule.program import Call

pytestmark = pytest.mark.usefixtures("on_ferrule")


@pytest.fixture(scope="module")
def on_ferrule():
    with jax.default_device(jax.devices("ferrule")[0]):
        yield


def symmetric(n, dtype="float32", seed=0):
    x = np.random.default_rng(seed).standard_normal((n, n)).astype(dtype)
    return x + x.T


def check(a, values, vectors):
    """A V = V diag(w), with orthonormal V and w in order."""
    exact, v, w = a.astype("f8"), vectors.astype("f8"), values.astype("f8")
    bound = 30 * np.finfo(a.dtype).eps * len(a) ** 0.5
    scale = max(np.abs(np.linalg.eigvalsh(exact)).max(), np.finfo("f4").tiny)
    assert np.abs(exact @ v - v * w).max() <= bound * scale
    assert np.abs(v.T @ v - np.eye(len(a))).max() <= bound
    np.testing.assert_allclose(w, np.linalg.eigvalsh(exact), rtol=0, atol=bound * scale)
    assert (np.diff(w) >= 0).all()


def calls(function, *args):
    module = jax.jit(function).trace(*args).lower(lowering_platforms=("ferrule",))
    program = compile_program(str(module.compiler_ir("stablehlo")).encode())
    return [step.target for block in program.blocks for step in block if isinstance(step, Call)]


@pytest.mark.skipif(not has_lapack(), reason="SciPy's wheel is not installed")
def test_which_calls():
    assert calls(jnp.linalg.eigh, symmetric(100)) == ["eigh"]
    assert "eigh" not in calls(jnp.linalg.eigh, symmetric(63))
    assert "eigh" not in calls(lambda a: jax.lax.linalg.eigh(a, lower=False), symmetric(100))
    assert "eigh" not in calls(jax.vmap(jnp.linalg.eigh), np.stack([symmetric(100)] * 2))
    assert "eigh" not in calls(jnp.linalg.eigh, symmetric(100).astype("c8"))


def asked(function, *args):
    """Whether the calls of LAPACK in a program ask for vectors."""
    module = jax.jit(function).trace(*args).lower(lowering_platforms=("ferrule",))
    program = compile_program(str(module.compiler_ir("stablehlo")).encode())
    steps = [step for block in program.blocks for step in block if isinstance(step, Call)]
    return [chr(int(step.attrs["mode"])) for step in steps if step.target.startswith("lapack_")]


def test_values_alone():
    """Of `eigvalsh` JAX leaves the vectors unread: they are not computed."""
    stack = np.stack([symmetric(20, seed=s) for s in range(3)])
    assert asked(jnp.linalg.eigvalsh, stack) == ["N"]
    assert asked(jnp.linalg.eigh, stack) == ["V"]
    assert asked(jax.grad(lambda a: jnp.linalg.eigvalsh(a).max()), symmetric(20)) == ["V"]
    hermitian = symmetric(30) + 1j * np.tril(symmetric(30, seed=1), -1)
    hermitian = ((hermitian + hermitian.conj().T) / 2).astype("c8")
    for a in (stack, hermitian, symmetric(63), *(symmetric(n, seed=n) for n in (64, 97, 200))):
        found = np.asarray(jax.jit(jnp.linalg.eigvalsh)(a))
        exact = np.linalg.eigvalsh(a.astype("c16"))
        np.testing.assert_allclose(found, exact, rtol=0, atol=3e-5 * np.abs(exact).max())
        assert (np.diff(found) >= 0).all()
    with jax.enable_x64(True):
        a = symmetric(150, "float64")
        np.testing.assert_allclose(jax.jit(jnp.linalg.eigvalsh)(a), np.linalg.eigvalsh(a), rtol=0, atol=1e-12)


@pytest.mark.parametrize("n", [20, 100])
def test_values_alone_of_extremes(n):
    a = symmetric(n)
    for scale in (1e30, 1e-30):
        found = np.asarray(jax.jit(jnp.linalg.eigvalsh)(a * np.float32(scale)), "f8") / scale
        exact = np.linalg.eigvalsh(a.astype("f8"))
        np.testing.assert_allclose(found, exact, rtol=0, atol=3e-5 * np.abs(exact).max())
    for bad in (np.nan, np.inf):
        broken = a.copy()
        broken[7, 2] = broken[2, 7] = bad
        assert np.isnan(jax.jit(jnp.linalg.eigvalsh)(broken)).mean() > 0.9


def test_values_alone_in_a_loop():
    """What a loop's body reads, and what only a later iteration does."""
    a = symmetric(70)

    @jax.jit
    def largest(a):
        return jax.lax.fori_loop(0, 3, lambda i, x: x / jnp.linalg.eigvalsh(x)[-1], a)

    @jax.jit
    def first_vectors(a):
        def body(i, carry):
            x, v = carry
            w, new = jnp.linalg.eigh(x)
            return x / w[-1], new

        return jax.lax.fori_loop(0, 3, body, (a, jnp.zeros_like(a)))

    assert np.linalg.eigvalsh(np.asarray(largest(a)))[-1] == pytest.approx(1, abs=1e-5)
    x, v = map(np.asarray, first_vectors(a))
    w = np.diag(v.T @ x @ v)
    assert np.abs(x @ v - v * w).max() < 1e-4


def test_other_calls_are_left_alone():
    vector = Tensor((4,), f32)
    for name in ("anything", "lapack_ssyevd_ffi"):
        for types in ([], [Token()], [vector], [vector, vector], [Tensor((99, 99), f32)]):
            block = Block(types)
            op = block.add("custom_call", block.args, [vector] * 3, {"call_target_name": name})
            assert eigh(block, op, op.operands) is None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [64, 65, 96, 97, 129, 200, 333])
def test_against_numpy(n, dtype):
    with jax.enable_x64(dtype == "float64"):
        a = symmetric(n, dtype, seed=n)
        w, v = map(np.asarray, jax.jit(jnp.linalg.eigh)(a))
        check(a, w, v)


@pytest.mark.parametrize(
    "kind", ["zero", "identity", "diagonal", "rank one", "blocks", "tridiagonal", "large", "small"]
)
def test_special_matrices(kind):
    n = 100
    a = {
        "zero": np.zeros((n, n)),
        "identity": np.eye(n),
        "diagonal": np.diag(np.arange(n, 0, -1)),
        "rank one": np.ones((n, n)),
        "blocks": np.kron(np.eye(n // 4), symmetric(4)),
        "tridiagonal": np.eye(n, k=1) + np.eye(n, k=-1) - 2 * np.eye(n),
        "large": symmetric(n) * 1e30,  # outside of what squares may be formed of: LAPACK scales it
        "small": symmetric(n) * 1e-30,
    }[kind].astype("f4")
    w, v = map(np.asarray, jax.jit(jnp.linalg.eigh)(a))
    scale = {"large": 1e-30, "small": 1e30}.get(kind, 1)
    check((a.astype("f8") * scale).astype("f4"), w * np.float32(scale), v)


def test_what_is_not_a_number_and_what_is_not_read():
    a = symmetric(100)
    for bad in (np.nan, np.inf):
        broken = a.copy()
        broken[70, 20] = broken[20, 70] = bad
        found = jax.jit(jnp.linalg.eigh)(broken)
        with jax.default_device(jax.devices("cpu")[0]):
            expected = jax.jit(jnp.linalg.eigh)(broken)  # LAPACK's own call; SciPy's finds a number in all that is none
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
            assert np.isnan(ours).mean() > 0.9
    upper = np.tril(a) + np.triu(np.full_like(a, np.nan), 1)
    v, w = jax.jit(lambda x: jax.lax.linalg.eigh(x, symmetrize_input=False))(upper)
    check(a, np.asarray(w), np.asarray(v))


def test_the_matrix_is_kept_and_may_be_donated():
    a = symmetric(80)

    def run(a):
        v, w = jax.lax.linalg.eigh(a, symmetrize_input=False)
        return w, v, a @ a

    for donate in ((), (0,)):
        w, v, squared = map(np.asarray, jax.jit(run, donate_argnums=donate)(jnp.asarray(a)))
        check(a, w, v)
        np.testing.assert_allclose(squared, a @ a, rtol=0, atol=1e-3)


def test_in_a_loop_and_differentiated():
    a = symmetric(70)

    @jax.jit
    def powers(a):
        return jax.lax.fori_loop(0, 3, lambda i, x: x / 10 + jnp.linalg.eigh(x)[1] @ jnp.linalg.eigh(a)[1].T, a)

    assert np.isfinite(powers(a)).all()
    slope = jax.jit(jax.grad(lambda a: jnp.linalg.eigh(a)[0][-1]))(a)
    top = np.linalg.eigh(a.astype("f8"))[1][:, -1]
    np.testing.assert_allclose(slope, np.outer(top, top), rtol=0, atol=1e-4)


def test_without_scipys_library(python):
    """The handler that JAX registers is called, also where a program with ours was kept on disk."""
    program = """
import jax, numpy as np, jax.numpy as jnp
with jax.default_device(jax.devices("ferrule")[0]):
    w, v = jax.jit(jnp.linalg.eigh)(np.diag(np.arange(70, 0, -1)).astype("f4"))
    print(w[0], w[-1])
"""
    for off in ("", "scipy"):
        run = python(program, FERRULE_LIBRARIES_OFF=off, FERRULE_CACHE="1")
        assert run.stdout.split() == ["1.0", "70.0"], run.stderr

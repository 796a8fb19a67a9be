"""Products that carry what follows them: the same bits as with a kernel of its own, and that the call has it or not."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jax
from ferrule import pipeline
from ferrule.pipeline import compile_program
from ferrule.program import Call, Launch

RNG = np.random.RandomState(0)


def random(*shape: int, dtype: str = "float32") -> np.ndarray:
    if dtype.startswith("int"):
        return RNG.randint(-1000, 1000, shape).astype(dtype)
    values = RNG.standard_normal(shape)
    return (values + 1j * RNG.standard_normal(shape) if dtype.startswith("complex") else values).astype(dtype)


def odd(*shape: int) -> np.ndarray:
    """With NaN, infinities, zeros of both signs and denormal numbers."""
    x = random(*shape)
    flat = x.reshape(-1)
    picked = flat[:: max(1, flat.size // 7)]
    picked[:] = np.resize([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40], len(picked))
    return x


def steps(function, *args, donate=()) -> list[str]:
    """What the program does: "gemm", "gemm+" with what follows, "launch"."""
    module = jax.jit(function, donate_argnums=donate).trace(*args).lower(lowering_platforms=("cpu",))
    found = []
    for block in compile_program(str(module.compiler_ir("stablehlo")).encode()).blocks:
        for step in block:
            if isinstance(step, Call):
                found.append(step.target + ("+" if "epilogue" in step.attrs else ""))
            elif isinstance(step, Launch):
                found.append("launch")
    return found


def bits(x) -> np.ndarray:
    """What two results have to agree in: everything but the payload of NaNs."""
    x = np.ascontiguousarray(x)
    if x.dtype.kind in "fcV":
        x = x.copy()
        x[x != x] = np.nan
    return x.reshape(-1).view(np.uint8)


@pytest.fixture
def agree(monkeypatch: pytest.MonkeyPatch):
    def compare(function, *args) -> None:
        with jax.default_device(jax.devices("ferrule")[0]):
            got = jax.tree.leaves(jax.jit(lambda *a: function(*a))(*args))
            with monkeypatch.context() as patch:
                patch.setattr(pipeline, "finish_products", lambda graph, *_: graph)
                want = jax.tree.leaves(jax.jit(lambda *a: function(*a))(*args))
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            assert g.dtype == w.dtype
            np.testing.assert_array_equal(bits(g), bits(w))

    return compare


def bias(x, w, b):
    return jax.nn.relu(x @ w + b)


def gelu(x, w, b, r):
    return r + jax.nn.gelu(x @ w + b)


SIZES = [
    *[(64, 100, 80), (129, 65, 200), (300, 520, 700), (33, 1000, 10), (1000, 16, 64), (97, 1000, 1), (40, 300, 17)],
    *[(1, 700, 300), (1, 700, 3000), (3, 1500, 700), (20, 600, 1000), (700, 1024, 63), (500, 300, 1025)],
    *[(203, 12, 1100), (400, 16, 61), (30, 24, 4500)],
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", [bias, gelu])
def test_sizes(form, size, agree):
    m, k, n = size
    args = (odd(m, k), random(k, n), odd(n), random(m, n))[: 3 if form is bias else 4]
    assert steps(form, *args) == (["gemm+"] if n > 1 else ["gemm", "launch"])
    agree(form, *args)


@pytest.mark.parametrize("size", [(64, 100, 80), (130, 300, 700), (70, 5000, 30)])
@pytest.mark.parametrize("sides", ["nt", "tn", "tt"])
def test_transposed_factors(sides, size, agree):
    m, k, n = size

    def form(x, w, b):
        return jnp.tanh((x.T if sides[0] == "t" else x) @ (w.T if sides[1] == "t" else w) - b[:, None])

    args = random(*((k, m) if sides[0] == "t" else (m, k))), random(*((n, k) if sides[1] == "t" else (k, n))), odd(m)
    assert steps(form, *args) == ["gemm+"]
    agree(form, *args)


FORMS = {
    "batch": (lambda x, w, b: jnp.exp(x @ w) * b, (odd(5, 40, 90), random(5, 90, 70), odd(40, 1))),
    "batch of rows": (lambda x, w, b: jax.nn.silu(x @ w + b), (odd(5, 40, 90), random(90, 70), odd(70))),
    "free dimensions": (
        lambda x, w, b: jnp.einsum("abi,icd->abcd", x, w) + b,
        (odd(7, 9, 96), random(96, 4, 24), odd(4, 24)),
    ),
    "narrower": (lambda x, w: (x @ w).astype(jnp.bfloat16) * 2, (odd(100, 64), random(64, 130))),
    "to booleans": (lambda x, w, b: x @ w > b, (odd(100, 64), random(64, 130), odd(130))),
    "read again": (lambda x, w: (jnp.abs(x @ w), (x @ w).sum(0)), (odd(100, 64), random(64, 130))),
    "returned": (lambda x, w: (jnp.abs(x @ w), x @ w), (odd(100, 64), random(64, 130))),
    "two results": (lambda x, w, b: (x @ w + b, jnp.maximum(x @ w + b, 0)), (odd(90, 70), random(70, 65), odd(65))),
    "two products": (
        lambda x, v, w: jax.nn.silu(x @ v) * (x @ w),
        (odd(90, 70), random(70, 130), random(70, 130)),
    ),
    "a factor": (lambda x, w: x + jnp.sin(x @ w), (odd(128, 128), random(128, 128))),
    "64 bits": (
        bias,
        (random(50, 300, dtype="float64"), random(300, 70, dtype="float64"), random(70, dtype="float64")),
    ),
    "integers": (
        lambda x, w, b: (x @ w) // 7 + b,
        (random(50, 90, dtype="int32"), random(90, 70, dtype="int32"), random(70, dtype="int32")),
    ),
    "complex": (
        lambda x, w, b: x @ w * 1j + b,
        (random(50, 90, dtype="complex64"), random(90, 70, dtype="complex64"), random(70, dtype="complex64")),
    ),
    "no terms": (lambda x, w, b: x @ w + b, (random(50, 0), random(0, 70), odd(70))),
    "loop": (
        lambda x, w: jax.lax.fori_loop(0, 3, lambda i, s: (s[1], jnp.tanh(s[0] @ w) * 0.5), (x, x)),
        (random(90, 70), random(70, 70)),
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms(name, agree):
    form, args = FORMS[name]
    with jax.enable_x64(name == "64 bits"):
        if name not in ("no terms", "loop"):
            assert "gemm+" in steps(form, *args)
        agree(form, *args)


def test_softmax_is_a_kernel_of_its_own(agree):
    args = odd(90, 70), random(70, 65)
    form = lambda x, w: jax.nn.softmax(x @ w)  # noqa: E731
    assert steps(form, *args) == ["gemm", "launch"]
    agree(form, *args)


def test_what_lies_across_is_a_kernel_of_its_own(agree):
    args = odd(128, 70), random(70, 128), odd(128, 128)
    form = lambda x, w, r: jnp.exp(x @ w).T + r  # noqa: E731
    assert "gemm+" not in steps(form, *args)
    agree(form, *args)


def test_results_in_donated_memory_take_no_copy():
    def step(w, x, g):
        return w - 0.1 * (x.T @ g)

    args = random(100, 80), random(64, 100), random(64, 80)
    assert steps(step, *args) == ["gemm+"]
    assert steps(step, *args, donate=(0,)) == ["gemm", "launch"]


def test_recurrent_states_are_updated_in_place(agree):
    def form(x, w, h):
        return jax.lax.scan(lambda h, row: (jnp.tanh(row + h @ w), None), h, x)[0]

    args = odd(5, 64, 100), random(100, 100), odd(64, 100)
    assert "gemm+" not in steps(form, *args)
    agree(form, *args)


@pytest.mark.parametrize("library", ["own", "onednn", "blas"])
def test_products_of_libraries_are_followed_by_the_kernel(library, monkeypatch):
    monkeypatch.setenv("FERRULE_GEMM", library)
    x, w, b = odd(64, 100), random(100, 80), odd(80)
    with jax.default_device(jax.devices("ferrule")[0]), np.errstate(all="ignore"):
        got = np.asarray(jax.jit(lambda *a: bias(*a))(x, w, b), np.float64)
        want = x.astype(np.float64) @ w.astype(np.float64) + b
    want = np.where(np.isnan(want), want, np.maximum(want, 0))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("turned", [False, True])
def test_products_of_sparse_sides(agree, turned):
    """Left and right, rows and columns; their blocks are other ones than those of dense products."""
    i, table, w = RNG.randint(0, 150, 130), random(150, 200), random(130, 150)

    def wide(x):
        return x.T if turned else x

    table, w = (np.ascontiguousarray(wide(x)) for x in (table, w))
    bias, rest = random(200), random(130, 200)

    def left(i, x, bias, rest):
        return jax.nn.relu(jax.nn.one_hot(i, 150) @ wide(x) + bias) + rest

    def right(i, x, y, rest):
        return jnp.tanh(wide(x) @ (jax.nn.one_hot(i, 150, axis=0) * 0.5)) + y * rest[:, :130]

    assert "gemm+" in steps(left, i, table, bias, rest)
    agree(left, i, table, bias, rest)
    assert "gemm+" in steps(right, i, w, random(130, 130), rest)
    agree(right, i, w, random(130, 130), rest)

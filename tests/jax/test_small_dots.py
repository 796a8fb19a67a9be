"""Small matrix products, which are generated code on the cpu: as JAX writes them, with what stands around them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jax
from ferrule.pipeline import compile_program
from ferrule.program import Call
from ferrule.targets.cpu import host
from jax import lax


def numbers(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.random.RandomState(seed).standard_normal(shape).astype(dtype)


def agree(function, *args: np.ndarray) -> None:
    """On Ferrule as in f64 on XLA's CPU backend."""
    got = jax.tree.leaves(jax.jit(function)(*args))
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in args]
        want = jax.tree.leaves(jax.jit(function)(*wide))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(np.asarray(g), np.asarray(w), rtol=2e-4, atol=2e-4)


EINSUMS = [
    *("ij,jk->ik", "ji,jk->ik", "ij,kj->ik", "ji,kj->ik", "ij,jk->ki", "i,ij->j", "ij,j->i", "i,i->", "i,j->ij"),
    *("bij,bjk->bik", "ibj,bjk->bik", "bij,bkj->ibk", "ijb,jkb->bik", "bi,bi->b", "bij,bj->bi"),
    *("aij,jk->aik", "ija,jk->aik", "aij,jka->ik", "aij,aik->jk", "aijb,jkb->aik", "abi,cdi->abcd", "abi,cdi->acbd"),
]


@pytest.mark.parametrize("spec", EINSUMS)
def test_einsum(device: jax.Device, spec: str) -> None:
    """Every order of the dimensions; those that no single stride walks go to the library."""
    sizes = dict(i=7, j=19, k=18, a=3, b=4, c=2, d=9)
    left, right = (numbers(*(sizes[d] for d in side), seed=n) for n, side in enumerate(spec.split("->")[0].split(",")))
    agree(lambda x, y: jnp.tanh(0.1 * jnp.einsum(spec, x, y)) + 1, left, right)


SCATTERED = [  # the operands' dimensions, those that are summed, and the result's
    ("abcdefghij", "kbcdefghij", "ak"),
    ("abcdefghij", "abkdefghij", "ck"),
    ("abcdefghij", "jihgfedcbk", "ak"),
    ("abcdef", "ghaidj", "bcefghij"),
    ("xabcd", "dxeba", "xce"),
    ("abcde", "ebfa", "cdf"),
]


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("dims", SCATTERED)
def test_sums_over_scattered_dimensions(device: jax.Device, dims: tuple[str, str, str], dtype: str) -> None:
    """As networks of tensors have them; no library is called for two times two results."""
    left, right, out = dims
    x, y = (numbers(*[2] * len(side), seed=n).astype(dtype) for n, side in enumerate(dims[:2]))
    if dtype == "complex64":
        x, y = x + 1j * y.ravel()[: x.size].sum(), y - 2j * y
    f = jax.jit(lambda x, y: jnp.einsum(f"{left},{right}->{out}", x, y))
    np.testing.assert_allclose(f(x, y), np.einsum(f"{left},{right}->{out}", x, y), rtol=2e-5, atol=2e-4 * abs(x).max())
    program = compile_program(f.lower(x, y).as_text().encode())
    assert not [s.target for block in program.blocks for s in block if isinstance(s, Call)]


def test_what_follows(device: jax.Device) -> None:
    """Results at each element, of several kernels, in the memory of an operand."""

    def function(w, b, x):
        y = x @ w
        z = jax.nn.relu(y + b)
        return z / z.sum(1, keepdims=True), y.T, (y * 2).reshape(-1), jax.nn.softmax(x @ w)

    agree(function, numbers(16, 20), numbers(20), numbers(9, 16))


def test_in_loops(device: jax.Device) -> None:
    def step(c, x):
        h, s = c
        h = jnp.tanh(w @ h + u @ x)
        return (h, s + h @ h), h

    w, u = numbers(33, 33) * 0.1, numbers(33, 8, seed=1) * 0.2
    agree(lambda x: lax.scan(step, (jnp.zeros(33, x.dtype), jnp.zeros((), x.dtype)), x), numbers(25, 8, seed=2))
    rotation = np.linalg.qr(numbers(24, 24))[0]
    agree(
        lambda w, x: lax.fori_loop(0, 30, lambda i, c: (c[0] @ w, w @ c[1] + c[0][2]), (x, x[0])),
        rotation,
        numbers(24, 24),
    )
    agree(lambda w, x: lax.fori_loop(0, 31, lambda i, c: (w @ c[1], c[0] * 0.5), (x, x[::-1])), rotation, numbers(24))


def test_gradient(device: jax.Device) -> None:
    def loss(w, v, x):
        return (jnp.tanh(jnp.tanh(x @ w) @ v) ** 2).sum()

    agree(jax.value_and_grad(loss, (0, 1)), numbers(10, 32), numbers(32, 5), numbers(20, 10))


def test_operands_that_are_computed(device: jax.Device) -> None:
    """Constants of one value, iotas, slices, and the same array on both sides."""

    def function(x):
        ramp = lax.iota(x.dtype, 12)
        return jnp.ones((3, 9), x.dtype) @ x, x @ ramp, ramp @ ramp, x.T @ x, x[2:, 1:4] @ x[:3] * 0.1, (x + 1) @ x[0]

    agree(function, numbers(9, 12))


@pytest.mark.parametrize(
    "shape",
    [(100_000, 3, 3), (3, 100_000, 3), (10_000, 3, 3), (3, 9_001, 4), (3, 3, 500), (5000, 16, 24), (1, 2000, 30)],
)
def test_long(device: jax.Device, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    agree(lambda x, y: x @ y + 1, numbers(m, k), numbers(k, n))
    agree(lambda x, y: x @ y.T + 1, numbers(m, k), numbers(n, k))


@pytest.mark.parametrize(
    "dtypes", ["bfloat16 float32", "float16 float16", "int8 int32", "int32 int32", "complex64 complex64"]
)
def test_types(device: jax.Device, dtypes: str) -> None:
    operand, result = dtypes.split()
    x, y = (jnp.asarray(numbers(9, 17, seed=s) * 4, device=jax.devices("cpu")[0]).astype(operand) for s in (0, 1))
    if operand == "complex64":
        x, y = x + 1j * y, y - 2j * x
    got = np.asarray(jax.jit(lambda x, y: jnp.matmul(x, y.T, preferred_element_type=result))(*map(np.asarray, (x, y))))
    kind = np.complex128 if operand == "complex64" else np.float64
    want = np.asarray(x).astype(kind) @ np.asarray(y).astype(kind).T
    np.testing.assert_allclose(got.astype(kind), want, rtol=2e-3 if result == "float16" else 1e-5, atol=1e-3)


@pytest.mark.skipif("+avx512f" not in host().features, reason="there are registers for one sum only")
@pytest.mark.parametrize("terms", [16, 64])
def test_errors_are_those_of_two_sums(terms: int) -> None:
    """A sum of k normally distributed products errs by about 0.42 u √(k / 2) of their root mean square, two of half as
    many by 0.42 u √(k / 4), and a little more of short ones for their last addition. On the cpu: the other target
    calls a library."""
    device, errors = jax.devices("ferrule")[0], []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x, y = rng.standard_normal((512, 16, terms), np.float32), rng.standard_normal((512, terms, 16), np.float32)
        want = x.astype(np.float64) @ y
        got = np.asarray(jax.jit(jnp.matmul)(jax.device_put(x, device), jax.device_put(y, device)))
        errors.append(np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)))
    assert max(errors) < 1.3 * 0.42 * 2.0**-24 * np.sqrt(terms / 4)

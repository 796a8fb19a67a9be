"""jax.numpy.fft and jax.numpy.linalg on an xpu device, by oneMKL, against NumPy in double precision."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.linalg import lu_factor

import ferrule
import jax
from ferrule.targets import xpu as files

TYPES = ["f4", "f8", "c8", "c16"]
pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture(scope="module")
def device(xpu):
    if not files.find(ferrule.library_path()).mkl:
        pytest.skip("oneMKL is not installed, or Ferrule was built without it")
    with jax.default_device(jax.devices("xpu")[0]), jax.enable_x64(True):
        yield


def random(shape, dtype, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.standard_normal(shape)
    return (x + 1j * generator.standard_normal(shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def wide(x):
    return x.astype("c16" if x.dtype.kind == "c" else "f8")


def adjoint(x):
    return x.conj().swapaxes(-1, -2)


def close(result, expected, tolerance=100):
    result = np.asarray(result)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(result / scale, expected / scale, rtol=0, atol=tolerance * np.finfo(result.dtype).eps)


@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_transforms(dtype):
    real = {"c8": "f4", "c16": "f8"}[dtype]
    cases = {
        "fft": [(64,), (3, 97), (2, 3, 1000)],
        "ifft": [(64,), (3, 97)],
        "rfft": [(7,), (3, 64)],
        "irfft": [(7,), (3, 64)],
        "fft2": [(6, 7), (2, 16, 5)],
        "fftn": [(3, 4, 5)],
        "rfftn": [(6, 7), (3, 4, 6)],
        "irfft2": [(6, 7), (2, 5, 9)],
        "irfftn": [(3, 4, 6)],
    }
    for name, shapes in cases.items():
        for shape in shapes:
            x = random(shape, real if name.startswith("rfft") else dtype)
            close(jax.jit(getattr(jnp.fft, name))(x), getattr(np.fft, name)(wide(x)))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("batch", [(), (2, 3)], ids=str)
def test_matrices(batch, dtype):
    @jax.jit
    def run(a, b, positive, tall):
        q, r = jnp.linalg.qr(tall)
        u, s, v = jnp.linalg.svd(tall, full_matrices=False)
        w, vectors = jnp.linalg.eigh(a + jnp.conj(a).mT)
        return {
            "cholesky": jnp.linalg.cholesky(positive),
            "upper": jnp.linalg.cholesky(positive, upper=True),
            "solve": jnp.linalg.solve(a, b),
            "qr": q @ r,
            "complete": jnp.linalg.qr(tall, mode="complete")[0],
            "svd": (u * s[..., None, :].astype(u.dtype)) @ v,
            "singular values": jnp.linalg.svd(tall, compute_uv=False),
            "eigh": (vectors * w[..., None, :].astype(vectors.dtype)) @ jnp.conj(vectors).mT,
            "eigenvalues": w,
        }

    n = 12
    a, b, tall = random((*batch, n, n), dtype), random((*batch, n, 2), dtype, 1), random((*batch, n, 5), dtype, 2)
    a = a + 4 * np.eye(n, dtype=a.dtype)
    positive = wide(a) @ adjoint(wide(a)) + np.eye(n)
    result = run(a, b, positive.astype(dtype), tall)
    factor = np.linalg.cholesky(positive)
    close(result["cholesky"], factor)
    close(result["upper"], adjoint(factor))
    close(result["solve"], np.linalg.solve(wide(a), wide(b)))
    close(result["qr"], wide(tall))
    q = wide(np.asarray(result["complete"]))
    close((adjoint(q) @ q).astype(dtype), np.broadcast_to(np.eye(n), (*batch, n, n)))
    close(result["svd"], wide(tall))
    close(result["singular values"], np.linalg.svd(wide(tall), compute_uv=False))
    close(result["eigh"], wide(a) + adjoint(wide(a)))
    close(result["eigenvalues"], np.linalg.eigvalsh(wide(a) + adjoint(wide(a))))


@pytest.mark.parametrize("bad", [-1, 0, np.nan])
def test_not_positive_definite(bad):
    a = np.stack([np.eye(70), np.eye(70), np.eye(70)]).astype("f4")
    a[1, 40, 40] = bad
    result = np.asarray(jax.jit(jnp.linalg.cholesky)(a))
    assert np.isnan(result[1][np.tril_indices(70)]).all()
    np.testing.assert_array_equal(result[[0, 2]], a[[0, 2]])
    assert np.isnan(np.asarray(jax.jit(jax.lax.linalg.cholesky)(a[1]))[np.tril_indices(70)]).all()


def test_not_a_number():
    a = np.eye(6, dtype="f4")
    a[4, 2] = np.nan
    for function in (jnp.linalg.eigh, jnp.linalg.svd, jnp.linalg.inv):
        assert all(np.isnan(x).all() for x in jax.tree.leaves(jax.jit(function)(a)))
    # eigh without symmetrizing reads the lower triangle only.
    w, _ = jax.jit(lambda x: jax.lax.linalg.eigh(x, symmetrize_input=False))(a.T)
    assert np.isfinite(w).all()


def test_pivots_and_info():
    a = np.array([[1, 2, 3], [2, 4, 6], [0, 1, 1]], "f4")
    factors, pivots = jax.jit(lu_factor)(a)
    np.testing.assert_array_equal(pivots, [1, 2, 2])
    np.testing.assert_allclose(factors, [[2, 4, 6], [0, 1, 1], [0.5, 0, 0]])
    shapes = [jax.ShapeDtypeStruct((2, 3, 3), np.float32), jax.ShapeDtypeStruct((2, 3), np.int32)]
    shapes.append(jax.ShapeDtypeStruct((2,), np.int32))
    call = jax.ffi.ffi_call("lapack_sgetrf_ffi", shapes)
    _, pivots, info = jax.jit(call)(np.stack([a.T, np.eye(3, dtype="f4")]))
    np.testing.assert_array_equal(pivots, [[2, 3, 3], [1, 2, 3]])
    np.testing.assert_array_equal(info, [3, 0])


def test_nothing():
    for shape in ((0, 3, 3), (2, 0, 0)):
        for function in (jnp.linalg.cholesky, jnp.linalg.eigh, jnp.linalg.qr, jnp.linalg.inv):
            assert all(0 in x.shape for x in jax.tree.leaves(jax.jit(function)(np.zeros(shape, "f4"))))
    assert jax.jit(jnp.fft.fft)(np.zeros((0, 8), "c8")).shape == (0, 8)


def test_gradients():
    a = random((5, 5), "f8")
    a = a @ a.T + np.eye(5)
    value = jax.jit(jax.grad(lambda x: jnp.linalg.cholesky(x).sum() + jnp.linalg.slogdet(x)[1]))(a)
    step = np.zeros((5, 5))
    step[3, 1] = step[1, 3] = 1e-5

    def plain(x):
        return np.linalg.cholesky(x).sum() + np.linalg.slogdet(x)[1]

    expected = (plain(a + step) - plain(a - step)) / 2e-5
    assert abs(value[3, 1] + value[1, 3] - expected) < 1e-6


PROGRAM = """
import ferrule, jax, jax.numpy as jnp, numpy as np
ferrule.register_jax("xpu", target="xpu")
x = np.random.default_rng(0).standard_normal((48, 48)).astype("f4")
positive = x @ x.T + np.eye(48, dtype="f4")
def run(x, positive):
    return jnp.fft.fft2(x), jnp.linalg.cholesky(positive), jnp.linalg.solve(x, positive), jnp.linalg.eigvalsh(positive)
for result in jax.jit(run)(x, positive):
    print(np.abs(np.asarray(result)).sum())
"""


@pytest.mark.parametrize("access", ["0", "1"])
def test_with_and_without_the_library(python, access):
    """The same results, with memory as a GPU's and as the stand-in's; without the library the host is named."""
    environment = {"FERRULE_HOST_ACCESS": access, "FERRULE_DEBUG": "1", "JAX_PLATFORMS": "xpu,cpu"}
    by_library = python(PROGRAM, **environment)
    assert by_library.returncode == 0, by_library.stderr
    assert "runs on the host" not in by_library.stderr
    without = python(PROGRAM, FERRULE_LIBRARIES_OFF="mkl-sycl", **environment)
    assert "'cholesky'" in without.stderr and "runs on the host" in without.stderr
    assert without.stderr.count("oneMKL for the platform xpu is switched off or missing") == 1
    np.testing.assert_allclose(*(np.array(d.stdout.split(), float) for d in (by_library, without)), rtol=1e-4)

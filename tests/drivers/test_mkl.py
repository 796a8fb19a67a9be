"""oneMKL's calls through the driver, against NumPy in double precision."""

from __future__ import annotations

import numpy as np
import pytest
from driver_binding import DriverError

from ferrule.native import library_path
from ferrule.targets import xpu

PJRT = {"f4": 11, "f8": 12, "c8": 14, "c16": 15, "i4": 4, "i8": 5}
TYPES = ["f4", "f8", "c8", "c16"]
BATCHES = [(), (2, 2)]


@pytest.fixture(scope="module")
def device(driver):
    opened = driver.open(len(driver.devices()) - 1)  # the CPU device is the last
    yield opened
    opened.close()


@pytest.fixture(scope="module", autouse=True)
def _needs_mkl():
    if not xpu.find(library_path()).mkl:
        pytest.skip("oneMKL is not installed, or Ferrule was built without it")


def random(shape, dtype, seed=0):
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * generator.standard_normal(shape)
    return values.astype(dtype)


def about(a):
    return PJRT[a.dtype.str[1:]], a.shape


def run(device, target, operands, results, **attributes):
    """The results; `results` are arrays like them."""
    call = device.prepare(target, [about(a) for a in operands], [about(a) for a in results], attributes)
    data = [device.put(a) for a in operands]
    out = [device.allocate(max(1, a.nbytes)) for a in results]
    events = [call.run(data, out)]
    events.append(call.run(data, out, events))  # a call is run often
    arrays = [device.get(d, like, events) for d, like in zip(out, results, strict=True)]
    for d, a in zip(data, operands, strict=True):
        np.testing.assert_array_equal(device.get(d, a, events), a, "an operand was written")
    call.discard()
    for d in [*data, *out]:
        device.free(d)
    return arrays


def close(result, expected, k=1):
    tolerance = (2e-6 if result.dtype.str[1:] in ("f4", "c8") else 4e-15) * max(1, np.log2(k))
    scale = np.abs(expected).max() + 1e-300
    np.testing.assert_allclose(result / scale, expected / scale, rtol=0, atol=tolerance)


# --- transforms -------------------------------------------------------------------------------------------------
LENGTHS = [(1,), (2,), (97,), (1000,), (1, 5), (6, 7), (5, 1), (3, 4, 5), (4, 3, 6)]
KINDS = {"FFT": np.fft.fftn, "IFFT": np.fft.ifftn, "RFFT": np.fft.rfftn, "IRFFT": np.fft.irfftn}


def transform(device, x, kind, length):
    axes = tuple(range(-len(length), 0))
    wide = x.astype("c16" if x.dtype.kind == "c" else "f8")
    expected = KINDS[kind](wide, length, axes)
    single = x.dtype.str[1:] in ("f4", "c8")
    dtype = ("f4" if single else "f8") if kind == "IRFFT" else ("c8" if single else "c16")
    (result,) = run(device, "mkl.dft", [x], [np.empty(expected.shape, dtype)], type=kind, length=length)
    return result, expected


@pytest.mark.parametrize("wide", [False, True], ids=["single", "double"])
@pytest.mark.parametrize("length", [(1,), (2,), (97,), (1000,), (1, 5), (6, 7), (5, 1), (3, 4, 5), (4, 3, 6)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_transform(device, batch, kind, length, wide):
    dtype = {False: ("f4", "c8"), True: ("f8", "c16")}[wide][kind != "RFFT"]
    x = random((*batch, *length), dtype)
    if kind == "IRFFT":  # the call takes spectra of real signals
        x = np.fft.rfftn(random((*batch, *length), "f8"), length, tuple(range(-len(length), 0))).astype(dtype)
    result, expected = transform(device, x, kind, length)
    close(result, expected, np.prod(length))


def test_transform_of_what_is_not_a_number(device):
    x = random((3, 64), "c8")
    x[1, 5] = np.nan
    result, expected = transform(device, x, "FFT", (64,))
    assert np.isnan(result[1]).all()
    close(result[[0, 2]], expected[[0, 2]], 64)


@pytest.mark.parametrize(
    "operand, result, attributes, why",
    [
        ((14, (4, 8)), (14, (4, 8)), {"type": "FFT", "length": (8, 8)}, "do not fit"),
        ((14, (8,)), (15, (8,)), {"type": "FFT", "length": (8,)}, "do not fit"),
        ((14, (8,)), (14, (8,)), {"type": "DCT", "length": (8,)}, "DCT"),
        ((14, (0, 8)), (14, (0, 8)), {"type": "FFT", "length": (8,)}, "nothing"),
        ((14, (8,)), (14, (8,)), {"type": "FFT", "length": ()}, "0 dimensions"),
    ],
)
def test_refused_transforms(device, operand, result, attributes, why):
    with pytest.raises(DriverError, match=why):
        device.prepare("mkl.dft", [operand], [result], attributes)


# --- matrices ---------------------------------------------------------------------------------------------------
def adjoint(a):
    return a.conj().swapaxes(-1, -2)


def columns(a):
    """The bytes of matrices column by column, under their own shape."""
    return np.ascontiguousarray(a.swapaxes(-1, -2)).reshape(a.shape)


def from_columns(a):
    return a.reshape(*a.shape[:-2], a.shape[-1], a.shape[-2]).swapaxes(-1, -2)


def positive(shape, dtype):
    a = random(shape, dtype).astype("c16" if np.dtype(dtype).kind == "c" else "f8")
    return (a @ adjoint(a) + np.eye(shape[-1])).astype(dtype)


def narrow(a, dtype):
    return (a if np.dtype(dtype).kind == "c" else a.real).astype(dtype)


def real(dtype):
    return {"c8": "f4", "c16": "f8"}.get(dtype, dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("n", [1, 5, 130])
@pytest.mark.parametrize("lower", [0, 1])
def test_cholesky(device, lower, n, batch, dtype):
    a = positive((*batch, n, n), dtype)
    keep = np.tril if lower else np.triu
    (result,) = run(device, "mkl.potrf", [np.where(keep(np.ones((n, n))), a, 7).astype(dtype)], [a], lower=lower)
    expected = np.linalg.cholesky(a.astype("c16"))
    close(keep(result), expected if lower else adjoint(expected), n)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n, at", [(1, 0), (5, 4), (200, 150)])
@pytest.mark.parametrize("what", [-1, 0, np.nan, np.inf])
@pytest.mark.parametrize("lower", [0, 1])
def test_what_is_not_positive_definite(device, lower, what, n, at, dtype):
    a = np.broadcast_to(np.eye(n), (3, n, n)).astype(dtype)
    a[1, at, at] = what
    (result,) = run(device, "mkl.potrf", [a], [a], lower=lower)
    diagonal = np.diagonal(result.real, axis1=1, axis2=2)
    if what != np.inf:
        assert not (diagonal[1] > 0).all()
    np.testing.assert_array_equal(diagonal[[0, 2]], 1)
    (alone,) = run(device, "mkl.potrf", [a[1]], [a[1]], lower=lower)
    if what != np.inf:
        assert not (np.diagonal(alone.real) > 0).all()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("form", ["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"])
@pytest.mark.parametrize("left, lower, unit", [(1, 1, 0), (1, 0, 1), (0, 1, 1), (0, 0, 0)])
def test_triangular_solve(device, left, lower, unit, form, batch, dtype):
    n, m = 17, 6
    a = random((*batch, n, n), dtype) / n + np.eye(n, dtype=dtype)
    b = random((*batch, n, m) if left else (*batch, m, n), dtype, 1)
    attributes = {"left_side": left, "lower": lower, "unit_diagonal": unit, "form": form}
    (x,) = run(device, "mkl.trsm", [a, b], [b], **attributes)
    wide = a.astype("c16")
    t = np.tril(wide, -unit) if lower else np.triu(wide, unit)
    t = t + unit * np.eye(n)
    t = {"NO_TRANSPOSE": t, "TRANSPOSE": t.swapaxes(-1, -2), "ADJOINT": adjoint(t)}[form]
    close(narrow(t @ x if left else x @ t, dtype), b, n)


def test_a_singular_solve_is_no_error(device):
    a, b = np.zeros((4, 4), "f4"), np.ones((4, 2), "f4")
    (x,) = run(device, "mkl.trsm", [a, b], [b], left_side=1, lower=1, unit_diagonal=0, form="NO_TRANSPOSE")
    assert not np.isfinite(x).any()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("m, n", [(1, 1), (9, 4), (4, 9), (70, 70)])
def test_lu(device, m, n, batch, dtype):
    a = random((*batch, m, n), dtype)
    k = min(m, n)
    lu, pivots = run(device, "mkl.getrf", [columns(a)], [a, np.empty((*batch, k), "i8")])
    lu = from_columns(lu).astype("c16").reshape(-1, m, n)
    for one, pivot, of in zip(lu, pivots.reshape(-1, k), a.reshape(-1, m, n), strict=True):
        expected = of.astype("c16")
        for i, p in enumerate(pivot - 1):
            expected[[i, p]] = expected[[p, i]]
        product = (np.tril(one, -1)[:, :k] + np.eye(m, k)) @ np.triu(one)[:k]
        close(narrow(product, dtype), expected, n)


def test_lu_of_singular_matrices(device):
    a = np.zeros((2, 3, 3), "f4")
    a[1] = 1
    lu, pivots = run(device, "mkl.getrf", [a], [a, np.empty((2, 3), "i8")])
    np.testing.assert_array_equal(lu[0], 0)
    np.testing.assert_array_equal(from_columns(lu)[1], [[1, 1, 1], [1, 0, 0], [1, 0, 0]])
    assert ((pivots >= 1) & (pivots <= 3)).all()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("m, n", [(1, 1), (9, 4), (4, 9), (70, 70)])
@pytest.mark.parametrize("full", [False, True])
def test_qr(device, full, m, n, batch, dtype):
    a = random((*batch, m, n), dtype)
    k = min(m, n)
    r, tau = run(device, "mkl.geqrf", [columns(a)], [a, np.empty((*batch, k), dtype)])
    r, width = from_columns(r), m if full else k
    reflectors = np.zeros((*batch, m, width), dtype)
    reflectors[..., :k] = r[..., :k]
    (q,) = run(device, "mkl.orgqr", [columns(reflectors), tau], [reflectors])
    q = from_columns(q)
    close(adjoint(q) @ q, np.broadcast_to(np.eye(width), (*batch, width, width)), 4 * n)
    close(q[..., :k] @ np.triu(r)[..., :k, :], a, 4 * n)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("n", [1, 7, 80])
@pytest.mark.parametrize("lower", [0, 1])
@pytest.mark.parametrize("vectors", [0, 1])
def test_eigenvalues(device, vectors, lower, n, batch, dtype):
    a = random((*batch, n, n), dtype)
    a = a + adjoint(a)
    keep = np.tril if lower else np.triu
    results = [a, np.empty((*batch, n), real(dtype)), np.empty(batch, "i4")]
    read = columns(np.where(keep(np.ones((n, n))), a, 7).astype(dtype))
    v, w, info = run(device, "mkl.syevd", [read], results, lower=lower, vectors=vectors)
    np.testing.assert_array_equal(info, 0)
    close(w, np.linalg.eigvalsh(a.astype("c16")), 4 * n)
    if vectors:
        v = from_columns(v)
        close((v * w[..., None, :]) @ adjoint(v), a, 16 * n)
        close(adjoint(v) @ v, np.broadcast_to(np.eye(n), a.shape), 4 * n)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("m, n", [(1, 1), (9, 4), (4, 9), (60, 60)])
@pytest.mark.parametrize("vectors", ["all", "some", "none"])
def test_singular_values(device, vectors, m, n, batch, dtype):
    a = random((*batch, m, n), dtype)
    k = min(m, n)
    u_columns, v_rows = {"all": (m, n), "some": (k, k), "none": (0, 0)}[vectors]
    results = [np.empty((*batch, k), real(dtype)), np.empty((*batch, m, u_columns), dtype)]
    results += [np.empty((*batch, v_rows, n), dtype), np.empty(batch, "i4")]
    s, u, v, info = run(device, "mkl.gesvd", [columns(a)], results, vectors=vectors)
    np.testing.assert_array_equal(info, 0)
    close(s, np.linalg.svd(a.astype("c16"), compute_uv=False), 16 * n)
    if vectors != "none":
        u, v = from_columns(u), from_columns(v)
        close((u[..., :k] * s[..., None, :]) @ v[..., :k, :], a, 16 * n)
        close(adjoint(u) @ u, np.broadcast_to(np.eye(u_columns), (*batch, u_columns, u_columns)), 16 * n)
        close(v @ adjoint(v), np.broadcast_to(np.eye(v_rows), (*batch, v_rows, v_rows)), 16 * n)


@pytest.mark.parametrize(
    "target, operands, results, attributes, why",
    [
        ("mkl.potrf", [(11, (2, 3))], [(11, (2, 3))], {"lower": 1}, "square"),
        ("mkl.potrf", [(11, (0, 0))], [(11, (0, 0))], {"lower": 1}, "nothing"),
        ("mkl.potrf", [(10, (2, 2))], [(10, (2, 2))], {"lower": 1}, "type 10"),
        ("mkl.potrf", [(11, (2, 2))], [(12, (2, 2))], {"lower": 1}, "type 11"),
        ("mkl.potrf", [(11, (2, 2))], [], {"lower": 1}, "1 operands and 1 results"),
        ("mkl.getrf", [(11, (2, 2))], [(11, (2, 2)), (4, (2,))], {}, "pivots"),
        ("mkl.orgqr", [(11, (2, 3)), (11, (2,))], [(11, (2, 3))], {}, "do not fit"),
        ("mkl.gesvd", [(11, (2, 2))], [(11, (2,)), (11, ()), (11, ()), (4, ())], {"vectors": "few"}, "few"),
    ],
)
def test_refused_matrices(device, target, operands, results, attributes, why):
    with pytest.raises(DriverError, match=why):
        device.prepare(target, operands, results, attributes)


def test_unknown_calls_are_named(device):
    with pytest.raises(DriverError, match=r"there is mkl\.dft"):
        device.prepare("mkl.nothing", [], [], {})

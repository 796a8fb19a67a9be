"""LU factors of small matrices and triangular solves by vectors (native/small_matrix*), against NumPy and LAPACK."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from instruction_sets import LESSER_SETS
from one_call import call
from scipy.linalg import hadamard, lapack

TYPES = ["f", "d"]
SHAPES = [(1, 1), (2, 2), (7, 7), (8, 8), (16, 16), (17, 17), (31, 31), (33, 33), (48, 48), (63, 63), (64, 64)]
SHAPES += [(5, 9), (9, 5), (1, 64), (64, 1), (20, 64), (64, 20), (40, 33)]


def lu(a):
    if a.ndim == 2:
        return [x[0] for x in lu(a[None])]
    steps = min(a.shape[-2:])
    results = [(a.shape, a.dtype), ((*a.shape[:-2], steps), "i"), (a.shape[:-2], "i")]
    return call("lu", [a], results, {})


def getf2(a):
    """LAPACK's algorithm for one matrix, step by step."""
    a, steps, info = a.copy(), min(a.shape), 0
    pivots = np.zeros(steps, "i")
    with np.errstate(all="ignore"):
        for k in range(steps):
            magnitude = np.abs(a[k:, k])
            p = k if np.isnan(magnitude[0]) else k + int(np.argmax(np.where(np.isnan(magnitude), -1, magnitude)))
            pivots[k] = p + 1
            a[[k, p]] = a[[p, k]]
            if a[k, k] != 0:
                a[k + 1 :, k] /= a[k, k]
            elif not info:
                info = k + 1
            a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
    return a, pivots, info


def normal(shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def check_factors(dtype):
    for shape in SHAPES:
        a = normal((3, *shape), dtype)
        got, pivots, info = lu(a)
        assert not info.any()
        for matrix, factors, exchanged in zip(a, got, pivots, strict=True):
            want, rows, _ = (lapack.sgetrf if dtype == "f" else lapack.dgetrf)(matrix)
            np.testing.assert_array_equal(exchanged, rows + 1)
            np.testing.assert_allclose(factors, want, rtol=0, atol=2000 * np.finfo(dtype).eps * np.abs(want).max())
            steps = min(shape)
            lower, upper = np.float64(factors[:, :steps]), np.triu(np.float64(factors[:steps]))
            lower = np.tril(lower, -1) + np.eye(shape[0], steps)
            moved = np.float64(matrix)
            for k, p in enumerate(exchanged - 1):
                moved[[k, p]] = moved[[p, k]]
            np.testing.assert_allclose(lower @ upper, moved, rtol=0, atol=50 * np.finfo(dtype).eps * np.abs(want).max())


def exact(dtype):
    """Matrices whose factors have no rounding, with many equal magnitudes."""
    rng = np.random.default_rng(5)
    for n in (2, 4, 16, 32, 64):
        yield hadamard(n).astype(dtype)[rng.permutation(n)] * 2.0 ** rng.integers(-3, 4)
        yield np.eye(n, dtype=dtype)[rng.permutation(n)] * rng.choice([-1, 1], n)
    yield np.zeros((9, 9))
    yield np.ones((6, 6))
    yield np.ones((18, 5))
    yield np.diag([1.0, 0, -2, 0, 3])
    yield np.outer(2.0 ** np.arange(12), 2.0 ** rng.integers(-5, 5, 20))
    yield -np.zeros((3, 3))


def check_ties(dtype):
    for a in exact(dtype):
        a = np.asarray(a, dtype)
        want, rows, stopped = getf2(a)
        got, pivots, info = lu(a)
        np.testing.assert_array_equal(pivots, rows)
        np.testing.assert_array_equal(info, stopped)
        np.testing.assert_array_equal(got, want)


def check_not_finite(dtype):
    for n in (3, 16, 21, 40):
        for bad in (np.nan, np.inf, -np.inf):
            for at in ((0, 0), (n - 1, 0), (0, n - 1), (1, 1), (n // 2, n // 2), (n - 1, n - 1)):
                a = normal((n, n), dtype, n)
                a[at] = bad
                want, rows, stopped = getf2(a)
                got, pivots, info = lu(a)
                np.testing.assert_array_equal(pivots, rows)
                np.testing.assert_array_equal(info, stopped)
                np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
                fine = ~np.isnan(want)
                np.testing.assert_allclose(got[fine], want[fine], rtol=1e-3 if dtype == "f" else 1e-10, atol=1e-4)


def check_solve(dtype):
    for n in (1, 2, 16, 33, 64, 100):
        for other in (1, 2, 16, 40):
            for lower in (True, False):
                a = (normal((2, n, n), dtype) * 0.3 + 3 * np.eye(n)).astype(dtype)
                b = normal((2, n, other), dtype, 1)
                triangle = np.tril(a) if lower else np.triu(a)
                at = dict(left_side=True, lower=lower, unit_diagonal=False, transpose_a="NO_TRANSPOSE")
                got = call("triangular_solve", [a, b], [(b.shape, dtype)], at)[0]
                want = np.linalg.solve(triangle.astype("d"), b.astype("d"))
                np.testing.assert_allclose(got, want, rtol=0, atol=100 * np.finfo(dtype).eps * np.abs(want).max())


def check_few(dtype):
    """Few right-hand sides, which are vectors: every form of every triangle, one matrix and several."""
    sizes = [(2, 33, 2), (2, 47, 5), (1, 70, 15), (2, 101, 8), (1, 530, 16), (1, 600, 33)]
    for (batch, n, other), left, lower, unit in itertools.product(sizes, *[[True, False]] * 3):
        a = normal((batch, n, n), dtype) * (0.3 if n < 500 else 0.03)
        a = (a * 0.1 if unit else a + 3 * np.eye(n)).astype(dtype)
        b = normal((batch, n, other) if left else (batch, other, n), dtype, 1)
        full = (np.tril if lower else np.triu)(a.astype("d"))
        a = np.where((np.tril if lower else np.triu)(np.ones((n, n))) > 0, a, np.nan).astype(dtype)  # not to be read
        if unit:
            full = full - full * np.eye(n) + np.eye(n)
            a = np.where(np.eye(n) > 0, np.nan, a).astype(dtype)
        for form in ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"):
            op = full if form == "NO_TRANSPOSE" else full.transpose(0, 2, 1)
            at = dict(left_side=left, lower=lower, unit_diagonal=unit, transpose_a=form)
            got = call("triangular_solve", [a, b], [(b.shape, dtype)], at)[0].astype("d")
            rest = (op @ got if left else got @ op) - b
            limit = 20 * np.finfo(dtype).eps * (abs(op) @ abs(got) if left else abs(got) @ abs(op))
            assert (abs(rest) <= limit).all(), (n, other, left, lower, unit, form)


CHECKS = {
    "few": check_few,
    "factors": check_factors,
    "ties": check_ties,
    "not finite": check_not_finite,
    "solve": check_solve,
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("check", CHECKS)
def test_as_chosen(check, dtype):
    CHECKS[check](dtype)


@pytest.mark.parametrize("isa", LESSER_SETS)
def test_other_instruction_sets(isa):
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from test_small_matrix import CHECKS, TYPES
for check in CHECKS.values():
    for dtype in TYPES:
        check(dtype)
"""
    environment = os.environ | {"FERRULE_ISA": isa}
    subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent)], check=True, env=environment)


def test_a_zero_in_the_triangle_of_one_of_many_right_sides_stays_there():
    """A singular triangle makes infinities and NaN, in whole columns only where they belong."""
    a, b = np.tril(normal((20, 20), "f")) + 4 * np.eye(20, dtype="f"), normal((20, 5), "f", 1)
    a[3, 3], b[:, 2] = 0, 0
    at = dict(left_side=True, lower=True, unit_diagonal=False, transpose_a="NO_TRANSPOSE")
    got = call("triangular_solve", [a, b], [(b.shape, "f")], at)[0]
    assert np.isfinite(got[:3]).all() and np.isnan(got[3:, 2]).all() and np.isinf(got[3, [0, 1, 3, 4]]).all()


def test_many_matrices_in_threads():
    a = normal((700, 12, 12), "f")
    got, pivots, info = lu(a)
    assert not info.any()
    for i in (0, 333, 699):
        one = lu(a[i])
        np.testing.assert_array_equal(got[i], one[0])
        np.testing.assert_array_equal(pivots[i], one[1])


def test_exchanges_of_rows():
    pivots = np.array([[2, 2, 5], [0, -1, 2], [9, -9, 1]], "i")
    got = call("ferrule.lu_permutation", [pivots], [((3, 6), "i")], {})[0]
    np.testing.assert_array_equal(got, [[2, 0, 5, 3, 4, 1], [0, 5, 2, 3, 4, 1], [0, 2, 1, 3, 4, 5]])


@pytest.mark.parametrize("shape, dtype", [((65, 0), "f"), ((4,), "f"), ((4, 4), "F"), ((4, 4), "i")])
def test_what_it_is_not_for(shape, dtype):
    with pytest.raises(RuntimeError, match="library call lu"):
        call("lu", [np.ones(shape, dtype)], [(shape, dtype), (shape[:1], "i"), ((1,), "i")], {})

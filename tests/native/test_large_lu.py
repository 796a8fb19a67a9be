"""LU factors of matrices larger than small ones (native/lu.cc), against LAPACK."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from instruction_sets import LESSER_SETS
from scipy.linalg import lapack
from test_small_matrix import exact, getf2, lu, normal

TYPES = ["f", "d"]
# Around the widths of panels, leaves and strips.
SHAPES = [(65, 65), (96, 96), (127, 127), (129, 129), (200, 200), (257, 257), (320, 320), (519, 519)]
SHAPES += [(65, 1), (1, 65), (100, 33), (33, 100), (600, 40), (40, 600), (260, 300), (300, 260), (70, 1500), (1500, 70)]


def factors_of(lu):
    steps = min(lu.shape)
    return np.tril(lu[:, :steps], -1) + np.eye(lu.shape[0], steps), np.triu(lu[:steps])


def moved(a, pivots):
    a = a.astype(np.longdouble)
    for k, p in enumerate(pivots - 1):
        a[[k, p]] = a[[p, k]]
    return a


def error(a, lu, pivots):
    lower, upper = factors_of(lu.astype("d" if lu.dtype == "f" else np.longdouble))
    return float(np.sqrt(np.mean((lower @ upper - moved(a, pivots)) ** 2)))


def check_factors(dtype, shapes=SHAPES):
    for shape in shapes:
        a = normal(shape, dtype)
        got, pivots, info = lu(a)
        want, rows, _ = (lapack.sgetrf if dtype == "f" else lapack.dgetrf)(a)
        assert info == 0
        np.testing.assert_array_equal(pivots, rows + 1)
        np.testing.assert_allclose(got, want, rtol=0, atol=5e4 * np.finfo(dtype).eps * np.abs(want).max())
        if dtype == "f" or max(shape) < 300:  # products in long double are slow
            assert error(a, got, pivots) <= 1.3 * error(a, want, rows + 1) + np.finfo(dtype).eps


def check_ties(dtype):
    """What has no rounding, beside much that is not finite or zero."""
    for a in exact(dtype):
        a = np.kron(np.eye(3), np.asarray(a)).astype(dtype)
        a = np.pad(a, [(0, max(0, 70 - n)) for n in a.shape])
        want, rows, stopped = getf2(a)
        got, pivots, info = lu(a)
        np.testing.assert_array_equal(pivots, rows)
        np.testing.assert_array_equal(info, stopped)
        np.testing.assert_array_equal(got, want)


def check_not_finite(dtype):
    n = 150
    for bad in (np.nan, np.inf, -np.inf):
        for at in ((0, 0), (n - 1, 0), (0, n - 1), (40, 3), (n // 2, n // 2), (n - 1, n - 1)):
            a = normal((n, n), dtype, n)
            a[at] = bad
            want, rows, stopped = getf2(a)
            got, pivots, info = lu(a)
            np.testing.assert_array_equal(pivots, rows)
            np.testing.assert_array_equal(info, stopped)
            np.testing.assert_array_equal(np.isnan(got), np.isnan(want))


def check_singular(dtype):
    """The first zero pivot is what info says, and factoring goes on behind it."""
    for n, zeros in ((100, [40, 70]), (300, [0, 299]), (200, [199]), (200, [64, 65, 128])):
        a = normal((n, n), dtype, n)
        a[:, zeros] = 0
        want, rows, stopped = getf2(a)
        got, pivots, info = lu(a)
        assert info == stopped == zeros[0] + 1
        np.testing.assert_array_equal(pivots, rows)
        np.testing.assert_allclose(got, want, rtol=0, atol=5e4 * np.finfo(dtype).eps * np.abs(want).max())


def check_magnitudes(dtype):
    """Scaled by powers of two everything stays the same."""
    a = normal((180, 180), dtype)
    got, pivots, _ = lu(a)
    for scale in (2.0**-90, 2.0**90):
        scaled, others, info = lu((a * dtype_of(dtype)(scale)).astype(dtype))
        np.testing.assert_array_equal(pivots, others)
        upper = np.triu(np.ones_like(a, bool))
        np.testing.assert_array_equal(np.where(upper, got * dtype_of(dtype)(scale), got), scaled)
        assert info == 0
    tiny = np.eye(100, dtype=dtype) * np.finfo(dtype).tiny / 8
    np.testing.assert_array_equal(lu(tiny)[0], tiny)


def dtype_of(dtype):
    return np.dtype(dtype).type


CHECKS = {
    "factors": check_factors,
    "ties": check_ties,
    "not finite": check_not_finite,
    "singular": check_singular,
    "magnitudes": check_magnitudes,
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("check", CHECKS)
def test_as_chosen(check, dtype):
    CHECKS[check](dtype)


def test_large():
    check_factors("f", [(1100, 1100)])


@pytest.mark.parametrize("isa", LESSER_SETS)
def test_other_instruction_sets(isa):
    run({"FERRULE_ISA": isa})


@pytest.mark.parametrize("threads", ["1", "4", "16"])
def test_threads(threads):
    run({"FERRULE_NUM_THREADS": threads})


def run(variables):
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from test_large_lu import CHECKS, TYPES
for check in CHECKS.values():
    for dtype in TYPES:
        check(dtype)
"""
    environment = os.environ | variables
    subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent)], check=True, env=environment)


@pytest.mark.parametrize("count", [2, 5])
def test_batches(count):
    a = normal((count, 140, 140), "f")
    got, pivots, info = lu(a)
    assert not info.any()
    for i in range(count):
        one = lu(a[i])
        np.testing.assert_allclose(got[i], one[0], rtol=0, atol=1e-4)
        np.testing.assert_array_equal(pivots[i], one[1])


def test_ill_conditioned():
    """As near to the matrix as LAPACK's factors are."""
    i = np.arange(200.0)
    hilbert = 1 / (i[:, None] + i + 1)
    u, _ = np.linalg.qr(normal((200, 200), "d"))
    graded = u * 10.0 ** -(i / 15) @ u.T
    kahan = np.triu(np.full((200, 200), -0.3), 1) + np.eye(200)
    for a in (hilbert, graded, kahan):
        for dtype in TYPES:
            x = a.astype(dtype)
            got, pivots, _ = lu(x)
            want, rows, _ = (lapack.sgetrf if dtype == "f" else lapack.dgetrf)(x)
            assert error(x, got, pivots) <= 1.5 * error(x, want, rows + 1) + np.finfo(dtype).eps / 16

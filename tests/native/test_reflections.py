"""QR factorizations, products of their reflections and products with them (native/qr*), against NumPy and LAPACK."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from instruction_sets import LESSER_SETS
from one_call import call
from scipy.linalg import lapack

TYPES = ["f", "d"]
SMALL = [
    (1, 1),
    (2, 2),
    (1, 5),
    (5, 1),
    (3, 7),
    (7, 3),
    (8, 8),
    (16, 16),
    (17, 17),
    (15, 33),
    (33, 15),
    (20, 60),
    (60, 20),
]
LARGE = [(33, 33), (64, 64), (65, 65), (100, 100), (130, 70), (70, 130), (129, 129), (300, 31), (31, 300), (700, 9)]
LARGE += [(260, 200), (200, 260), (513, 140), (400, 385)]


def geqrf(a):
    taus = (*a.shape[:-2], min(a.shape[-2:]))
    return call("geqrf", [a], [(a.shape, a.dtype), (taus, a.dtype)], {})


def product(a, taus):
    return call("householder_product", [a, taus], [(a.shape, a.dtype)], {})[0]


def ormqr(a, taus, c, left, adjoint):
    return call("ormqr", [a, taus, c], [(c.shape, a.dtype)], dict(left=left, adjoint=adjoint))[0]


def normal(shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def lapack_geqrf(a):
    factors, taus, _, info = getattr(lapack, {"f": "sgeqrf", "d": "dgeqrf"}[a.dtype.char])(a)
    assert info == 0
    return factors, taus


def whole(factors, taus):
    """Q of all rows, in f64, one reflection after the other."""
    rows, wide = factors.shape[0], factors.astype("d")
    q = np.eye(rows)
    for j in reversed(range(len(taus))):
        v = np.concatenate([np.zeros(j), [1], wide[j + 1 :, j]])
        q -= np.outer(np.float64(taus[j]) * v, v @ q)
    return q


def check(a, scale=None):
    """Q R is A, column by column, and Q is orthogonal; all are LAPACK's. Returns the packed factors."""
    dtype, (rows, columns), steps = a.dtype, a.shape, min(a.shape)
    eps = np.finfo(dtype).eps * (10 + 2 * max(rows, columns) ** 0.5)
    factors, taus = geqrf(a)
    wanted, wanted_taus = lapack_geqrf(a)
    sizes = np.abs(a.astype("d")).max(0)
    sizes[sizes == 0] = 1
    # Small elements of the diagonal, and what is divided by them, are known less well.
    loose = 100 * eps if scale is None else scale
    np.testing.assert_array_equal(np.signbit(np.diag(factors)), np.signbit(np.diag(wanted)))
    np.testing.assert_allclose(np.triu(factors) / sizes, np.triu(wanted) / sizes, rtol=0, atol=loose)
    np.testing.assert_allclose(np.tril(factors[:, :steps], -1), np.tril(wanted[:, :steps], -1), rtol=0, atol=loose)
    np.testing.assert_allclose(taus, wanted_taus, rtol=0, atol=loose)
    q = whole(factors, taus)
    np.testing.assert_allclose((q @ np.triu(factors.astype("d"))) / sizes, a / sizes, rtol=0, atol=eps)
    np.testing.assert_allclose(q.T @ q, np.eye(rows), rtol=0, atol=eps)
    got = product(np.ascontiguousarray(factors[:, :steps]), taus)
    np.testing.assert_allclose(got, q[:, :steps], rtol=0, atol=eps)
    return factors, taus, q


def check_small(dtype):
    for shape in SMALL:
        check(normal(shape, dtype))


def check_large(dtype):
    for shape in LARGE:
        check(normal(shape, dtype), scale=1e4 * np.finfo(dtype).eps)


def check_more_columns(dtype):
    """Products of fewer reflections than columns."""
    for rows, columns, steps in [(5, 5, 2), (40, 33, 7), (64, 64, 63), (9, 1, 1), (300, 200, 40), (200, 200, 199)]:
        factors, taus, q = check(normal((rows, steps), dtype))
        a = np.full((rows, columns), np.nan, dtype)  # what is not a reflection is not read
        a[:, :steps] = factors
        eps = np.finfo(dtype).eps * (10 + 2 * rows**0.5)
        np.testing.assert_allclose(product(a, taus), q[:, :columns], rtol=0, atol=eps)


def check_applied(dtype):
    for rows, columns, others in [
        (1, 1, 1),
        (8, 5, 3),
        (5, 8, 70),
        (70, 70, 1),
        (203, 3, 1),
        (300, 140, 65),
        (300, 140, 8),
        (300, 140, 9),
        (140, 300, 200),
    ]:
        factors, taus, q = check(normal((rows, columns), dtype), scale=1e4 * np.finfo(dtype).eps)
        c = normal((rows, others), dtype, 1)
        eps = np.finfo(dtype).eps * (10 + 8 * rows**0.5)
        for adjoint in (False, True):
            wide = q.T if adjoint else q
            np.testing.assert_allclose(ormqr(factors, taus, c, True, adjoint), wide @ c, rtol=0, atol=eps)
            right = np.ascontiguousarray(c.T)
            np.testing.assert_allclose(ormqr(factors, taus, right, False, adjoint), right @ wide, rtol=0, atol=eps)


def check_right_sides(dtype):
    """As least-squares problems have them, below and above the limit for one reflection after the other."""
    for rows, columns, sides in [(1200, 800, 1), (1200, 900, 1), (1200, 900, 8)]:
        factors, taus = geqrf(a := normal((rows, columns), dtype))
        x = normal((columns, sides), dtype, 1)
        scale = np.finfo(dtype).eps * rows**0.5 * columns**0.5
        applied = ormqr(factors, taus, a @ x, True, True)
        np.testing.assert_allclose(applied[:columns], np.triu(factors[:columns]) @ x, rtol=0, atol=100 * scale)
        np.testing.assert_allclose(applied[columns:], 0, rtol=0, atol=100 * scale)
        np.testing.assert_allclose(ormqr(factors, taus, applied, True, False), a @ x, rtol=0, atol=100 * scale)


def check_magnitudes(dtype):
    """Squares of these would over- or underflow; columns of different ones do not touch each other's digits."""
    limit = 30 if dtype == "f" else 300
    rng = np.random.default_rng(3)
    for shape in [(1, 1), (6, 6), (20, 33), (65, 40), (200, 150)]:
        a = normal(shape, "d")
        for sizes in (10.0**limit, 10.0**-limit, 10.0 ** rng.integers(-limit, limit, shape[1])):
            check((a * sizes).astype(dtype), scale=1e4 * np.finfo(dtype).eps)
        # What is left of a column may be small by itself.
        beside = np.triu(a) / shape[1] + np.eye(*shape)
        beside[np.tril_indices_from(a, -1)] = 10.0**-limit * normal(np.tril_indices_from(a, -1)[0].shape, "d")
        check(beside.astype(dtype), scale=1e4 * np.finfo(dtype).eps)
    least = np.finfo(dtype).smallest_subnormal
    tiny = (rng.integers(-50, 50, (9, 5)) * np.float64(least)).astype(dtype)
    factors, taus = geqrf(tiny)
    np.testing.assert_allclose(whole(factors, taus) @ np.triu(factors.astype("d")), tiny, rtol=0, atol=20 * least)


def check_no_rank(dtype):
    for rows, columns in [(1, 1), (5, 5), (40, 20), (20, 40), (150, 100)]:
        a = normal((rows, columns), dtype)
        for of in (np.zeros_like(a), np.triu(a), np.eye(rows, columns, dtype=dtype)):
            factors, taus = geqrf(of)
            np.testing.assert_array_equal(factors, of)
            np.testing.assert_array_equal(taus, np.zeros_like(taus))
        a[:, ::3] = 0
        check(a, scale=1e4 * np.finfo(dtype).eps)
        eps = 4 * np.finfo(dtype).eps * max(rows, columns)  # all rounding goes one way
        for of in (np.ones_like(a), np.outer(a[:, -1], a[-1]), np.repeat(a[:, :1], columns, 1)):
            factors, taus = geqrf(of)
            q = whole(factors, taus)
            np.testing.assert_allclose(q @ np.triu(factors), of, rtol=0, atol=eps * max(1, np.abs(of).max()))
            np.testing.assert_allclose(q.T @ q, np.eye(rows), rtol=0, atol=eps)


def check_not_finite(dtype):
    for n in (1, 3, 16, 21, 40, 150):
        for bad in (np.nan, np.inf, -np.inf):
            for at in {(0, 0), (n - 1, 0), (0, n - 1), (n // 2, n // 2), (n - 1, n - 1)}:
                a = normal((n, n), dtype, n)
                a[at] = bad
                factors, taus = geqrf(a)
                wanted, wanted_taus = lapack_geqrf(a)
                # LAPACK leaves some elements alone that a product with zeros would make NaN.
                assert (np.isfinite(np.triu(factors)) <= np.isfinite(np.triu(wanted))).all()
                assert (np.isnan(taus) >= np.isnan(wanted_taus)).all()
                fine = slice(0, at[1])
                np.testing.assert_allclose(
                    np.triu(factors)[:, fine], np.triu(wanted)[:, fine], rtol=0, atol=1e4 * np.finfo(dtype).eps * n
                )
                if n > 1 and np.isnan(taus).any():
                    assert np.isnan(product(factors, taus)).any()


CHECKS = {
    "small": check_small,
    "large": check_large,
    "more columns": check_more_columns,
    "applied": check_applied,
    "right sides": check_right_sides,
    "magnitudes": check_magnitudes,
    "no rank": check_no_rank,
    "not finite": check_not_finite,
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("check", CHECKS)
def test_as_chosen(check, dtype):
    CHECKS[check](dtype)


def elsewhere(**environment):
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from test_reflections import CHECKS, TYPES
for check in CHECKS.values():
    for dtype in TYPES:
        check(dtype)
"""
    command = [sys.executable, "-c", code, str(Path(__file__).parent)]
    subprocess.run(command, check=True, env=os.environ | environment)


@pytest.mark.parametrize("isa", LESSER_SETS)
def test_other_instruction_sets(isa):
    elsewhere(FERRULE_ISA=isa)


@pytest.mark.parametrize("threads", ["1", "4", "16"])
def test_other_numbers_of_threads(threads):
    elsewhere(FERRULE_NUM_THREADS=threads)


@pytest.mark.parametrize("shape", [(700, 12, 12), (2, 3, 40, 60), (5, 200, 100), (40, 70, 70), (0, 4, 4)])
def test_many_matrices_in_threads(shape):
    a = normal(shape, "f")
    factors, taus = geqrf(a)
    q = product(np.ascontiguousarray(factors[..., : taus.shape[-1]]), taus)
    c = normal((*shape[:-2], shape[-2], 3), "f", 1)
    applied = ormqr(factors, taus, c, True, True)
    for i in list(np.ndindex(*shape[:-2]))[:: max(1, a.size // 200000)]:
        one, one_taus = geqrf(a[i])
        np.testing.assert_allclose(factors[i], one, rtol=0, atol=1e-4)
        np.testing.assert_allclose(taus[i], one_taus, rtol=0, atol=1e-4)
        np.testing.assert_allclose(q[i] @ np.triu(factors[i])[: q.shape[-1]], a[i], rtol=0, atol=1e-4)
        np.testing.assert_allclose(applied[i], whole(one, one_taus).T @ c[i], rtol=0, atol=1e-4)


@pytest.mark.parametrize("sides", [1, 8])
def test_no_reflection_touches_nothing(sides):
    """One with a factor of zero is none, as in LAPACK, whatever stands in the right side."""
    c = np.full((5, sides), np.inf, "f")
    np.testing.assert_array_equal(ormqr(np.ones((5, 3), "f"), np.zeros(3, "f"), c, True, False), c)


@pytest.mark.parametrize("dtype", ["F", "i", "e"])
def test_what_it_is_not_for(dtype):
    with pytest.raises(RuntimeError, match="library call geqrf"):
        geqrf(np.ones((4, 4), dtype))
    with pytest.raises(RuntimeError, match="library call householder_product"):
        product(np.ones((3, 4), "f"), np.ones(3, "f"))
    with pytest.raises(RuntimeError, match="library call ormqr"):
        ormqr(np.ones((4, 4), "f"), np.ones(4, "f"), np.ones((3, 4), "f"), True, False)

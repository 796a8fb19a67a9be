"""A product, and one of each row that it gives (native/gemm_pair.cc), against float64, with what zeros may not hide."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from one_call import OneCall, elsewhere, tensor
from test_gemm_bounds import at_the_end
from test_gemm_sparse import interpolation, one_hot, scattered

# Batch, and of each product its rows, what it sums over, and the columns of the second.
SIZES = [(3, 64, 40, 50, 70, 24), (1, 33, 130, 97, 32, 17), (2, 224, 32, 35, 100, 3)]
SINGLE = [(3, 64, 40, 50, 70, 1), (1, 33, 130, 300, 32, 1), (2, 37, 35, 257, 41, 1)]


def dense(rng: np.random.Generator, rows: int, k: int) -> np.ndarray:
    return rng.standard_normal((rows, k))


def pair(
    a: np.ndarray, x: np.ndarray, c: np.ndarray, by_row: bool, turned: bool = False, right: bool = False
) -> tuple[np.ndarray, ...]:
    """Images resized by `a` along their first dimension and then by `c` along the second, or, not by row, by `a` along
    the second and then by `c` along the first; and the memory for the first product. `right`: of images with single
    columns, what goes along the second dimension is the right side of one product."""
    (batch, height, width, n), size = x.shape, x.dtype.char
    stored = []
    for matrix in (a, c):
        stored.append(at_the_end(matrix.T.shape if turned else matrix.shape, size))
        stored[-1][...] = matrix.T if turned else matrix
    image = at_the_end(x.shape, size)
    image[...] = x
    if by_row:
        between, result = (batch, len(a), width, n), (batch, len(a), len(c), n)
        sizes = (batch, width * n), (batch * len(a), n)
    else:
        between, result = (batch, height, len(a), n), (batch, len(c), len(a), n)
        sizes = (batch * height, n), (batch, len(a) * n)
    attrs: dict[str, object] = {}
    for name, matrix, (count, columns) in zip(("", "then_"), (a, c), sizes):
        rows, inner = matrix.shape
        strides = (0, 1, rows) if turned else (0, inner, 1)
        attrs |= {f"{name}{key}": value for key, value in dict(batch=count, m=rows, n=columns, k=inner).items()}
        attrs |= {f"{name}a_strides": strides, f"{name}b_strides": (inner * columns, columns, 1)}
    if right:
        assert n == 1
        name, rows, weights = ("then_", batch * len(a), c) if by_row else ("", batch * height, a)
        attrs |= {f"{name}right": 1, f"{name}batch": 1, f"{name}m": rows, f"{name}n": len(weights)}
        attrs |= {f"{name}a_strides": (0, width, 1)}
        attrs |= {f"{name}b_strides": (0, len(weights), 1) if turned else (0, 1, width)}
    results = [at_the_end(result, size), at_the_end(between, size)]
    for memory in results:
        memory[...] = 7.0
    inputs = [stored[0], image, stored[1]]
    types = [[tensor(v.shape, size) for v in side] for side in (inputs, results)]
    OneCall("gemm.pair", *types, attrs).run(inputs, results)
    return results[0], results[1]


def along(matrix: np.ndarray, x: np.ndarray, first: bool) -> np.ndarray:
    batch, height, width, n = x.shape
    if first:
        return (matrix @ x.reshape(batch, height, width * n)).reshape(batch, len(matrix), width, n)
    return matrix @ x


def exactly(a: np.ndarray, x: np.ndarray, c: np.ndarray, by_row: bool) -> np.ndarray:
    """In two steps, since zeros times what the first leaves count."""
    with np.errstate(invalid="ignore", over="ignore"):
        return along(c, along(a, x, by_row), not by_row)


def apart(c: np.ndarray) -> int:
    """How many of what the first product gives the sums of the second need at a time."""
    places = [row.nonzero()[0] for row in c if row.any()]
    ends = np.maximum.accumulate([place[-1] + 1 for place in places])
    return max(end - place[0] for end, place in zip(ends, places))


def check_results() -> None:
    rng = np.random.default_rng(0)
    makes = (one_hot, interpolation, scattered, dense)
    for (batch, m, k, columns, width, n), size, one, two in itertools.product(SIZES + SINGLE, "fd", makes, makes):
        for by_row, turned, right in itertools.product((True, False), repeat=3):
            if right and n > 1:
                continue
            a, c = (one(rng, m, k), two(rng, columns, width)) if by_row else (one(rng, columns, width), two(rng, m, k))
            x = rng.standard_normal((batch, k, width, n))
            a, x, c = (v.astype(size).astype("d") for v in (a, x, c))
            found, memory = pair(*(v.astype(size) for v in (a, x, c)), by_row, turned, right)
            limit = 64 * np.finfo(size).eps * exactly(*map(np.abs, (a, x, c)), by_row)
            about = (m, k, columns, width, size, one, two, by_row, turned, right)
            assert (np.abs(found - exactly(a, x, c, by_row)) <= limit).all(), about
            kept = (
                by_row or two is dense or (apart(c) + 64 * (n == 1)) * len(a) * n * np.dtype(size).itemsize <= 1 << 18
            )
            sparse = dense not in (one, two) and kept
            if scattered not in (one, two):  # which may be taken for dense
                assert (memory == 7.0).all() == sparse, about  # what it is for was not needed


def check_nonfinite() -> None:
    """Also where no term of a sum takes it, and where the first sums overflow."""
    rng = np.random.default_rng(1)
    batch, m, k, columns, width, n = 2, 40, 96, 48, 64, 20
    makes = (one_hot, one_hot), (interpolation, interpolation), (scattered, scattered), (one_hot, interpolation)
    for (one, two), odd, place, by_row in itertools.product(
        makes,
        (np.inf, -np.inf, np.nan),
        ((0, 0, 0, 0), (1, 95, 63, 19), (1, 50, 3, 7), (0, 17, 60, 0)),
        (True, False),
    ):
        a, c = (one(rng, m, k), two(rng, columns, width)) if by_row else (one(rng, columns, width), two(rng, m, k))
        x = rng.standard_normal((batch, k, width, n))
        x[place] = odd
        wanted = exactly(a, x, c, by_row)
        assert np.isnan(wanted).any()
        found, _ = pair(*(v.astype("f") for v in (a, x, c)), by_row)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))


def check_overflow() -> None:
    """Sums of large numbers that no later sum takes."""
    rng = np.random.default_rng(2)
    for by_row, place in itertools.product((True, False), (0, 31, 63)):
        a, c = interpolation(rng, 40, 96).astype("f"), one_hot(rng, 48, 64).astype("f")
        c[:, place] = 0
        a[7] *= 4
        x = np.ones((2, 96, 64, 20) if by_row else (2, 64, 96, 20), "f")
        x[(0, slice(None), place, 3) if by_row else (0, place, slice(None), 3)] = 3e38
        wanted = exactly(a, x, c, by_row)
        assert 0 < np.isnan(wanted).sum() < wanted.size / 20
        np.testing.assert_array_equal(np.isnan(pair(a, x, c, by_row)[0]), np.isnan(wanted))


@pytest.mark.parametrize("isa", ["", "baseline"])
def test_results(isa: str) -> None:
    elsewhere("from test_gemm_pair import check_results; check_results()", FERRULE_ISA=isa)


@pytest.mark.parametrize("isa", ["", "baseline"])
def test_what_is_not_finite(isa: str) -> None:
    code = "from test_gemm_pair import check_nonfinite, check_overflow as overflow; check_nonfinite(); overflow()"
    elsewhere(code, FERRULE_ISA=isa)


def test_one_thread() -> None:
    """Each part looks at its rows; one thread has them all."""
    code = "from test_gemm_pair import check_nonfinite, check_overflow as overflow; check_nonfinite(); overflow()"
    elsewhere(code, FERRULE_NUM_THREADS="1")


@pytest.mark.parametrize("by_row", [True, False])
def test_no_images(by_row: bool) -> None:
    weights = np.eye(40, 50, dtype="f")
    found, _ = pair(weights, np.zeros((0, 50, 50, 8), "f"), weights, by_row)
    assert found.shape == (0, 40, 40, 8)


@pytest.mark.parametrize("by_row", [True, False])
def test_bad_call(by_row: bool) -> None:
    a = np.ones((40, 40), "f")
    with pytest.raises(RuntimeError, match=r"gemm\.pair.*do not fit"):
        pair(a, np.ones((2, 40, 40, 8), "f"), a[:20], by_row)

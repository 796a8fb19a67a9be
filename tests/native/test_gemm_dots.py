"""Dot products of a few vectors with the columns of a matrix (native/gemm_dots.h), whose operands end where the memory
does."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from instruction_sets import ALL_SETS
from test_calls import under
from test_gemm_tall import transposed_product

VECTORS, COLUMNS = [1, 2, 3, 4, 5, 7, 8], [1, 2, 5, 8, 13]
# Whole vectors and not, of 16 to 64 bytes; more than are added up before they join a total.
TERMS = [64, 65, 72, 79, 95, 103, 2100]


def check() -> None:
    random = np.random.default_rng(0)
    for m, n, k, dtype in itertools.product(VECTORS, COLUMNS, TERMS, "fdil"):
        for batch, gap, columns in ((1, 0, False), (1, 3, True), (2, 3, False)):
            few, many = (random.integers(-9, 9, (batch, k, count)).astype(dtype) for count in (m, m + n))
            a, b = (many, few) if columns else (few, many)  # either side has the vectors
            got = transposed_product(a, b, gap, "ab")
            want = a.astype("d").swapaxes(1, 2) @ b.astype("d")
            np.testing.assert_array_equal(got, want, f"{m}, {n}, {k}, {dtype}, {batch}, {gap}, {columns}")


@pytest.mark.parametrize("isa", ALL_SETS)
def test_sums(isa: str) -> None:
    under(isa, "from test_gemm_dots import check; check()")


@pytest.mark.parametrize("m", [1, 2, 4])
def test_long_sums_are_accurate(m: int) -> None:
    random = np.random.default_rng(1)
    a, b = (random.random((1, 200_003, count), np.float32) for count in (m, 9))
    want = a.astype("d").swapaxes(1, 2) @ b.astype("d")
    assert np.abs(transposed_product(a, b, 0, "ab") / want - 1).max() < 4e-7


@pytest.mark.parametrize("m", [1, 3, 8])
def test_what_is_not_finite_stays_in_its_row_and_column(m: int) -> None:
    random = np.random.default_rng(2)
    a, b = (random.standard_normal((1, 77, count)).astype("f") for count in (m, 21))
    a[0, 70, m // 2], b[0, 76, 4] = np.nan, np.inf
    with np.errstate(all="ignore"):
        want = a.astype("d").swapaxes(1, 2) @ b.astype("d")
    got = transposed_product(a, b, 0, "ab")
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)

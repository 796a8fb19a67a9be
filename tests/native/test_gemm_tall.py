"""Products of many terms with few results (native/gemm_tall.cc), such as A^T B of matrices with many rows and few
columns, whose operands end where the memory does."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from instruction_sets import ALL_SETS
from one_call import OneCall, tensor
from test_calls import under
from test_gemm_bounds import at_the_end

SIZES = [(2, 2), (3, 3), (7, 9), (9, 7), (5, 20), (16, 16), (17, 1), (24, 8), (13, 50), (100, 10), (1250, 2), (50, 50)]
TERMS = [256, 1031, 5000]


def transposed_product(a: np.ndarray, b: np.ndarray, gap: int = 0, turned: str = "") -> np.ndarray:
    """Of a [batch, k, m] and b [batch, k, n], of which those in `turned` lie in memory as [batch, count, k]; so many
    unused elements lie between their rows."""
    (batch, k, m), n, dtype = a.shape, b.shape[2], a.dtype.char
    stored, strides = [], []
    for name, side in (("a", a), ("b", b)):
        rows = side.swapaxes(1, 2) if name in turned else side
        _, count, row = rows.shape
        memory = at_the_end((batch * count * (row + gap) - gap,), dtype)
        memory[...] = np.nan if dtype in "fd" else 77
        steps = (count * (row + gap), row + gap, 1)
        places = [step * memory.itemsize for step in steps]
        np.lib.stride_tricks.as_strided(memory, rows.shape, places)[...] = rows
        stored.append(memory)
        strides.append((steps[0], steps[2], steps[1]) if name in turned else steps)  # from batch, k and count on
    d = at_the_end((batch, m, n), dtype)
    d[...] = 7
    attrs = dict(batch=batch, m=m, n=n, k=k)
    (a_batch, a_k, a_row), b_strides = strides
    attrs |= dict(a_strides=(a_batch, a_row, a_k), b_strides=b_strides)
    OneCall("gemm", [tensor(x.shape, dtype) for x in stored], [tensor(d.shape, dtype)], attrs).run(stored, [d])
    return d


def check() -> None:
    random = np.random.default_rng(0)
    for (m, n), k, dtype in itertools.product(SIZES, TERMS, "fdil"):
        for batch, gap, turned in ((1, 0, ""), (1, 3, ""), (3, 0, ""), (1, 0, "a"), (2, 3, "b")):
            a, b = (random.integers(-9, 9, (batch, k, count)).astype(dtype) for count in (m, n))
            got = transposed_product(a, b, gap, turned)
            want = a.astype("d").swapaxes(1, 2) @ b.astype("d")
            np.testing.assert_array_equal(got, want, f"{m}, {n}, {k}, {dtype}, {batch}, {gap}, {turned}")


@pytest.mark.parametrize("isa", ALL_SETS)
def test_sums(isa):
    under(isa, "from test_gemm_tall import check; check()")


@pytest.mark.parametrize(("m", "n"), [(3, 3), (10, 10), (20, 5)])
def test_long_sums_are_accurate(m, n):
    """As parts of parts: the error does not grow with the number of terms as that of one running sum does."""
    random = np.random.default_rng(1)
    a, b = (random.random((1, 200_000, count), np.float32) for count in (m, n))
    want = a.astype("d").swapaxes(1, 2) @ b.astype("d")
    assert np.abs(transposed_product(a, b) / want - 1).max() < 4e-7


@pytest.mark.parametrize("turned", ["", "a", "b"])
@pytest.mark.parametrize(("m", "n"), [(7, 9), (24, 8), (8, 24)])
def test_what_is_not_finite_stays_in_its_row_and_column(m, n, turned):
    random = np.random.default_rng(2)
    a, b = (random.standard_normal((1, 3000, count)).astype("f") for count in (m, n))
    a[0, 1234, 2], b[0, 2999, 4] = np.nan, np.inf
    with np.errstate(all="ignore"):
        want = a.astype("d").swapaxes(1, 2) @ b.astype("d")
    got = transposed_product(a, b, 0, turned)
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-4)

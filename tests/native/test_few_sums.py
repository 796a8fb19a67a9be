"""Convolutions to few features and products with few columns (native/few_sums_kernel.h, conv_few.cc, gemm_few.cc)."""

from __future__ import annotations

import numpy as np
import pytest
from instruction_sets import LESSER_SETS
from one_call import call, elsewhere
from test_calls import close, conv_reference, random, standard_conv

# (image in N…C, taps, attributes): borders wider than the image, rows that are cut, taps that do not continue each
# other, features that do not fill a last vector.
SHAPES = [
    ((2, 20, 33, 64), (3, 3), {"padding": (1, 1, 1, 1)}),
    ((1, 9, 7, 24), (5, 5), {"padding": (2, 2, 2, 2), "window_reversal": (0, 1)}),
    ((2, 30, 40, 9), (3, 4), {"padding": (1, 1, 3, 2), "window_strides": (2, 3)}),
    ((1, 12, 12, 16), (3, 3), {"padding": (2, 2, 2, 2), "rhs_dilation": (2, 2)}),
    ((2, 50, 20), (3,), {"padding": (2, 5), "window_reversal": (1,)}),
    ((1, 3, 2, 40), (7, 9), {"padding": (3, 3, 4, 4)}),
    ((1, 5, 6, 7, 33), (3, 1, 4), {"padding": (1, 1, 0, 0, 2, 1)}),
    ((2, 12, 12, 16), (2, 2), {"padding": (-1, 0, 0, -1)}),
    ((1, 6, 6, 130), (1, 1), {}),
    ((1, 2, 1100, 8), (2, 3), {"padding": (0, 0, 1, 1)}),
    ((2, 9, 21, 32), (4, 4), {"padding": (2, 2, 2, 2), "lhs_dilation": (2, 2)}),
    ((1, 8, 7, 64), (3, 3), {"padding": (1, 2, 2, 1), "lhs_dilation": (2, 3), "window_reversal": (1, 1)}),
    ((1, 5, 6, 40), (2, 2), {"padding": (1, 2, 3, 3), "lhs_dilation": (3, 3)}),
    ((2, 700, 24), (5,), {"padding": (-1, 4), "lhs_dilation": (2,)}),
]
# (rows, sums of so many, batches): groups of positions that do not come out even, one and several units.
PRODUCTS = [(64, 16, 1), (97, 33, 1), (1000, 64, 1), (131, 300, 1), (3000, 21, 1), (70, 40, 3), (5, 64, 1)]


def convolved(image: tuple, taps: tuple, more: dict, dtype: str, outputs: int) -> None:
    x, kernel = random(image, dtype), random((*taps, image[-1], outputs), dtype)
    at = standard_conv(len(taps), "NHWC", **more)
    want = conv_reference(x, kernel, at)
    close(call("conv", [x, kernel], [(want.shape, dtype)], at)[0], want, dtype, kernel.size // outputs)


def multiplied(m: int, k: int, batch: int, dtype: str, n: int, turned: bool) -> None:
    a, b = random((batch, m, k), dtype), random((batch, n, k) if turned else (batch, k, n), dtype)
    at = {"batch": batch, "m": m, "n": n, "k": k, "a_strides": (m * k, k, 1)}
    at["b_strides"] = (k * n, 1, k) if turned else (k * n, n, 1)
    want = a.astype("d") @ (b.swapaxes(1, 2) if turned else b).astype("d")
    close(call("gemm", [a, b], [((batch, m, n), dtype)], at)[0], want, dtype, k)


@pytest.mark.parametrize("outputs", range(1, 9))
@pytest.mark.parametrize("dtype", ["f", "d"])
def test_convolutions(dtype: str, outputs: int) -> None:
    for shape in SHAPES:
        convolved(*shape, dtype, outputs)


@pytest.mark.parametrize("columns", range(2, 10))
@pytest.mark.parametrize("dtype", ["f", "d"])
def test_products(dtype: str, columns: int) -> None:
    for product in PRODUCTS:
        for turned in (False, True):
            multiplied(*product, dtype, columns, turned)


@pytest.mark.parametrize("isa", LESSER_SETS)
def test_lesser_processors(isa: str) -> None:
    code = """
from test_few_sums import PRODUCTS, SHAPES, convolved, multiplied
for dtype in "fd":
    for count in range(1, 9):
        for shape in SHAPES:
            convolved(*shape, dtype, count)
        for product in PRODUCTS:
            multiplied(*product, dtype, count, False)
"""
    elsewhere(code, FERRULE_ISA=isa)


def test_what_is_not_finite_stays_where_it_is() -> None:
    x, kernel = random((1, 6, 40, 20), "f"), random((3, 3, 20, 3), "f")
    x[0, 1, 3, 7], x[0, 4, 20, 19], x[0, 3, 39, 0] = np.nan, np.inf, -np.inf
    at = standard_conv(2, "NHWC", padding=(1, 1, 1, 1))
    want = conv_reference(x, kernel, at)
    got = call("conv", [x, kernel], [(want.shape, "f")], at)[0]
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))

"""Depthwise convolutions with channels innermost (native/conv_depthwise_rows.cc)."""

from __future__ import annotations

import numpy as np
import pytest
from instruction_sets import LESSER_SETS
from one_call import call, elsewhere
from test_calls import bf16, close, conv_reference, random, standard_conv

# (image in N…C, taps, attributes): stretches, more taps than registers, borders wider than the image, channels that do
# not fill a last vector.
SHAPES = [
    ((2, 300, 37), (9,), {"padding": (4, 4)}),
    ((1, 40, 4), (33,), {"padding": (16, 16)}),
    ((2, 50, 160), (4,), {"padding": (3, 0), "window_reversal": (1,)}),
    ((2, 50, 20), (3,), {"padding": (2, 5), "window_strides": (2,), "rhs_dilation": (3,)}),
    ((3, 9, 8, 20), (5, 5), {"padding": (2, 2, 2, 2)}),
    ((1, 15, 15, 64), (3, 3), {"window_strides": (2, 2), "window_reversal": (0, 1)}),
    ((2, 3, 2, 8), (7, 9), {"padding": (3, 3, 4, 4)}),
    ((2, 12, 12, 16), (2, 2), {"padding": (-1, 0, 0, -1)}),
    ((1, 5, 6, 7, 33), (3, 1, 4), {"padding": (1, 1, 0, 0, 2, 1)}),
]

TYPES = ["f", "d", bf16]


def convolved(image: tuple, taps: tuple, more: dict, dtype: str) -> None:
    rank, channels = len(taps), image[-1]
    x, kernel = random(image, dtype), random((*taps, 1, channels), dtype)
    at = standard_conv(rank, "NHWC", feature_group_count=channels, **more)
    want = conv_reference(x, kernel, at)
    close(call("conv", [x, kernel], [(want.shape, dtype)], at)[0], want, dtype, max(400, kernel.size // channels))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_shapes(number: int, dtype: str) -> None:
    convolved(*SHAPES[number], dtype)


@pytest.mark.parametrize("isa", LESSER_SETS)
def test_lesser_processors(isa: str) -> None:
    code = """
from test_conv_depthwise_rows import SHAPES, TYPES, convolved
for shape in SHAPES:
    for dtype in TYPES:
        convolved(*shape, dtype)
"""
    elsewhere(code, FERRULE_ISA=isa)


@pytest.mark.parametrize("dtype", ["f", bf16])
def test_what_is_not_finite_stays_where_it_is(dtype: str) -> None:
    x = random((1, 40, 20), dtype)
    x[0, 7, 3], x[0, 20, 19], x[0, 30, 0] = np.nan, np.inf, -np.inf
    kernel = np.ones((3, 1, 20), dtype)
    at = standard_conv(1, "NHWC", feature_group_count=20, padding=(1, 1))
    want, got = conv_reference(x, kernel, at), call("conv", [x, kernel], [((1, 40, 20), dtype)], at)[0]
    np.testing.assert_array_equal(np.isfinite(np.float64(got)), np.isfinite(want))
    np.testing.assert_array_equal(np.isnan(np.float64(got)), np.isnan(want))

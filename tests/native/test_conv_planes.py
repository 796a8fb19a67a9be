"""Depthwise convolutions of images with channels first (native/conv_planes.cc)."""

from __future__ import annotations

import numpy as np
import pytest
from instruction_sets import ALL_SETS
from one_call import call, elsewhere
from test_calls import bf16, close, conv_reference, random, standard_conv


def planes(lhs, rhs, dtype="f", **attrs):
    at = standard_conv(layout="NCHW", feature_group_count=lhs.shape[1], **attrs)
    want = conv_reference(lhs, rhs, at)
    close(call("conv", [lhs, rhs], [(want.shape, dtype)], at)[0], want, dtype, 64)


def check():
    """Every geometry, with each set of instructions."""
    rng, done = np.random.default_rng(5), 0
    while done < 150:
        dtype = ["f", "d", bf16, "e"][rng.integers(4)]
        batch, channels, several = (int(n) for n in rng.integers(1, 4, 3))
        channels += 1
        size, kernel, strides = rng.integers(1, 80, 2), rng.integers(1, 10, 2), rng.integers(1, 5, 2)
        padding = rng.integers(-3, 12, 4)
        if ((size + padding[::2] + padding[1::2]) < kernel).any():
            continue
        lhs, rhs = random((batch, channels, *size), dtype), random((channels * several, 1, *kernel), dtype)
        reversal = tuple(int(r) for r in rng.integers(0, 2, 2))
        at = {"window_strides": tuple(map(int, strides)), "padding": tuple(map(int, padding))}
        planes(lhs, rhs, dtype, window_reversal=reversal, **at)
        done += 1


@pytest.mark.parametrize("isa", ALL_SETS)
@pytest.mark.parametrize("threads", [1, 3])
def test_every_geometry(isa, threads):
    elsewhere(
        "import test_conv_planes as t; t.check()",
        FERRULE_ISA=isa,
        FERRULE_NUM_THREADS=str(threads),
        FERRULE_CONV="planes",
    )


@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (1, 3)])
def test_bands(strides):
    """Images of more rows than a band has."""
    planes(random((2, 3, 300, 200), "f"), random((3, 1, 7, 5), "f"), window_strides=strides, padding=(3, 3, 2, 2))
    planes(random((1, 2, 40, 3000), "f"), random((2, 1, 3, 9), "f"), window_strides=strides, padding=(50, 1, 4, 0))


def test_what_is_beside_a_row_is_not_part_of_it():
    """Padding times infinity is not a number; an infinity at a row's end stays out of the next row's sums."""
    lhs, rhs = random((1, 2, 20, 30), "f"), random((2, 1, 3, 3), "f")
    lhs[0, 0, 5, 29] = np.inf
    rhs[1, 0, 0, 0] = np.inf
    at = standard_conv(layout="NCHW", feature_group_count=2, padding=(1, 1, 1, 1))
    with np.errstate(invalid="ignore"):
        want = conv_reference(lhs, rhs, at)
    assert np.isinf(want[0, 0]).any() and np.isfinite(want[0, 0, 7:]).all() and np.isnan(want[0, 1, 0]).all()
    np.testing.assert_allclose(call("conv", [lhs, rhs], [(want.shape, "f")], at)[0], want, 1e-4, 1e-4)

"""Convolutions whose sums go along lines of the result (native/conv_lines.cc), and where they are chosen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from instruction_sets import ALL_SETS
from one_call import call
from test_calls import bf16, close, conv_reference, random, random_conv, standard_conv

from ferrule.targets.cpu import host

# (input, kernel, attributes) in NCW: several stretches, several chunks of taps, several parts of one sum.
LONG = [
    ((1, 1, 5000), (1, 1, 33), {"padding": (32, 32), "window_reversal": (1,)}),
    ((2, 3, 2100), (3, 3, 5), {"padding": (2, 2)}),
    ((1, 1, 3000), (1, 1, 1500), {"padding": (700, 799)}),
    ((1, 1, 3000), (1, 1, 2989), {}),
    ((1, 2, 40), (2, 2, 1300), {"padding": (1299, 1299)}),
    ((2, 1, 9000), (2, 1, 40), {"window_strides": (4,), "padding": (7, 0)}),
    ((1, 1, 900), (1, 1, 30), {"lhs_dilation": (3,), "rhs_dilation": (2,), "padding": (-5, 11)}),
    ((1, 4, 1100), (8, 1, 21), {"feature_group_count": 4, "padding": (10, 10)}),
    ((1, 1, 50), (1, 1, 3), {"window_strides": (16,), "padding": (40, 90)}),
    ((1, 120, 30), (2, 120, 3), {"padding": (1, 1)}),
]


def lines(lhs, rhs, at, dtype):
    want = conv_reference(lhs, rhs, at)
    got = call("conv", [lhs, rhs], [(want.shape, dtype)], at)[0]
    depth = max(400, rhs.size // max(1, rhs.shape[0]))
    close(got, want.astype(dtype) if np.dtype(dtype).kind == "i" else want, dtype, depth)


@pytest.mark.parametrize("groups", ["none", "feature", "batch"])
@pytest.mark.parametrize("dtype", ["f", "d", bf16, "e", "F", "D", "i", "l", "b"])
def test_every_geometry(dtype, groups, monkeypatch):
    monkeypatch.setenv("FERRULE_CONV", "lines")
    rng, done = np.random.default_rng(3), 0
    for _ in range(30):
        lhs, rhs, at = random_conv(rng, int(rng.integers(1, 4)), dtype, groups)
        try:
            conv_reference(lhs, rhs, at)
        except ValueError:
            continue  # the kernel is larger than the input
        lines(lhs, rhs, at, dtype)
        done += 1
    assert done > 10


@pytest.mark.parametrize("isa", ALL_SETS)
def test_long_lines(isa):
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from test_conv_lines import LONG, lines
from test_calls import bf16, random, standard_conv
for lhs, rhs, attrs in LONG:
    for dtype in "f", "d", "F", "i", bf16:
        lines(random(lhs, dtype), random(rhs, dtype), standard_conv(1, "NCHW", **attrs), dtype)
"""
    for choice in ("", "lines"):  # as it is chosen, and always
        environment = os.environ | {"FERRULE_ISA": isa, "FERRULE_CONV": choice}
        subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent)], check=True, env=environment)


@pytest.mark.parametrize("dtype", ["f", bf16])
def test_what_is_not_finite_stays_where_it_is(dtype):
    """Also beside the ends, where a vector reads more than the line; the zeros around times infinity are NaN."""
    for size in (20, 70, 1500):
        lhs, rhs = random((2, 1, size), dtype), random((1, 1, 5), dtype)
        lhs[0, 0, [0, 9, size - 1]] = np.nan, np.inf, -np.inf
        lhs[1, 0, 3] = np.nan
        at = standard_conv(1, "NCHW", padding=(2, 2))
        want = conv_reference(lhs, rhs, at)
        got = np.float64(call("conv", [lhs, rhs], [(want.shape, dtype)], at)[0])
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
        rhs[0, 0, 4] = np.inf
        got = np.float64(call("conv", [lhs, rhs], [(want.shape, dtype)], at)[0])
        assert np.isnan(got[1, 0, -1]) and np.isinf(got[1, 0, 8])


@pytest.mark.parametrize("dtype", ["f", bf16, "d", "F", "i"])
def test_they_are_chosen_for_one_channel(dtype, monkeypatch):
    """Patches times a matrix, or a library that fills a vector with channels, take ten times as long."""
    lhs, rhs, at = random((1, 1, 30000), dtype), random((1, 1, 64), dtype), standard_conv(1, "NCHW")
    shape = (1, 1, 30000 - 63)
    found = []
    for choice in ("", "lines", "own"):
        monkeypatch.setenv("FERRULE_CONV", choice)
        found.append(call("conv", [lhs, rhs], [(shape, dtype)], at)[0])
    np.testing.assert_array_equal(found[0], found[1])
    if dtype in ("f", "F"):  # their sums are added up in another order
        assert (found[0] != found[2]).any()


@pytest.mark.skipif("+avx512f" not in host().features, reason="there are registers for one sum only")
def test_errors_are_those_of_two_sums():
    """About 0.42 u √(k / 2) for one sum of k products (test_conv_parts.py), that of half as many and a last addition's
    for two: 1.1 of the bound's 0.42 u √(k / 4), where one sum has 1.45."""
    rng, taps = np.random.default_rng(1), 32
    errors = []
    for _ in range(5):
        lhs, rhs = rng.standard_normal((1, 1, 20000), dtype="f"), rng.standard_normal((1, 1, taps), dtype="f")
        at = standard_conv(1, "NCHW")
        want = conv_reference(lhs, rhs, at)
        got = call("conv", [lhs, rhs], [(want.shape, "f")], at)[0]
        errors.append(np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)))
    assert np.mean(errors) < 1.25 * 0.42 * 2.0**-24 * np.sqrt(taps / 4)

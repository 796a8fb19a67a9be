"""Convolutions as patches times a matrix (native/conv_general.cc); threads share the patches or have their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from one_call import call
from test_calls import close, conv_reference, random, random_conv, standard_conv

# (input, kernel, attributes) in NHWC: one block of rows, a few, several groups; and taps that are not neighbours.
SHAPES = [
    ((1, 9, 9, 40), (3, 3, 40, 24), {"padding": (1, 1, 1, 1)}),
    ((2, 30, 23, 3), (3, 5, 3, 33), {"padding": (1, 1, 2, 2), "window_strides": (2, 1)}),
    ((1, 31, 30, 16), (3, 3, 16, 24), {"rhs_dilation": (1, 2)}),
    ((1, 12, 12, 16), (3, 3, 16, 24), {"lhs_dilation": (2, 2), "padding": (2, 2, 2, 2)}),
    ((2, 8, 8, 48), (3, 3, 24, 40), {"feature_group_count": 2, "padding": (1, 1, 1, 1)}),
    ((2, 8, 8, 16), (3, 3, 16, 40), {"window_reversal": (1, 0)}),
]


def check(threads):
    rng = np.random.default_rng(threads)
    for dtype, out in ("b", "i"), ("h", "i"), ("e", "e"), ("d", "d"), ("F", "F"):
        cases = [(random(lhs, dtype), random(rhs, dtype), standard_conv(**attrs)) for lhs, rhs, attrs in SHAPES]
        for groups in "none", "feature", "batch":
            cases += [random_conv(rng, 2, dtype, groups) for _ in range(8)]
        for lhs, rhs, at in cases:
            try:
                want = conv_reference(lhs, rhs, at)
            except ValueError:
                continue  # the kernel is larger than the input
            got = call("conv", [lhs, rhs], [(want.shape, out)], at)[0]
            close(got, want.astype(out) if out == "i" else want, out, rhs.size)


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_any_number_of_threads(threads):
    code = "import sys; sys.path.insert(0, sys.argv[1]); import test_conv_general as t; t.check(int(sys.argv[2]))"
    environment = os.environ | {"FERRULE_NUM_THREADS": str(threads), "FERRULE_CONV": "own"}
    arguments = [sys.executable, "-c", code, str(Path(__file__).parent), str(threads)]
    subprocess.run(arguments, env=environment, check=True, timeout=240)

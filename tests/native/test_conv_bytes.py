"""Convolutions of 8-bit integers are oneDNN's where its sums of 32 bits are exact, whatever the values."""

from __future__ import annotations

import numpy as np
import pytest
from one_call import call
from test_calls import conv_reference, random, random_conv, standard_conv

from ferrule import libraries
from ferrule.targets.cpu import host

exact = pytest.mark.skipif(
    libraries.onednn_path() is None or not {"+avx512vnni", "+avxvnni"} & set(host().features.split(",")),
    reason="oneDNN has no exact products of bytes here",
)


def primitives(lhs, rhs, attributes, monkeypatch, capfd):
    """A result, and how many primitives it took."""
    monkeypatch.setenv("FERRULE_DEBUG", "3")
    capfd.readouterr()
    want = conv_reference(lhs, rhs, attributes)
    got = call("conv", [lhs, rhs], [(want.shape, "i")], attributes)[0]
    np.testing.assert_array_equal(got, want)
    return sum("oneDNN primitive" in line for line in capfd.readouterr().err.splitlines())


# The image, the kernel, what else there is.
SHAPES = {
    "same": ((1, 14, 15, 64), (3, 3, 64, 80), dict(padding=(1, 1, 1, 1))),
    "strides": ((2, 15, 15, 48), (3, 3, 48, 32), dict(padding=(0, 1, 1, 1), window_strides=(2, 2))),
    "dilated": ((1, 16, 16, 32), (3, 3, 32, 33), dict(padding=(2, 2, 2, 2), rhs_dilation=(2, 2))),
    "turned": ((1, 16, 16, 32), (3, 3, 32, 32), dict(padding=(1, 1, 1, 1), window_reversal=(1, 0))),
    "three channels": ((1, 33, 33, 3), (7, 7, 3, 64), dict(padding=(3, 3, 3, 3), window_strides=(2, 2))),
    "pointwise": ((1, 14, 14, 256), (1, 1, 256, 64), {}),
    "depthwise": ((1, 14, 14, 64), (3, 3, 1, 64), dict(padding=(1, 1, 1, 1), feature_group_count=64)),
    "groups": ((1, 14, 14, 64), (3, 3, 8, 64), dict(padding=(1, 1, 1, 1), feature_group_count=8)),
    "a line": ((2, 300, 32), (9, 32, 32), dict(padding=(4, 4))),
    "space": ((1, 5, 6, 7, 16), (3, 3, 3, 16, 32), dict(padding=(1, 1, 0, 1, 1, 1))),
}


@exact
@pytest.mark.parametrize("dtype", ["b", "B"])
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name, dtype, monkeypatch, capfd):
    image, kernel, more = SHAPES[name]
    at = standard_conv(len(image) - 2, "NHWC", **more)
    assert primitives(random(image, dtype), random(kernel, "b"), at, monkeypatch, capfd) == 1


@exact
@pytest.mark.parametrize(("left", "right"), [(-128, -128), (-128, 127), (127, -128), (255, -128), (255, 127)])
def test_extremes(left, right, monkeypatch, capfd):
    """Sums of 16 bits would overflow with two products of these."""
    lhs = np.full((1, 8, 8, 64), left, "B" if left > 127 else "b")
    at = standard_conv(2, "NHWC", padding=(1, 1, 1, 1))
    assert primitives(lhs, np.full((3, 3, 64, 32), right, "b"), at, monkeypatch, capfd) == 1


@pytest.mark.parametrize("groups", ["none", "feature", "batch"])
@pytest.mark.parametrize("dtype", ["b", "B"])
def test_any(dtype, groups):
    """Dimensions in any order, dilated images, cut ones: also what oneDNN does not take."""
    rng, done = np.random.default_rng(5), 0
    for _ in range(60):
        lhs, rhs, at = random_conv(rng, int(rng.integers(1, 4)), dtype, groups)
        rhs = rhs.view("b")
        try:
            want = conv_reference(lhs, rhs, at)
        except ValueError:  # no place for the kernel
            continue
        np.testing.assert_array_equal(call("conv", [lhs, rhs], [(want.shape, "i")], at)[0], want)
        done += 1
    assert done > 25

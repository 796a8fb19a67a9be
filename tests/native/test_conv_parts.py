"""Long sums of oneDNN's convolutions are formed in two parts (PartsOf in native/conv_onednn.cc)."""

from __future__ import annotations

import numpy as np
import pytest
from one_call import call
from test_calls import close, conv_reference, random, standard_conv

from ferrule import libraries
from ferrule.targets.cpu import host

pytestmark = pytest.mark.skipif(
    libraries.onednn_path() is None or "+avx512f" not in host().features, reason="oneDNN has other loops here"
)


def convolve(lhs, rhs, attributes, monkeypatch, capfd):
    """A result, its reference and the number of primitives that it took."""
    monkeypatch.setenv("FERRULE_DEBUG", "3")
    capfd.readouterr()
    want = conv_reference(lhs, rhs, attributes)
    got = call("conv", [lhs, rhs], [(want.shape, "f")], attributes)[0]
    said = [line for line in capfd.readouterr().err.splitlines() if "oneDNN primitive" in line]
    assert len(said) == 1
    return got, want, int(said[0].split(",")[1].split()[0])


# The image, the kernel, what else there is; whether it is parted. Paddings name low and high by dimensions.
SHAPES = {
    "features": ((1, 14, 15, 256), (3, 3, 256, 80), dict(padding=(1, 1, 1, 1)), True),
    "images": ((3, 9, 16, 160), (3, 3, 160, 64), dict(padding=(0, 1, 1, 1)), True),
    "wide paddings": ((1, 14, 14, 192), (5, 5, 192, 48), dict(padding=(2, 2, 3, 4)), True),
    "strides": ((1, 29, 29, 256), (3, 3, 256, 96), dict(padding=(1, 1, 1, 1), window_strides=(2, 2)), True),
    "dilated": (
        *((2, 16, 16, 128), (3, 3, 128, 96)),
        *(dict(padding=(2, 2, 2, 2), rhs_dilation=(2, 2)), True),
    ),
    "turned": ((1, 16, 16, 128), (3, 3, 128, 128), dict(padding=(1, 1, 1, 1), window_reversal=(1, 1)), True),
    "a line": ((2, 600, 128), (9, 128, 32), dict(padding=(4, 4)), True),
    "space": ((1, 5, 6, 14, 128), (3, 3, 3, 128, 32), dict(padding=(1, 1, 0, 1, 1, 1)), True),
    "rows": ((1, 17, 17, 128), (3, 3, 128, 160), dict(window_strides=(1, 1)), True),
    "rows, same": ((1, 32, 32, 128), (3, 3, 128, 128), dict(padding=(0, 1, 0, 1), window_strides=(2, 2)), True),
    "rows, padded": ((1, 16, 20, 72), (5, 5, 72, 96), dict(padding=(3, 2, 0, 1), window_reversal=(1, 0)), True),
    "rows, dilated": ((1, 24, 20, 128), (4, 3, 128, 176), dict(rhs_dilation=(3, 1), window_strides=(2, 1)), True),
    "pointwise": ((1, 14, 14, 1024), (1, 1, 1024, 176), {}, True),
    "pointwise, images": ((3, 7, 11, 1280), (1, 1, 1280, 128), {}, True),
    "pointwise, padded": ((1, 14, 14, 1024), (1, 1, 1024, 192), dict(padding=(1, 1, 1, 1)), False),
    "pointwise, strides": ((1, 28, 28, 1024), (1, 1, 1024, 192), dict(window_strides=(2, 2)), False),
    "short": ((1, 28, 28, 64), (3, 3, 64, 96), dict(padding=(1, 1, 1, 1)), False),
    "little work": ((1, 14, 14, 128), (3, 3, 128, 32), dict(padding=(1, 1, 1, 1)), False),
    "images, no padding": ((2, 18, 18, 128), (3, 3, 128, 96), {}, False),
    "groups": ((1, 28, 28, 512), (3, 3, 256, 64), dict(padding=(1, 1, 1, 1), feature_group_count=2), False),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name, monkeypatch, capfd):
    image, kernel, more, parted = SHAPES[name]
    lhs, rhs = random(image, "f"), random(kernel, "f")
    at = standard_conv(len(image) - 2, "NHWC", **more)
    got, want, count = convolve(lhs, rhs, at, monkeypatch, capfd)
    assert count == (2 if parted else 1)
    close(got, want, "f", rhs.size // rhs.shape[-1])


@pytest.mark.parametrize(
    ("image", "kernel", "padding"),
    [
        ((1, 28, 28, 128), (3, 3, 128, 64), (1, 1, 1, 1)),
        ((1, 14, 14, 256), (3, 3, 256, 96), (1, 1, 1, 1)),
        ((4, 14, 14, 128), (3, 3, 128, 128), (1, 1, 1, 1)),
        ((1, 30, 30, 128), (3, 3, 128, 64), (0, 0, 0, 0)),
        ((1, 14, 14, 1024), (1, 1, 1024, 256), (0, 0, 0, 0)),
    ],
)
def test_errors_are_those_of_halves(image, kernel, padding, monkeypatch, capfd):
    """Products of normally distributed numbers are added up. An addition that rounds to nearest errs, in the root of
    the mean square, by about 0.42 u of a total (u is half an ulp of one, totals are spread over their binades), and
    totals of i of k products have the variance i / k of the whole: k roundings one after the other give
    0.42 u √(k / 2), in p parts of k / p products 0.42 u √(k / 2p), in parts of 2 : 1, as of
    three rows, 0.42 u √(5k / 18).
    """
    terms = int(np.prod(kernel[:-1]))
    rng = np.random.default_rng(3)
    errors = []
    for _ in range(5):
        lhs = rng.standard_normal(image, dtype="f")
        rhs = rng.standard_normal(kernel, dtype="f") * np.float32(terms**-0.5)
        got, want, count = convolve(lhs, rhs, standard_conv(2, "NHWC", padding=padding), monkeypatch, capfd)
        assert count == 2
        errors.append(np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)))
    whole = 0.42 * 2.0**-24 * np.sqrt(terms / 2)
    parts = whole * np.sqrt(5 / 9 if padding[2] == 0 and kernel[0] > 1 else 1 / 2)
    assert max(errors) < 1.15 * parts < 0.87 * whole

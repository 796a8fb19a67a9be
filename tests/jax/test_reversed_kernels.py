"""Kernels that are reversed before a convolution, as in its gradients: the call reads them so (passes/match.py)."""

from __future__ import annotations

import numpy as np
import pytest

import jax
from ferrule.pipeline import compile_program
from ferrule.program import Call, Launch
from jax import lax

RNG = np.random.default_rng(3)
FIRST, LAST = ("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC")


def reversed_along(axes, numbers=LAST, strides=(1, 1), dilation=(1, 1), groups=1):
    def function(x, w):
        return lax.conv_general_dilated(
            x,
            lax.rev(w, axes),
            strides,
            "SAME" if dilation == (1, 1) else ((2, 1), (1, 2)),
            lhs_dilation=dilation,
            dimension_numbers=numbers,
            feature_group_count=groups,
        )

    return function


def gradient(x, w):
    ones = jax.ShapeDtypeStruct(x.shape, x.dtype)
    conv = jax.linear_transpose(lambda y: lax.conv_general_dilated(y, w, (1, 1), "SAME", dimension_numbers=FIRST), ones)
    return conv(x[:, : w.shape[0]])[0]


# The function, the image, the kernel, how many kernels of loops there are (transposes of images with channels first).
CASES = {
    "both": (reversed_along((0, 1)), (2, 9, 8, 32), (3, 4, 32, 24), 0),
    "one": (reversed_along((1,)), (2, 9, 8, 32), (3, 4, 32, 24), 0),
    "dilated": (reversed_along((0, 1), dilation=(2, 2)), (2, 9, 8, 32), (4, 4, 32, 24), 0),
    "one of dilated": (reversed_along((0,), dilation=(2, 2)), (2, 9, 8, 32), (4, 4, 32, 24), 0),
    "to few": (reversed_along((0, 1)), (2, 9, 8, 32), (3, 4, 32, 3), 0),
    "depthwise": (reversed_along((0, 1), groups=32), (2, 9, 8, 32), (3, 4, 1, 32), 0),
    "lines": (reversed_along((2, 3), FIRST), (2, 3, 40, 150), (4, 3, 5, 5), 0),
    "channels first": (reversed_along((2, 3), FIRST), (2, 16, 9, 8), (24, 16, 3, 3), 2),
    "gradient": (gradient, (2, 16, 9, 8), (16, 16, 3, 3), 2),
    "features, too": (reversed_along((1, 2)), (2, 9, 8, 32), (3, 4, 32, 24), 1),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_launches(device: jax.Device, name: str) -> None:
    function, image, kernel, launches = CASES[name]
    x, w = (RNG.integers(-4, 5, shape).astype(np.float32) for shape in (image, kernel))
    want = jax.jit(function)(*jax.device_put((x, w), jax.devices("cpu")[0]))
    got = jax.jit(function)(*jax.device_put((x, w), device))
    np.testing.assert_array_equal(np.asarray(got), np.asarray(want))
    program = compile_program(str(jax.jit(function).lower(x, w).compiler_ir("stablehlo")).encode())
    steps = [step for block in program.blocks for step in block]
    assert sum(isinstance(step, Launch) for step in steps) == launches
    assert [step.target for step in steps if isinstance(step, Call)] == ["conv"]

"""Convolutions of single elements to a few features are products (passes/pointwise.py)."""

from __future__ import annotations

import numpy as np
import pytest

import jax
from ferrule.pipeline import compile_program
from ferrule.program import Call
from jax import lax

RNG = np.random.default_rng(3)


def convolved(x, kernel, numbers, strides=1, padding="VALID"):
    rank = x.ndim - 2
    return lax.conv_general_dilated(x, kernel, (strides,) * rank, padding, dimension_numbers=numbers)


def targets(*args) -> list[str]:
    text = str(jax.jit(convolved, static_argnums=range(2, len(args))).lower(*args).compiler_ir("stablehlo"))
    program = compile_program(text.encode())
    return [step.target for block in program.blocks for step in block if isinstance(step, Call)]


# The image, the kernel, the dimensions' names.
SHAPES = {
    "one": ((2, 30, 20, 32), (1, 1, 32, 1), ("NHWC", "HWIO", "NHWC")),
    "two": ((2, 30, 20, 32), (1, 1, 32, 2), ("NHWC", "HWIO", "NHWC")),
    "outputs first": ((1, 24, 24, 40), (3, 40, 1, 1), ("NHWC", "OIHW", "NHWC")),
    "deep": ((1, 24, 24, 80), (1, 1, 80, 7), ("NHWC", "HWIO", "NHWC")),
    "a line": ((3, 300, 17), (1, 17, 1), ("NWC", "WIO", "NWC")),
    "space": ((1, 9, 8, 7, 12), (1, 1, 1, 12, 3), ("NDHWC", "DHWIO", "NDHWC")),
    "turned": ((1, 24, 20, 16), (1, 1, 16, 1), ("NHWC", "HWIO", "NWHC")),
    "images inside": ((24, 20, 5, 16), (1, 1, 16, 2), ("HWNC", "HWIO", "HWNC")),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("name", SHAPES)
def test_values(device: jax.Device, name: str, dtype: str) -> None:
    image, kernel, numbers = SHAPES[name]
    x = (RNG.integers(-8, 9, image) / (1 if dtype == "int32" else 4)).astype(jax.numpy.dtype(dtype))
    k = RNG.integers(-2, 3, kernel).astype(x.dtype)
    want = convolved(*(jax.device_put(v.astype(np.float32), jax.devices("cpu")[0]) for v in (x, k)), numbers)
    got = jax.jit(convolved, static_argnums=2)(*jax.device_put((x, k), device), numbers)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(want).astype(x.dtype))


@pytest.mark.parametrize("name", ["one", "two", "outputs first", "deep", "a line", "images inside"])
def test_it_is_no_convolution(name: str) -> None:
    image, kernel, numbers = SHAPES[name]
    assert "conv" not in targets(np.zeros(image, "f"), np.zeros(kernel, "f"), numbers)


def test_what_is_left_alone() -> None:
    image, kernel, numbers = SHAPES["one"]
    x, k = np.zeros(image, "f"), np.zeros(kernel, "f")
    assert targets(x, k, numbers, 2) == ["conv"]
    assert targets(x, k, numbers, 1, ((1, 0), (0, 0))) == ["conv"]
    assert targets(x, np.zeros((1, 1, 32, 9), "f"), numbers) == ["conv"]
    assert targets(x, np.zeros((1, 2, 32, 1), "f"), numbers) == ["conv"]

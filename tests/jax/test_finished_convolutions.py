"""Convolutions that carry what follows them: the same bits as with a kernel of its own, and that the call has it."""

from __future__ import annotations

import sys

import jax.numpy as jnp
import numpy as np
import pytest
from test_finish import agree, odd, random, steps

import jax
from jax import lax

__all__ = ["agree"]  # the fixture

IMAGES = ("NHWC", "HWIO", "NHWC")


def conv(x, w, strides=(1, 1), padding="SAME", groups=1, numbers=IMAGES):
    return lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=numbers, feature_group_count=groups)


def bias(x, w, b, _, **how):
    return jax.nn.relu(conv(x, w, **how) + b)


def normalized(x, w, b, r, **how):
    return jax.nn.swish(conv(x, w, **how) * (b + 1) - b) + r


def two_results(x, w, b, r, **how):
    y = conv(x, w, **how)
    return y + r, (y > b).astype(jnp.int8)


def the_product_too(x, w, b, r, **how):
    y = conv(x, w, **how)
    return y, jnp.tanh(y) * r + b


# Images, kernels, and how: of windows, of many features at a point, of few, in groups, of each channel. The long one
# has rows in parts, that of many images several in a task; of 200 features the last unit of columns is a part of one.
SHAPES = {
    "windows": ((2, 14, 14, 32), (3, 3, 32, 64), {}),
    "strides": ((3, 17, 13, 16), (3, 3, 16, 200), {"strides": (2, 2)}),
    "no padding": ((40, 9, 9, 32), (3, 3, 32, 96), {"padding": "VALID"}),
    "long rows": ((1, 3, 1500, 16), (2, 3, 16, 48), {}),
    "points": ((2, 14, 14, 96), (1, 1, 96, 136), {}),
    "points of few": ((4, 20, 20, 16), (1, 1, 16, 48), {}),
    "points and strides": ((2, 15, 15, 64), (1, 1, 64, 64), {"strides": (2, 2)}),
    "groups": ((2, 12, 12, 128), (3, 3, 32, 256), {"groups": 4}),
    "narrow groups": ((2, 12, 12, 64), (3, 3, 32, 96), {"groups": 2}),
    "channels": ((2, 20, 20, 64), (3, 3, 1, 64), {"groups": 64}),
    "one feature": ((8, 28, 28, 1), (3, 3, 1, 32), {}),
    "one position": ((1, 3, 3, 64), (3, 3, 64, 64), {"padding": "VALID"}),
}
AFTER = [bias, normalized, two_results, the_product_too]


def arguments(image, kernel, how, dtype="float32"):
    x, w = random(*image, dtype=dtype), random(*kernel, dtype=dtype)
    out = jax.eval_shape(lambda x, w: conv(x, w, **how), x, w).shape
    return x, w, random(kernel[-1], dtype=dtype), random(*out, dtype=dtype)


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("shape", SHAPES)
def test_same_bits(agree, shape, after):
    image, kernel, how = SHAPES[shape]
    args = arguments(image, kernel, how)
    assert "conv+" in steps(lambda *a: after(*a, **how), *args)
    agree(lambda *a: after(*a, **how), *args)


@pytest.mark.parametrize("shape", ["windows", "no padding", "points", "groups", "channels"])
def test_double_precision(agree, shape):
    with jax.enable_x64(True):
        image, kernel, how = SHAPES[shape]
        args = arguments(image, kernel, how, "float64")
        assert "conv+" in steps(lambda *a: normalized(*a, **how), *args)
        agree(lambda *a: normalized(*a, **how), *args)


def test_what_is_no_number(agree):
    x, w, b, r = arguments(*SHAPES["windows"])
    agree(normalized, odd(*x.shape), w, b, odd(*r.shape))


@pytest.mark.parametrize(
    ("numbers", "image", "kernel"),
    [
        (("NCHW", "OIHW", "NCHW"), (2, 32, 14, 14), (64, 32, 3, 3)),  # turned by passes/channels_last.py
        (("NHWC", "HWIO", "NCHW"), (2, 14, 14, 32), (3, 3, 32, 64)),  # the features are not side by side
    ],
)
def test_other_layouts(agree, numbers, image, kernel):
    x, w = random(*image), random(*kernel)
    agree(lambda x, w, b: jax.nn.relu(conv(x, w, numbers=numbers) + b[:, None, None]), x, w, random(64))


@pytest.mark.parametrize("rank", [1, 3])
def test_other_ranks(agree, rank):
    numbers = ("N" + "DHW"[-rank:] + "C", "DHW"[-rank:] + "IO", "N" + "DHW"[-rank:] + "C")
    x, w = random(2, *[10] * rank, 16), random(*[3] * rank, 16, 48)

    def function(x, w, b):
        return jnp.tanh(conv(x, w, strides=(1,) * rank, numbers=numbers) + b)

    args = (x, w, random(48))
    assert "conv+" in steps(function, *args)
    agree(function, *args)


def test_few_features_have_a_kernel():
    args = arguments((2, 14, 14, 32), (3, 3, 32, 8), {})
    assert steps(bias, *args) == ["conv", "launch"]


def test_a_donated_residual():
    """The result takes the residual's place, which is read element by element; the image's it cannot take."""
    x, w, b, r = arguments((2, 14, 14, 64), (3, 3, 64, 64), {})
    want = np.asarray(jax.jit(normalized)(x, w, b, r))
    with jax.default_device(jax.devices("ferrule")[0]):
        for donated, args in ((3, (x, w, b, jnp.array(r))), (0, (jnp.array(x), w, b, r))):
            got = jax.jit(normalized, donate_argnums=donated)(*args)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_in_a_loop(agree):
    """A state that is convolved and updated."""
    x, w, b, r = arguments((2, 12, 12, 64), (3, 3, 64, 64), {})

    def function(x, w, b, r):
        return lax.fori_loop(0, 3, lambda i, x: jnp.tanh(conv(x, w / 8) + b) + r, x)

    agree(function, x, w, b, r)


def test_no_images(agree):
    agree(bias, *arguments((0, 14, 14, 32), (3, 3, 32, 64), {}))


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_any_number_of_threads(python, threads):
    found = python(
        f"""
import jax, numpy as np, sys
sys.path[:0] = {sys.path!r}
from test_finished_convolutions import SHAPES, arguments, normalized
device = jax.devices("ferrule")[0]
for shape in ("windows", "long rows", "points", "groups", "one position"):
    image, kernel, how = SHAPES[shape]
    args = arguments(image, kernel, how)
    with jax.default_device(device):
        got = jax.jit(lambda *a: normalized(*a, **how))(*args)
    with jax.default_device(jax.devices("cpu")[0]):
        want = jax.jit(lambda *a: normalized(*a, **how))(*args)
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)
print("right")
""",
        FERRULE_NUM_THREADS=str(threads),
    )
    assert found.stdout == "right\n", found.stderr

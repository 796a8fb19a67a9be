"""Convolutions whose images have their channels first: what is turned around, what is not, and the same results."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from test_passes import graph

import jax
from ferrule.ir.verifier import verify
from ferrule.passes.channels_last import channels_last
from ferrule.passes.simplify import simplify
from ferrule.targets.cpu import host
from ferrule.targets.reference import evaluate_block
from jax import lax

RNG = np.random.default_rng(0)
FIRST = ("NCHW", "OIHW", "NCHW")
LAST = ("NHWC", "HWIO", "NHWC")


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def conv(x, w, stride=1, padding="SAME", dims=FIRST, **more):
    return lax.conv_general_dilated(x, w, (stride, stride), padding, dimension_numbers=dims, **more)


def largest(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), ((0, 0), (0, 0), (0, 1), (1, 0)))


def unit(x, w, b):
    """A bias, a relu, the mean and variance of channels."""
    y = jax.nn.relu(conv(x, w) + b[:, None, None])
    mean, variance = y.mean((0, 2, 3), keepdims=True), y.var((0, 2, 3), keepdims=True)
    return (y - mean) * lax.rsqrt(variance + 1e-3)


def network(x, w, b):
    y = largest(unit(x, w, b))
    z = unit(y, w[:, :, ::-1] * 0.1, b)
    z = jnp.where(z > 1e-2, z, jnp.exp(z)) + y
    z = jnp.concatenate([z, jnp.pad(y, ((0, 0), (0, 0), (1, 0), (0, 1)))[:, :, :-1, 1:]], 1)
    return z.mean((2, 3))


def weights(x, w, b):
    return jax.grad(lambda w: (network(x, w, b) ** 2).sum())(w)


def images(x, w, b):
    return jax.grad(lambda x: (network(x, w, b) ** 2).sum())(x)


def depthwise(x, w, b):
    return jax.nn.relu(conv(x, w[:, :1], feature_group_count=12) * b[:, None, None])


def strided(x, w, b):
    """Transposed, dilated, reversed."""
    y = conv(x, w, 2, ((1, 2), (0, 1)), rhs_dilation=(2, 1))
    return lax.conv_transpose(y, w, (2, 1), "SAME", dimension_numbers=FIRST) * b[0]


def looped(x, w, b):
    return lax.fori_loop(0, 3, lambda i, c: jnp.tanh(unit(c, w, b)), x)


def rows(x, w, b):
    """What reads the result as it was before: rows of spatial positions, reshapes, and another output."""
    y = conv(x, w) + b[:, None, None]
    return y.reshape(2, -1).sum(1), jax.nn.softmax(y, 1), y


def narrow(x, w, b):
    return network(*(v.astype(jnp.bfloat16) for v in (x, w, b)))


def grouped(x, w, b):
    """A norm over groups of channels and places, and positions in a row, as attention takes them."""
    y = conv(x, w).reshape(2, 3, 4, 7, 6)
    y = (y - y.mean((2, 3, 4), keepdims=True)) * lax.rsqrt(y.var((2, 3, 4), keepdims=True) + 1e-3)
    y = conv(y.reshape(2, 12, 7, 6) * b[:, None, None], w)
    tokens = y.reshape(2, 12, 42).transpose(0, 2, 1)
    return tokens @ w[:, :, 0, 0] + b


def larger(x, w, b):
    """Each pixel four times, and back to the mean of four."""
    y = conv(x, w)
    y = conv(jnp.repeat(jnp.repeat(y, 2, 2), 2, 3), w)
    return y.reshape(2, 12, 7, 2, 6, 2).mean((3, 5)).sum(3)


def merged(x, w, b):
    """Channels and rows become one dimension, which no other order of dimensions has."""
    return conv(x, w).reshape(2, 84, 6)


def few(x, w, b):
    """Few output features of many along short lines: loops for channels last."""
    return conv(x, w[:8]) * 2


def fewer(x, w, b):
    """The loops along lines take these as they are."""
    return conv(x[:, :4], w[:8, :4]) * 2


def long(x, w, b):
    return conv(jnp.tile(x, (1, 1, 1, 8)), w[:8]) * 2


def product(x, w, b):
    """The kernel times each image."""
    return jax.nn.relu(conv(jnp.tile(x, (1, 1, 2, 2)), w[:, :, :1, :1]) + b[:, None, None])


def products(x, w, b):
    return conv(product(x, w, b), w[:, :, 1:2, :1])


def last(x, w, b):
    y = conv(x.reshape(2, 7, 6, 12), w.reshape(3, 3, 12, 12), dims=LAST)
    return jax.nn.relu(y + b)


# For each: how many values as large as an image are transposed.
CASES = [
    (network, 1),  # the image alone: what comes out has two dimensions
    (weights, 1),
    (images, 2),
    (depthwise, 2),
    (strided, 2),
    (looped, 2),  # in each iteration: the carry stays as it was
    (rows, 3),
    (narrow, 1),
    (grouped, 1),
    (larger, 1),
    (merged, 2),
    (few, 2),
    (fewer, 0),
    (long, 0),
    (product, 0),
    (products, 2),
    (last, 0),
]


@pytest.mark.parametrize(("function", "transposes"), CASES, ids=lambda c: getattr(c, "__name__", ""))
def test_channels_last(function, transposes):
    x, w, b = normal(2, 12, 7, 6), normal(12, 12, 3, 3) * 0.2, normal(12)
    before = simplify(graph(function, x, w, b))
    wanted = evaluate_block(before, [x, w, b])
    after = channels_last(before, host())
    verify(after, "channels_last")
    moved = [op for op in after.walk() if op.name == "transpose" and np.prod(op.result.shape) >= 2 * 12 * 12]
    images = [op for op in moved if op.operands[0].shape[0] == 2 or op.result.shape[0] == 2]
    assert len(images) == transposes, [str(op.result.type) for op in images]
    if transposes:
        for op in after.walk():
            if op.name == "convolution":
                dims, image = op.attrs["dimension_numbers"], op.operands[0]
                innermost = (dims.input_feature_dimension, dims.input_batch_dimension)
                assert len(image.shape) - 1 in innermost
    got = evaluate_block(after, [x, w, b])
    loose = function is narrow
    for a, c in zip(wanted, got, strict=True):
        assert a.dtype == c.dtype
        tolerance = 0.05 if loose else 2e-4
        np.testing.assert_allclose(np.float64(c), np.float64(a), tolerance, tolerance * np.abs(np.float64(a)).max())


def test_special_values_stay_where_they_are():
    x, w, b = normal(2, 12, 7, 6), normal(12, 12, 3, 3), normal(12)
    x[0, 3, 2, 2], x[1, 0, 0, 5], b[4] = np.nan, np.inf, -0.0

    def function(x, w, b):
        return largest(jax.nn.relu(conv(x, w) + b[:, None, None]))

    before = simplify(graph(function, x, w, b))
    with np.errstate(invalid="ignore"):
        (wanted,) = evaluate_block(before, [x, w, b])
        (got,) = evaluate_block(channels_last(before, host()), [x, w, b])
    assert np.isnan(wanted).any() and np.isinf(wanted).any()
    np.testing.assert_allclose(got, wanted, 1e-4, 1e-4)


@pytest.mark.parametrize(("taps", "features", "turned"), [(1, 4, "256"), (3, 4, ""), (3, 16, "256"), (3, 2, "")])
def test_in_groups(taps, features, turned):
    """Without AVX-512 oneDNN is faster with channels last, but for small groups; with AVX-512 with channels first."""
    x, w = normal(2, 3 * features, 7, 6), normal(3 * features, features, taps, taps)
    for bits in 256, 512:
        before = simplify(graph(lambda x, w: conv(x, w, feature_group_count=3), x, w))
        (expected,) = evaluate_block(before, [x, w])
        after = channels_last(before, replace(host(), vector_bytes=bits // 8))
        assert any(op.name == "transpose" for op in after.walk()) == (str(bits) == turned)
        np.testing.assert_allclose(evaluate_block(after, [x, w])[0], expected, 1e-4, 1e-4)


@pytest.mark.parametrize(
    ("size", "more", "turned"),
    [
        (26, {}, 0),
        (49, {"stride": 2}, 2),
        (26, {"rhs_dilation": (2, 2)}, 2),
        (12, {}, 2),
        (26, {"lhs_dilation": (2, 2), "padding": [(1, 1)] * 2}, 2),
    ],
)
def test_depthwise(size, more, turned):
    """One whose lines are long enough stays as it is, unless its image has been turned already."""
    x, w, v = normal(2, 12, size, size), normal(12, 1, 3, 3), normal(12, 12, 3, 3)

    def count(function, bits=256):
        before = simplify(graph(function, x, w, v))
        wanted = evaluate_block(before, [x, w, v])
        after = channels_last(before, replace(host(), vector_bytes=bits // 8))
        np.testing.assert_allclose(evaluate_block(after, [x, w, v])[0], wanted[0], 1e-4, 1e-4)
        return sum(op.name == "transpose" and 2 in op.result.shape for op in after.walk())

    assert count(lambda x, w, v: conv(x, w, feature_group_count=12, **more)) == turned
    assert count(lambda x, w, v: conv(x, w, feature_group_count=12, **more), 512) == 2
    assert count(lambda x, w, v: conv(conv(x, v), w, feature_group_count=12, **more)) == 2
    assert count(lambda x, w, v: conv(x, w, feature_group_count=12)[:, :, ::3] + conv(x, v)[:, :, ::3]) == 2

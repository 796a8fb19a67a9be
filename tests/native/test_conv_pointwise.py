"""Convolutions with kernels of one element as matrix products (native/conv_pointwise.cc)."""

from __future__ import annotations

import numpy as np
import pytest
from one_call import call
from test_calls import bf16, close, conv_reference, random, random_conv, standard_conv


def ones(at, rank):
    return at | {
        "window_strides": (1,) * rank,
        "lhs_dilation": (1,) * rank,
        "padding": (0,) * (2 * rank),
        "feature_group_count": 1,
        "batch_group_count": 1,
    }


def kernel_of_one(rhs, at):
    """The first element of the kernel along its spatial dimensions."""
    places = at["kernel_spatial_dimensions"]
    return np.ascontiguousarray(rhs[tuple(slice(0, 1) if d in places else slice(None) for d in range(rhs.ndim))])


@pytest.mark.parametrize("dtype", ["f", "d", bf16, "e", "F", "D", "i", "l", "b"])
def test_every_order_of_dimensions(dtype, monkeypatch):
    monkeypatch.setenv("FERRULE_CONV", "own")
    rng = np.random.default_rng(5)
    for number in range(40):
        rank = number % 4
        lhs, rhs, at = random_conv(rng, rank, dtype, "none")
        at, rhs = ones(at, rank), kernel_of_one(rhs, at)
        want = conv_reference(lhs, rhs, at)
        got = call("conv", [lhs, rhs], [(want.shape, dtype)], at)[0]
        close(got, want.astype(dtype) if np.dtype(dtype).kind == "i" else want, dtype, rhs.size)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("padding", [0, 1, -1])
def test_padding_and_strides_are_not_forgotten(layout, padding, monkeypatch):
    monkeypatch.setenv("FERRULE_CONV", "own")
    shape = (2, 9, 8, 33) if layout == "NHWC" else (2, 33, 9, 8)
    kernel = (1, 1, 33, 20) if layout == "NHWC" else (20, 33, 1, 1)
    for strides in ((1, 1), (2, 1), (2, 3)):
        at = standard_conv(2, layout, padding=(padding,) * 4, window_strides=strides)
        lhs, rhs = random(shape, "f"), random(kernel, "f")
        want = conv_reference(lhs, rhs, at)
        close(call("conv", [lhs, rhs], [(want.shape, "f")], at)[0], want, "f", 33)


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("features", [1535, 2048])
def test_many_features(images, features):
    """Where the product comes before the library."""
    lhs, rhs = random((images, 14, 14, features), "f"), random((1, 1, features, 48), "f")
    want = (lhs.astype("d").reshape(-1, features) @ rhs.reshape(features, 48)).reshape(images, 14, 14, 48)
    got = call("conv", [lhs, rhs], [(want.shape, "f")], standard_conv(2, "NHWC"))[0]
    close(got, want, "f", features)


@pytest.mark.parametrize("layout", ["NCHW", "NCH"])
@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("features", [(20, 33), (1, 16), (40, 9)])
def test_channels_first(layout, images, features):
    """The kernel times each image, before the library, which would rearrange the image."""
    space = (12, 13) if layout == "NCHW" else (156,)
    lhs, rhs = random((images, features[0], *space), "f"), random((features[1], features[0], *(1 for _ in space)), "f")
    want = np.einsum("oi,bip->bop", rhs.reshape(features[::-1]).astype("d"), lhs.reshape(images, features[0], -1))
    got = call("conv", [lhs, rhs], [((images, features[1], *space), "f")], standard_conv(len(space), layout))[0]
    close(got, want.reshape(got.shape), "f", features[0])

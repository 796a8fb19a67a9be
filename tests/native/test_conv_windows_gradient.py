"""Gradients of kernels with features innermost (native/conv_windows_gradient.cc)."""

from __future__ import annotations

import numpy as np
import pytest
from instruction_sets import ALL_SETS
from one_call import OneCall, call, elsewhere, tensor
from test_calls import close, conv_reference, random
from test_gemm_bounds import at_the_end


def gradient(images, gradients, stride, dilation, low, taps):
    """Attributes of a kernel's gradient as JAX writes it, of `taps`; the images and the results' gradients have shapes
    (batch, …, features)."""
    rank = len(taps)
    spatial, inner = tuple(range(1, rank + 1)), tuple(range(rank))
    padding = []
    for size, out, s, d, p, t in zip(images[1:-1], gradients[1:-1], stride, dilation, low, taps):
        padding += [p, (out - 1) * s + (t - 1) * d + 1 - size - p]
    return {
        **{"window_strides": dilation, "padding": tuple(padding), "lhs_dilation": (1,) * rank, "rhs_dilation": stride},
        **{"window_reversal": (0,) * rank, "feature_group_count": 1, "batch_group_count": 1},
        **{"input_batch_dimension": rank + 1, "input_feature_dimension": 0, "input_spatial_dimensions": spatial},
        **{"kernel_input_feature_dimension": 0, "kernel_output_feature_dimension": rank + 1},
        **{"kernel_spatial_dimensions": spatial, "output_batch_dimension": rank},
        **{"output_feature_dimension": rank + 1, "output_spatial_dimensions": inner},
    }


def compare(images, gradients, dtype, stride, dilation, low, taps):
    at = gradient(images, gradients, stride, dilation, low, taps)
    x, g = random(images, dtype), random(gradients, dtype)
    want = conv_reference(x, g, at)
    assert want.shape == (*taps, images[-1], gradients[-1])
    stored = [at_the_end(x.shape, dtype), at_the_end(g.shape, dtype)]  # nothing behind them may be read
    stored[0][...], stored[1][...] = x, g
    found = at_the_end(want.shape, dtype)
    OneCall("conv", [tensor(s.shape, dtype) for s in stored], [tensor(want.shape, dtype)], at).run(stored, [found])
    close(found, want, dtype, g.size // g.shape[-1])


def check():
    rng = np.random.default_rng(11)
    for i in range(120):
        rank = i % 2 + 1

        def some(low, high, rank=rank):
            return tuple(int(n) for n in rng.integers(low, high, rank))

        batch, inputs, outputs = (int(n) for n in rng.integers(1, (6, 40, 50)))
        images = (batch, *some(1, (90, 20)[rank - 1]), inputs)
        gradients = (batch, *some(1, (60, 14)[rank - 1]), outputs)
        compare(images, gradients, "fd"[i // 2 % 2], some(1, 4), some(1, 3), some(-2, 4), some(1, 5))


@pytest.mark.parametrize("isa", ALL_SETS)
@pytest.mark.parametrize("threads", [1, 3])
def test_every_geometry(isa, threads):
    elsewhere(
        "import test_conv_windows_gradient as t; t.check()",
        FERRULE_ISA=isa,
        FERRULE_NUM_THREADS=str(threads),
        FERRULE_CONV="windows",
    )


# Parts of the positions that are added up, several images at once, input features shared out among tasks.
@pytest.mark.parametrize(
    ("batch", "size", "inputs", "outputs", "stride"),
    [(3, 40, 32, 48, 1), (24, 7, 96, 64, 1), (2, 14, 260, 250, 1), (4, 28, 60, 40, 2)],
)
def test_large(batch, size, inputs, outputs, stride, monkeypatch):
    monkeypatch.setenv("FERRULE_CONV", "windows")
    out = (size - 1) // stride + 1
    for dtype in "fd":
        shapes = (batch, size, size, inputs), (batch, out, out, outputs)
        compare(*shapes, dtype, (stride, stride), (1, 1), (1, 1), (3, 3))


def test_what_is_beside_a_window_is_not_part_of_it(monkeypatch):
    """An infinity of the images is in the sums of its feature only; padding times infinity is not a number."""
    monkeypatch.setenv("FERRULE_CONV", "windows")
    x, g = random((2, 12, 12, 20), "f"), random((2, 12, 12, 16), "f")
    x[0, 5, 11, 3] = np.inf
    g[1, 0, 0, 7] = np.inf
    at = gradient(x.shape, g.shape, (1, 1), (1, 1), (1, 1), (3, 3))
    with np.errstate(invalid="ignore"):
        want = conv_reference(x, g, at)
    assert np.isfinite(np.delete(np.delete(want, 3, 2), 7, 3)).all() and np.isnan(want[0, 0, :, 7]).all()
    found = call("conv", [x, g], [(want.shape, "f")], at)[0]
    np.testing.assert_allclose(found, want, 1e-4, 1e-4)

"""Convolutions as products of windows where they lie (native/conv_windows.cc)."""

from __future__ import annotations

import numpy as np
import pytest
from instruction_sets import ALL_SETS
from one_call import OneCall, call, elsewhere, tensor
from test_calls import close, conv_reference, random, standard_conv
from test_gemm_bounds import at_the_end

import jax
from jax import lax

DIMENSIONS = ("NWC", "NHWC", "NDHWC")


def draw(rng, rank, dtype):
    """Operands and attributes: any padding (of crops, too), strides, dilations, turned kernels and groups."""
    while True:
        batch, groups = int(rng.integers(1, 5)), int(rng.choice([1, 1, 2, 3]))
        inputs, outputs = int(rng.integers(1, 30)), int(rng.integers(1, 50))
        size, kernel = rng.integers(1, (60, 24, 9)[rank - 1], rank), rng.integers(1, 6, rank)
        strides, dilation = rng.integers(1, 4, rank), rng.choice([1, 1, 2, 3], rank)
        padding = rng.integers(-2, 8, 2 * rank)
        if ((size + padding[::2] + padding[1::2]) <= dilation * (kernel - 1)).any():
            continue
        at = standard_conv(
            rank,
            window_strides=tuple(map(int, strides)),
            rhs_dilation=tuple(map(int, dilation)),
            padding=tuple(map(int, padding)),
            window_reversal=tuple(map(int, rng.integers(0, 2, rank))),
            feature_group_count=groups,
        )
        lhs, rhs = (batch, *size, inputs * groups), (*kernel, inputs, outputs * groups)
        return random(lhs, dtype), random(rhs, dtype), at


def check():
    rng = np.random.default_rng(7)
    for i in range(150):
        dtype = "fd"[i % 2]
        lhs, rhs, at = draw(rng, i % 3 + 1, dtype)
        want = conv_reference(lhs, rhs, at)
        stored = [at_the_end(x.shape, dtype) for x in (lhs, rhs)]  # nothing behind them may be read
        stored[0][...], stored[1][...] = lhs, rhs
        found = at_the_end(want.shape, dtype)
        OneCall("conv", [tensor(x.shape, dtype) for x in stored], [tensor(want.shape, dtype)], at).run(stored, [found])
        close(found, want, dtype, rhs.size)


@pytest.mark.parametrize("isa", ALL_SETS)
@pytest.mark.parametrize("threads", [1, 3])
def test_every_geometry(isa, threads):
    elsewhere(
        "import test_conv_windows as t; t.check()",
        FERRULE_ISA=isa,
        FERRULE_NUM_THREADS=str(threads),
        FERRULE_CONV="windows",
    )


# Sums in several chunks, several images a task, rows of one image in several tasks, columns that tasks share.
LARGE = {
    "several images": ((9, 7, 7, 96), (3, 3, 96, 64), {"padding": (1, 1, 1, 1)}),
    "several rows": ((1, 60, 100, 32), (3, 3, 32, 48), {"padding": (1, 1, 1, 1)}),
    "strides": ((2, 57, 57, 64), (3, 3, 64, 32), {"padding": (0, 1, 0, 1), "window_strides": (2, 2)}),
    "one position": ((1, 5, 5, 200), (5, 5, 200, 160), {}),
    "groups": ((2, 14, 14, 256), (3, 3, 16, 256), {"padding": (1, 1, 1, 1), "feature_group_count": 16}),
    "long rows": ((2, 4, 1300, 20), (3, 4, 20, 32), {"padding": (1, 1, 2, 1), "window_strides": (1, 2)}),
    "lines": ((3, 5000, 40), (9, 40, 33), {"padding": (4, 4)}),
    "volumes": ((2, 6, 12, 12, 24), (3, 3, 3, 24, 32), {"padding": (1,) * 6}),
}


@pytest.mark.parametrize("name", LARGE)
def test_large(name, monkeypatch):
    monkeypatch.setenv("FERRULE_CONV", "windows")
    lhs, rhs, attrs = LARGE[name]
    at = standard_conv(len(lhs) - 2, **attrs)
    for dtype in "fd":
        x, w = random(lhs, dtype), random(rhs, dtype)
        want = conv_reference(x, w, at)
        close(call("conv", [x, w], [(want.shape, dtype)], at)[0], want, dtype, w.size)


def test_what_is_beside_a_window_is_not_part_of_it(monkeypatch):
    """An infinity at a row's end stays out of what no window of has it; padding times infinity is not a number."""
    monkeypatch.setenv("FERRULE_CONV", "windows")
    x, w = random((1, 12, 12, 32), "f"), random((3, 3, 32, 16), "f")
    x[0, 5, 11, 31] = np.inf
    w[0, 0, 0, 3] = np.inf
    at = standard_conv(padding=(1, 1, 1, 1))
    with np.errstate(invalid="ignore"):
        want = conv_reference(x, w, at)
    assert np.isfinite(want[0, :4, :, :3]).all() and np.isfinite(want[0, 7:, :, :3]).all()
    assert np.isnan(want[0, 0, :, 3]).all() and np.isinf(want[0, 5, 11, 0])
    np.testing.assert_allclose(call("conv", [x, w], [(want.shape, "f")], at)[0], want, 1e-4, 1e-4)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_kernel_that_stays(rank):
    """From its second run on, a program finds a constant kernel in panels; another one's is its own."""
    layout = DIMENSIONS[rank - 1]
    spatial = layout[1:-1]
    x = random((16, *(10,) * rank, 24), "f")
    kernels = [random((*(3,) * rank, 24, 16), "f") for _ in range(2)]
    device = jax.devices("ferrule")[0]
    for w in kernels:
        f = jax.jit(
            lambda x, w=w: lax.conv_general_dilated(
                x, w, (1,) * rank, "SAME", dimension_numbers=(layout, spatial + "IO", layout)
            )
        )
        want = conv_reference(x, w, standard_conv(rank, padding=(1,) * (2 * rank)))
        for scale in (1, 2, 3):
            close(np.asarray(f(jax.device_put(x * scale, device))), want * scale, "f", w.size)

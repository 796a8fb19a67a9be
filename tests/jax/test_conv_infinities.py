"""An infinity in a convolution is no NaN where no window has it, beside it or in another group of features."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import jax


@pytest.mark.parametrize("features", [1, 2, 3, 5])
@pytest.mark.parametrize("dilation", [1, 2])
def test_groups(features, dilation):
    x, w = np.ones((2, 8, 8, 3 * features), np.float32), np.ones((3, 3, features, 3 * 4), np.float32)
    x[..., 2 * features] = np.inf  # the first one of the last group

    def convolve(x, w):
        return jax.lax.conv_general_dilated(
            x,
            w,
            (1, 1),
            [(0, 0), (0, 0)],
            lhs_dilation=(dilation, dilation),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=3,
        )

    with jax.default_device(jax.devices("ferrule")[0]):
        y = np.asarray(jax.jit(convolve)(jnp.asarray(x, jnp.bfloat16), jnp.asarray(w, jnp.bfloat16)), np.float32)
    assert np.isfinite(y[..., :8]).all()
    assert np.isposinf(y[..., 8:]).any() and not np.isnan(y[..., 8:]).any()


LAYOUTS = {"1D": ("NWC", "WIO", "NWC"), "2D": ("NHWC", "HWIO", "NHWC"), "3D": ("NDHWC", "DHWIO", "NDHWC")}


@pytest.mark.parametrize("features", [1, 2, 3, 5, 17])
@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("step, dilation", [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_beside_a_window(features, kind, step, dilation, bad):
    rank = int(kind[0])
    x, w = np.ones((2, *[12] * rank, features), np.float32), np.ones((*[3] * rank, features, 20), np.float32)
    x[(1, *[6] * rank, 0)] = bad

    def convolve(x, w):
        steps, dilations = (step,) * rank, (dilation,) * rank
        edges = [(0, 0)] * rank
        return jax.lax.conv_general_dilated(x, w, steps, edges, dilations, dimension_numbers=LAYOUTS[kind])

    with jax.default_device(jax.devices("ferrule")[0]):
        y = np.asarray(jax.jit(convolve)(jnp.asarray(x, jnp.bfloat16), jnp.asarray(w, jnp.bfloat16)), np.float32)
    marked = np.asarray(convolve(jnp.asarray(np.where(np.isfinite(x), 0.0, 1.0)), jnp.asarray(w))) > 0
    assert marked.any() and np.isfinite(y[~marked]).all()
    np.testing.assert_array_equal(y[marked], bad)


@pytest.mark.parametrize("features", [1, 2, 3, 5])
def test_beside_a_window_in_gradients(features):
    """Of what goes into a convolution to an odd number of features."""
    x, w = np.ones((1, 12, 12, 8), np.float32), np.ones((3, 3, 8, features), np.float32)
    g = np.ones((1, 10, 10, features), np.float32)
    g[0, 5, 5, 0] = np.inf

    def gradient(x, w, g):
        return jax.vjp(
            lambda x: jax.lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=LAYOUTS["2D"]), x
        )[1](g)[0]

    with jax.default_device(jax.devices("ferrule")[0]):
        y = np.asarray(jax.jit(gradient)(*(jnp.asarray(v, jnp.bfloat16) for v in (x, w, g))), np.float32)
    marked = np.zeros((12, 12), bool)
    marked[5:8, 5:8] = True
    assert np.isfinite(y[0][~marked]).all() and np.isposinf(y[0][marked]).all()


@pytest.mark.parametrize("rows, depth, columns", [(64, 65, 64), (5, 33, 7), (300, 129, 300), (1, 301, 512)])
@pytest.mark.parametrize("turned", [False, True])
def test_rows_of_products(rows, depth, columns, turned):
    x, w = np.ones((rows, depth), np.float32), np.ones((depth, columns), np.float32)
    x[rows // 2, 0] = np.inf
    w[0, columns // 2] = np.nan

    def product(x, w):
        return x @ (w.T if turned else w)

    with jax.default_device(jax.devices("ferrule")[0]):
        args = (jnp.asarray(x, jnp.bfloat16), jnp.asarray(w.T if turned else w, jnp.bfloat16))
        y = np.asarray(jax.jit(product)(*args), np.float32)
    expected = np.full((rows, columns), depth, np.float32)
    expected[rows // 2] = np.inf
    expected[:, columns // 2] = np.nan
    np.testing.assert_array_equal(y, np.asarray(jnp.asarray(expected, jnp.bfloat16), np.float32))

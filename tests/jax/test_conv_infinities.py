"""An infinity in one group of a convolution's features is no NaN in another's."""

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

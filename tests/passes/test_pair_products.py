"""Products along two dimensions are one call, where nobody else reads what is between them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jax
from ferrule.pipeline import compile_program
from ferrule.program import Call

IMAGES = np.random.default_rng(0).standard_normal((3, 40, 50, 40)).astype("f")
H, W = (np.random.default_rng(i).standard_normal(s).astype("f") for i, s in enumerate([(40, 64), (50, 33)]))


def resized(x: Any, h: Any, w: Any) -> Any:
    return jnp.einsum("nhwc,hk,wl->nklc", x, h, w)


def between(x: Any, h: Any, w: Any) -> Any:
    first = jnp.einsum("nhwc,hk->nkwc", x, h)
    return first, jnp.einsum("nkwc,wl->nklc", first, w)


def repeated(x: Any, h: Any, w: Any) -> Any:
    return jax.lax.fori_loop(0, 3, lambda i, y: jnp.tanh(resized(resized(y, h, w), h.T, w.T) / 2000), x)


def volume(x: Any, h: Any, w: Any) -> Any:
    """Three products: one is left alone."""
    x = jnp.einsum("nhwdc,hk->nkwdc", x[..., None].repeat(16, -1), h)
    return jnp.einsum("nkldc,dm->nklmc", jnp.einsum("nkwdc,wl->nkldc", x, w), h[:, :36])


def first_before_second(x: Any, h: Any, w: Any) -> Any:
    return jnp.einsum("nkwc,wl->nklc", jnp.einsum("nhwc,hk->nkwc", x, h), w)


def second_before_first(x: Any, h: Any, w: Any) -> Any:
    return jnp.einsum("nhlc,hk->nklc", jnp.einsum("nhwc,wl->nhlc", x, w), h)


def channels_first(x: Any, h: Any, w: Any) -> Any:
    return jnp.einsum("nckw,wl->nckl", jnp.einsum("nchw,hk->nckw", x, w), h)


CASES: dict[str, tuple[Any, list[str]]] = {
    "both": (resized, ["gemm.pair"]),
    "first before second": (first_before_second, ["gemm.pair"]),
    "second before first": (second_before_first, ["gemm.pair"]),
    "channels first": (channels_first, ["gemm.pair"]),
    "channels first, resized back": (
        jax.grad(lambda x, h, w: jnp.cos(channels_first(x, h, w) / 100).sum()),
        ["gemm", "gemm", "gemm.pair"],  # a sine follows the first two
    ),
    "enlarged": (lambda x, h, w: jax.image.resize(x, (3, 40, 99, 64), "cubic"), ["gemm.pair"]),
    "read between": (between, ["gemm", "gemm"]),
    "in a loop": (repeated, ["gemm", "gemm", "gemm.pair"]),
    "three": (volume, ["gemm", "gemm.pair"]),
    "few columns": (lambda x, h, w: resized(x, h[:, :20], w), ["gemm", "gemm"]),
    "an epilogue": (lambda x, h, w: jnp.tanh(resized(x, h, w)), ["gemm", "gemm"]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_called(name: str) -> None:
    f, wanted = CASES[name]
    args = (IMAGES, H, W)
    program = compile_program(jax.jit(f).lower(*args).as_text().encode())
    calls = sorted(s.target for block in program.blocks for s in block if isinstance(s, Call))
    assert calls == wanted
    device, cpu = jax.devices("ferrule")[0], jax.devices("cpu")[0]
    found, exact = (jax.jit(f)(*jax.device_put(args, d)) for d in (device, cpu))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)
